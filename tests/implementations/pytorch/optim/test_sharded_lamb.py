"""LAMB sharded over three ranks has the weights and the state of LAMB, bit for bit."""

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from implementations.pytorch.distributed.process_group import Processes
from implementations.pytorch.optim import build
from implementations.pytorch.optim.build import build_optimizer
from implementations.pytorch.optim.lamb import Lamb
from implementations.pytorch.optim.sharded_lamb import ShardedLamb
from podium.config.schema import OptimizerSettings
from tests.implementations.pytorch import interpreted_ranks

WORKER = Path(__file__).with_name("sharding_worker.py")
RANKS = 3
SETTINGS = OptimizerSettings(
    algorithm="lamb",
    learning_rate=0.003,
    beta1=0.8,
    beta2=0.95,
    epsilon=1e-5,
    weight_decay=0.07,
    warmup_steps=0,
    decay_steps=9,
)


@pytest.fixture(scope="module", params=["plain", "fused"])
def ends(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, start_ranks: Callable[..., None]
) -> list[dict[bool, Any]]:
    if request.param == "fused" and find_spec("triton") is None:
        pytest.skip("Triton is not installed")
    folder = tmp_path_factory.mktemp("sharding")
    outs = [folder / f"{rank}.pt" for rank in range(RANKS)]
    arguments = [(folder / "group", rank, RANKS, out) for rank, out in enumerate(outs)]
    if request.param == "plain":
        start_ranks(WORKER, arguments)
        return [torch.load(out) for out in outs]
    interpreted_ranks.start(WORKER, arguments)
    return [torch.load(out) for out in outs]


@pytest.mark.slow
@pytest.mark.parametrize("overflows", [False, True])
def test_weights_equal_lambs_on_all_ranks(ends: list[dict[bool, Any]], overflows: bool) -> None:
    for mine in ends:
        found = mine[overflows]
        assert all(w.isfinite().all() for w in found["plain"])
        assert all(torch.equal(a, b) for a, b in zip(found["shared"], found["plain"], strict=True))
        assert all(torch.equal(a, b) for a, b in zip(found["shared"], ends[0][overflows]["plain"], strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("overflows", [False, True])
def test_rank_has_state_only_for_the_tensors_it_updates(ends: list[dict[bool, Any]], overflows: bool) -> None:
    """Parameters 1 and 5 are small and updated on all ranks; 0, 2, 3 and 4 are updated on one rank each."""
    own = [sorted(mine[overflows]["own state"]["state"]) for mine in ends]
    assert all({1, 5} <= set(numbers) for numbers in own)
    assert sorted(number for numbers in own for number in set(numbers) - {1, 5}) == [0, 2, 3, 4]
    assert [0, 1, 5] in own  # the rank of the largest parameter has no other


@pytest.mark.slow
@pytest.mark.parametrize("overflows", [False, True])
def test_moving_averages_equal_lambs(ends: list[dict[bool, Any]], overflows: bool) -> None:
    for mine in ends:
        plain, own = mine[overflows]["plain state"], mine[overflows]["own state"]
        for number, state in own["state"].items():
            assert state.keys() == plain["state"][number].keys()
            assert all(torch.equal(value, plain["state"][number][key]) for key, value in state.items())
        for one, other in zip(plain["param_groups"], own["param_groups"], strict=True):
            assert one == other


@pytest.mark.parametrize(
    ("least", "ranks", "kind"),
    [(256, 255, Lamb), (256, 256, ShardedLamb), (1, 1, ShardedLamb), (None, 4096, Lamb)],
)
def test_sharding_starts_at_the_configured_number_of_ranks(
    least: int | None, ranks: int, kind: type, processes: Processes, monkeypatch: pytest.MonkeyPatch, make_model: Any
) -> None:
    monkeypatch.setattr(build.dist, "get_world_size", lambda: ranks)
    optimizer = build_optimizer(make_model(), SETTINGS.model_copy(update={"sharded_from": least}))
    assert type(optimizer) is kind


def test_adamw_is_never_sharded(processes: Processes, monkeypatch: pytest.MonkeyPatch, make_model: Any) -> None:
    monkeypatch.setattr(dist, "get_world_size", lambda: 1000)
    assert type(build_optimizer(make_model(), SETTINGS.model_copy(update={"algorithm": "adamw"}))) is torch.optim.AdamW
