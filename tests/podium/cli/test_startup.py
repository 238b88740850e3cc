"""Start of the command line: what every command imports before its own work."""

import subprocess
import sys

SLOW = {"numpy", "pydantic", "torch", "scipy", "matplotlib", "numba", "h5py", "optuna", "importlib.metadata"}


def test_help_imports_no_slow_library() -> None:
    """The configuration's schema alone took longer to import than everything else together."""
    program = "import sys, podium.cli.main; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert SLOW & set(done.stdout.split()) == set()
