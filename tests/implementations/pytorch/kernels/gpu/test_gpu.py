"""Triton's kernels where there is no GPU: run by its interpreter, and compiled for a GPU that is not here."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[4]
pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")


def run(*words: str, **environment: str) -> str:
    """In a process of its own, since Triton has to know from its start whether it interprets."""
    done = subprocess.run(
        [sys.executable, *words],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_they_compute_what_the_eager_twins_do() -> None:
    out = run("-m", "pytest", "-q", "-p", "no:cacheprovider", str(HERE / "interpreted.py"), TRITON_INTERPRET="1")
    assert "passed" in out or "[100%]" in out


def test_they_compile_for_hopper(tmp_path: Path) -> None:
    out = run(str(HERE / "hopper.py"), TRITON_CACHE_DIR=str(tmp_path), TRITON_INTERPRET="0")
    assert len(out.splitlines()) == 8
