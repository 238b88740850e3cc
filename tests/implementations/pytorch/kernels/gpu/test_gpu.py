"""The Triton kernels without a GPU: run by Triton's interpreter, and compiled for Hopper."""

import os
import subprocess
import sys
from collections.abc import Callable
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


def test_kernels_compile_for_hopper(start_ranks: Callable[..., None], tmp_path: Path) -> None:
    start_ranks(HERE / "hopper.py", [[]], [{"TRITON_CACHE_DIR": str(tmp_path), "TRITON_INTERPRET": "0"}])
    assert len([*tmp_path.rglob("*.cubin")]) == 12
