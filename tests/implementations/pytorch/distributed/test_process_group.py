"""Rendezvous: restarted ranks agree on a new key prefix, whatever earlier attempts have left in the store.

Loss and gradients of a global batch are the same with one, two and four ranks.
"""

import json
import pickle
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from benchmarks.bert.sizes import Size
from benchmarks.bert.store import SampleStore
from implementations.pytorch.data.batch import collate
from implementations.pytorch.distributed.process_group import Processes, _num_threads, rendezvous_prefix, run_store
from implementations.pytorch.model.bert import BertForPreTraining, ModelOptions
from implementations.pytorch.model.loss import loss_sums
from podium.config.load import load_system
from podium.config.schema import Clipping, RunConfig
from podium.core.errors import WorkError
from podium.planning.samplers import Sampler

SOON = timedelta(seconds=20)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """torchrun's store."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # type: ignore[attr-defined]
    environment = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port), "TORCHELASTIC_USE_AGENT_STORE": "True"}
    for key, value in environment.items():
        monkeypatch.setenv(key, value)
    yield store


def rendezvous(ranks: int, delays: dict[int, float] | None = None) -> list[str]:
    prefixes = [""] * ranks

    def arrive(rank: int) -> None:
        time.sleep((delays or {}).get(rank, 0.0))
        prefixes[rank] = rendezvous_prefix(run_store(SOON), rank, ranks, SOON)

    threads = [threading.Thread(target=arrive, args=(rank,)) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return prefixes


@pytest.mark.parametrize("late", [0, 1, 2])
def test_every_attempt_has_a_new_key_prefix(server: Any, late: int) -> None:
    """A late rank finds the keys of the attempt before, and so do the ranks that arrive earlier."""
    prefixes = [rendezvous(3, {late: 0.3} if attempt else None) for attempt in range(3)]
    assert all(len(set(place)) == 1 for place in prefixes)
    assert len({place[0] for place in prefixes}) == 3


def test_incomplete_attempt_does_not_affect_later_ones(server: Any) -> None:
    first = rendezvous(2)
    with pytest.raises(WorkError, match="at least one rank did not arrive within"):
        rendezvous_prefix(run_store(SOON), 0, 2, timedelta(seconds=0.3))
    with pytest.raises(WorkError, match="rank 0 did not arrive within"):
        rendezvous_prefix(run_store(SOON), 1, 2, timedelta(seconds=0.3))
    second = rendezvous(2, {0: 0.2})
    assert len(set(second)) == 1 and second[0] != first[0]


def test_single_rank_has_a_new_key_prefix_per_attempt(server: Any) -> None:
    assert rendezvous(1)[0] != rendezvous(1)[0]


def test_without_torchrun_there_is_no_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TORCHELASTIC_USE_AGENT_STORE", raising=False)
    assert run_store(SOON) is None


ROOT = Path(__file__).resolve().parents[4]
WORKER = Path(__file__).with_name("rank_worker.py")
BATCH, SEED = 16, 7
RANKS = (1, 2, 4)
STRATEGIES = (
    "padded",
    "random",
    "exchanged",
    "packed",
    "indexed",
    "indexed free",
)  # the other strategies draw other samples
WAYS = [(balancing, accumulation) for balancing in STRATEGIES for accumulation in (1, 4)]
CONFIGURATIONS = [(*way, "global", None) for way in WAYS] + [
    ("random", 2, "per_rank", None),
    ("indexed", 2, "global", 0.5),
]


Ends = dict[int, list[list[dict[str, Any]]]]


@pytest.fixture(scope="module")
def ends(
    tmp_path_factory: pytest.TempPathFactory,
    write_store: Callable[..., Path],
    make_config: Callable[..., RunConfig],
    small: Size,
    vocabulary: int,
    start_ranks: Callable[..., None],
) -> tuple[Ends, Path]:
    """The results of every rank, by number of ranks, rank and configuration; and the folder."""
    folder = tmp_path_factory.mktemp("processes")
    shard = write_store(folder, np.random.default_rng(0).integers(5, 90, 30))
    found: Ends = {}
    for ranks in RANKS:
        configs = [
            make_config(
                ranks,
                balancing=balancing.split()[0],
                balancing_counts="free" if "free" in balancing else "equal",
                attention="padded" if balancing == "padded" else "grouped",
                global_batch_size=BATCH,
                gradient_accumulation_steps=accumulation,
                loss=loss,
                clipping=None if max_norm is None else Clipping(max_norm=max_norm),
                optimizer={"algorithm": "lamb", "warmup_steps": 0},
            )
            for balancing, accumulation, loss, max_norm in CONFIGURATIONS
        ]
        mine = folder / str(ranks)
        mine.mkdir()
        (mine / "configurations").write_bytes(pickle.dumps((configs, small, vocabulary)))
        outs = [mine / f"{rank}.pt" for rank in range(ranks)]
        configurations = mine / "configurations"
        start_ranks(WORKER, [(shard, mine / "group", r, ranks, configurations, out) for r, out in enumerate(outs)])
        found[ranks] = [torch.load(out, weights_only=False) for out in outs]
    return found, folder


@pytest.fixture(scope="module")
def expected(ends: tuple[Ends, Path], small: Size, vocabulary: int) -> tuple[list[float], dict[str, Tensor]]:
    """Loss sums and gradients of the global batch, computed by autograd in one process."""
    store = SampleStore([ends[1] / "samples.h5"])
    whole = collate([store.read(int(i)) for i in Sampler(len(store), SEED).samples(0, BATCH)])
    torch.manual_seed(0)
    model = BertForPreTraining(
        small, vocabulary, dropout_probability=0.0, model_options=ModelOptions(attention="padded")
    )
    sums = loss_sums(model(whole), whole)
    names = [name for name, _ in model.named_parameters()]
    gradients = torch.autograd.grad(sums.mean(whole.masked, BATCH), [*model.parameters()])
    return [sums.masked_lm.item(), sums.next_sentence.item()], dict(zip(names, gradients, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize(("balancing", "accumulation"), WAYS)
def test_loss_and_gradients_do_not_depend_on_the_assignment(
    ends: tuple[Ends, Path],
    expected: tuple[list[float], dict[str, Tensor]],
    ranks: int,
    balancing: str,
    accumulation: int,
    relative_error: Callable[[Tensor, Tensor], float],
) -> None:
    number = CONFIGURATIONS.index((balancing, accumulation, "global", None))
    sums, gradients = expected
    for rank in range(ranks):
        found = ends[0][ranks][rank][number]
        assert found["sums"] == pytest.approx(sums, rel=1e-5)
        assert found["gradients"].keys() == gradients.keys()
        for name in gradients:
            assert relative_error(found["gradients"][name], gradients[name]) < 1e-5, name


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(CONFIGURATIONS)))
def test_parameters_are_identical_on_all_ranks(ends: tuple[Ends, Path], number: int) -> None:
    for ranks in RANKS[1:]:
        first, *others = (ends[0][ranks][rank][number]["parameters"] for rank in range(ranks))
        assert all(torch.equal(first[name], other[name]) for other in others for name in first)


@pytest.mark.slow
def test_maximum_is_known_to_all_ranks(ends: tuple[Ends, Path]) -> None:
    assert [ends[0][2][rank][0]["most"] for rank in range(2)] == [3, 3]
    assert ends[0][1][0][0]["most"] == 0


@pytest.mark.slow
def test_per_rank_loss_is_the_mean_of_the_ranks_means(
    ends: tuple[Ends, Path], small: Size, vocabulary: int, relative_error: Callable[[Tensor, Tensor], float]
) -> None:
    store = SampleStore([ends[1] / "samples.h5"])
    drawn = Sampler(len(store), SEED).samples(0, BATCH)
    torch.manual_seed(0)
    model = BertForPreTraining(
        small, vocabulary, dropout_probability=0.0, model_options=ModelOptions(attention="padded")
    )
    means = []
    for micro_batch in drawn.reshape(4, 4):
        batch = collate([store.read(int(i)) for i in micro_batch])
        means.append(loss_sums(model(batch), batch).mean(batch.masked, 4))
    gradients = torch.autograd.grad(torch.stack(means).mean(), [*model.parameters()])
    found = ends[0][2][0][CONFIGURATIONS.index(("random", 2, "per_rank", None))]["gradients"]
    for name, gradient in zip(found, gradients, strict=True):
        assert relative_error(found[name], gradient) < 1e-5, name
    whole = ends[0][2][0][CONFIGURATIONS.index(("random", 4, "global", None))]["gradients"]
    assert any(relative_error(found[name], whole[name]) > 1e-3 for name in found)


@pytest.mark.slow
def test_clipping_uses_the_global_norm(
    ends: tuple[Ends, Path], expected: tuple[list[float], dict[str, Tensor]]
) -> None:
    number = CONFIGURATIONS.index(("indexed", 2, "global", 0.5))
    norm = float(sum(gradient.double().square().sum() for gradient in expected[1].values())) ** 0.5
    for ranks in (1, 2):
        found = ends[0][ranks][0][number]
        assert found["norm"] == pytest.approx(norm, rel=1e-5)
        clipped = float(sum(gradient.double().square().sum() for gradient in found["gradients"].values())) ** 0.5
        assert clipped == pytest.approx(0.5, rel=1e-4)


@pytest.mark.slow
def test_metrics_are_summed_over_ranks(
    ends: tuple[Ends, Path], expected: tuple[list[float], dict[str, Tensor]]
) -> None:
    masked = None
    for ranks in (1, 2):
        text = (ends[1] / str(ranks) / "metrics.jsonl").read_text(encoding="utf-8")
        lines = [json.loads(line) for line in text.splitlines()]
        assert [line["step"] for line in lines] == list(range(1, len(CONFIGURATIONS) + 1))
        for line in lines:
            assert line["next_sentence_loss"] == pytest.approx(expected[0][1] / BATCH, rel=1e-5)
            masked = masked or expected[0][0] / line["masked_lm_loss"]
            assert line["masked_lm_loss"] == pytest.approx(expected[0][0] / masked, rel=1e-5)
    assert masked == pytest.approx(round(masked or 0), rel=1e-5)


def test_sum_over_one_process_is_its_value(processes: Processes) -> None:
    assert processes.all_reduce_sum([1.5, 2**-40, 3e15 + 0.5]) == [1.5, 2**-40, 3e15 + 0.5]
    assert processes.first
    assert not Processes(1, 2, processes.device).first


def test_number_of_threads_is_the_launchers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process with CPU affinity sees only its own cores, and would divide those again."""
    config = load_system("laptop", settings=["launch.threads_per_process=3"])
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    assert _num_threads(config) == 5
    for unset in ("", "4,2"):
        monkeypatch.setenv("OMP_NUM_THREADS", unset)
        assert _num_threads(config) == 3


INIT_WORKER = Path(__file__).with_name("init_worker.py")


def test_process_group_is_initialised_and_destroyed(start_ranks: Callable[..., None]) -> None:
    environment_of_rank = {
        "RANK": "0",
        "WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "0",
        "OMP_NUM_THREADS": "",
    }
    start_ranks(INIT_WORKER, [[]], [environment_of_rank])
