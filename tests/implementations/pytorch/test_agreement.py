"""All kernel sets, optimizers and precisions train alike over many steps."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
LARGEST = {"fp32": 0.001, "bf16": 0.02, "fp8": 0.05}  # mean over the steps, as a share of the first loss


@pytest.mark.exhaustive
@pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")
def test_losses_agree_over_200_steps() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.implementations.pytorch.agreement", "200"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for name, found in json.loads(done.stdout).items():
        assert found["mean"] < LARGEST[name.split()[-1]], (name, found)
        assert found["last"] < 0.9 * found["first"], f"{name} does not learn: {found}"
