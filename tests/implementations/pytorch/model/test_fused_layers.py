"""The fused encoder layers in DDP on two ranks, in Triton's interpreter; on one rank: kernels/gpu/test_gpu.py."""

from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.implementations.pytorch import interpreted_ranks

pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")


def test_gradients_in_ddp_are_those_of_eager_layers(tmp_path: Path) -> None:
    worker = Path(__file__).with_name("fused_layers_worker.py")
    interpreted_ranks.start(worker, [(rank, tmp_path / "rendezvous") for rank in range(2)])
