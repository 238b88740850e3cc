"""The tests that need a GPU, rehearsed on the CPU: at tiny sizes, Triton kernels in Triton's interpreter."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="Triton is not installed")

HERE = Path(__file__).parent
COMMAND = HERE.parents[3] / "run_tests.sh"
ON_CPU = {"PODIUM_GPU_TESTS": "cpu", "TRITON_INTERPRET": "1", "TORCHDYNAMO_DISABLE": "1", "OMP_NUM_THREADS": "1"}
# One test or two of each file: all of them take minutes in the interpreter (tools/gpu_check.py --cpu).
SELECTED = (
    "residual_norm-torch.bfloat16 or grouped-torch.bfloat16 or nested-torch.float32 "
    "or layers_match and not bf16 or as_on_a_cpu and lamb or waits and fp16"
)


def run(environment: dict[str, str], *arguments: object) -> str:
    """What `./run_tests.sh --gpu` prints, which must succeed."""
    done = subprocess.run(
        [COMMAND, "--gpu", *arguments],
        env=os.environ | {"PODIUM_PYTHON": sys.executable, "CUDA_VISIBLE_DEVICES": ""} | environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_tests_of_a_gpu_pass_on_the_cpu() -> None:
    """In a new process, since Triton reads TRITON_INTERPRET when kernels are defined."""
    printed = run(ON_CPU, "-k", SELECTED)
    passed = re.search(r"(\d+) passed", printed)
    assert passed and int(passed[1]) >= 13, printed


def test_without_a_gpu_they_are_skipped_with_a_reason() -> None:
    printed = run({}, "-rs", HERE / "test_ranks.py")
    assert "SKIPPED [2]" in printed
    assert "needs a GPU: torch.cuda.is_available() is false" in printed
