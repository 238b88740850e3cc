"""Two GPUs: an error after graphs were captured ends the run, and ranks may have unequal numbers of shapes."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from podium.config.load import load_system, write_resolved
from tests.implementations.pytorch.gpu.conftest import Target

pytestmark = pytest.mark.gpu
WORKER = Path(__file__).parent / "rank_worker.py"
RANKS = 2
LONGEST_SECONDS = 30  # from the last step, or the error, to the end of all processes


@pytest.mark.parametrize(("kind", "code"), [("end", 0), ("raise", 1)])
def test_two_ranks_end(
    kind: str,
    code: int,
    target: Target,
    tmp_path: Path,
    start_ranks: Callable[..., None],
    rank_environments: Callable[[int], list[dict[str, str]]],
    record_property: Callable[[str, object], None],
) -> None:
    """Random assignment, so that the ranks' batches have different shapes; the exit code is that of the error."""
    if target.is_gpu and torch.cuda.device_count() < RANKS:
        pytest.skip(f"needs {RANKS} GPUs, and here is {torch.cuda.device_count()}")
    base = load_system("h200_1x")
    launch = base.launch.model_copy(
        update={"processes_per_node": RANKS, "device": target.device.type, "timeout_seconds": 60}
    )
    changes = {
        "seed": 1,
        "global_batch_size": 8,
        "balancing": "random",
        "launch": launch,
        "precision": "bf16" if target.is_gpu else "fp32",
        "attention": "flash" if target.is_gpu else "grouped",
        "cuda_graph": "step" if target.is_gpu else "none",
        "gradient_wire": "bf16",
    }
    write_resolved(base.model_copy(update=changes), tmp_path / "config.yaml")
    arguments = (tmp_path / "config.yaml", kind, tmp_path / "time.txt")
    start_ranks(WORKER, [arguments] * RANKS, rank_environments(RANKS), code)
    seconds = time.monotonic() - float((tmp_path / "time.txt").read_text(encoding="ascii"))
    record_property("seconds_to_end", seconds)
    assert seconds < LONGEST_SECONDS
