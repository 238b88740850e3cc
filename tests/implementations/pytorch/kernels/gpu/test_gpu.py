"""The Triton kernels without a GPU: run by Triton's interpreter."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[4]
pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")


def test_kernels_match_the_eager_reference() -> None:
    """In a new process, since Triton reads TRITON_INTERPRET when it is imported."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", HERE / "interpreted.py"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
