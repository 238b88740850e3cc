"""The fused encoder layers, in Triton's interpreter: on one rank, and in DDP on two."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[3]
INTERPRETED = {**os.environ, "PYTHONPATH": str(ROOT), "TRITON_INTERPRET": "1"}
pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")


def test_layers_match_the_eager_layers() -> None:
    """In a new process, since Triton reads TRITON_INTERPRET when it is imported."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", HERE / "fused_layers_interpreted.py"],
        cwd=ROOT,
        env=INTERPRETED,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_gradients_in_ddp_are_those_of_eager_layers(tmp_path: Path) -> None:
    """Not forked from a process that has imported torch, for the same reason."""
    ranks = [
        subprocess.Popen(
            [sys.executable, HERE / "fused_layers_worker.py", str(rank), tmp_path / "rendezvous"],
            env={**INTERPRETED, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        for rank in ranks:
            output, _ = rank.communicate(timeout=300)
            assert rank.returncode == 0, output
    finally:
        for rank in ranks:
            rank.kill()
