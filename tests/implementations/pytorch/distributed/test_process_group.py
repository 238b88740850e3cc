"""Ranks that start again meet where nobody has been before, whatever their predecessors have left behind.

Two and four processes: loss and gradients of a global batch are the same over any number of ranks.
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
from implementations.pytorch.model.bert import BertForPreTraining, Making
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


def meet(ranks: int, delays: dict[int, float] | None = None) -> list[str]:
    places = [""] * ranks

    def come(rank: int) -> None:
        time.sleep((delays or {}).get(rank, 0.0))
        places[rank] = rendezvous_prefix(run_store(SOON), rank, ranks, SOON)

    threads = [threading.Thread(target=come, args=(rank,)) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return places


@pytest.mark.parametrize("late", [0, 1, 2])
def test_every_attempt_has_a_place_of_its_own(server: Any, late: int) -> None:
    """Whoever comes late finds the words of the attempt before, and so do those who came before."""
    places = [meet(3, {late: 0.3} if attempt else None) for attempt in range(3)]
    assert all(len(set(place)) == 1 for place in places)
    assert len({place[0] for place in places}) == 3


def test_an_attempt_that_not_all_have_come_to_disturbs_no_later_one(server: Any) -> None:
    first = meet(2)
    with pytest.raises(WorkError, match="some rank has not come within"):
        rendezvous_prefix(run_store(SOON), 0, 2, timedelta(seconds=0.3))
    with pytest.raises(WorkError, match="rank 0 has not come within"):
        rendezvous_prefix(run_store(SOON), 1, 2, timedelta(seconds=0.3))
    second = meet(2, {0: 0.2})
    assert len(set(second)) == 1 and second[0] != first[0]


def test_a_single_rank_meets_nobody(server: Any) -> None:
    assert meet(1)[0] != meet(1)[0]


def test_without_torchrun_there_is_no_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TORCHELASTIC_USE_AGENT_STORE", raising=False)
    assert run_store(SOON) is None


ROOT = Path(__file__).resolve().parents[4]
WORKER = Path(__file__).with_name("rank_worker.py")
BATCH, SEED = 16, 7
RANKS = (1, 2, 4)
STRATEGIES = ("padded", "random", "exchanged", "packed", "indexed", "indexed free")  # the others draw other samples
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
    """What every rank ends with, by number of ranks, rank and configuration; and the folder."""
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
    """Sums and gradients of the global batch, by plain autograd."""
    store = SampleStore([ends[1] / "samples.h5"])
    whole = collate([store.read(int(i)) for i in Sampler(len(store), SEED).samples(0, BATCH)])
    torch.manual_seed(0)
    model = BertForPreTraining(small, vocabulary, dropout_probability=0.0, making=Making(attention="padded"))
    sums = loss_sums(model(whole), whole)
    names = [name for name, _ in model.named_parameters()]
    gradients = torch.autograd.grad(sums.mean(whole.masked, BATCH), [*model.parameters()])
    return [sums.masked_lm.item(), sums.next_sentence.item()], dict(zip(names, gradients, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize(("balancing", "accumulation"), WAYS)
def test_loss_and_gradients_do_not_depend_on_how_a_batch_is_shared_out(
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
def test_ranks_stay_alike(ends: tuple[Ends, Path], number: int) -> None:
    for ranks in RANKS[1:]:
        first, *others = (ends[0][ranks][rank][number]["parameters"] for rank in range(ranks))
        assert all(torch.equal(first[name], other[name]) for other in others for name in first)


@pytest.mark.slow
def test_all_know_the_greatest_number(ends: tuple[Ends, Path]) -> None:
    assert [ends[0][2][rank][0]["most"] for rank in range(2)] == [3, 3]
    assert ends[0][1][0][0]["most"] == 0


@pytest.mark.slow
def test_per_rank_is_the_mean_of_the_ranks_means(
    ends: tuple[Ends, Path], small: Size, vocabulary: int, relative_error: Callable[[Tensor, Tensor], float]
) -> None:
    store = SampleStore([ends[1] / "samples.h5"])
    drawn = Sampler(len(store), SEED).samples(0, BATCH)
    torch.manual_seed(0)
    model = BertForPreTraining(small, vocabulary, dropout_probability=0.0, making=Making(attention="padded"))
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
def test_the_global_norm_is_clipped(ends: tuple[Ends, Path], expected: tuple[list[float], dict[str, Tensor]]) -> None:
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


def test_totals_of_one_process_are_its_values(processes: Processes) -> None:
    assert processes.total([1.5, 2**-40, 3e15 + 0.5]) == [1.5, 2**-40, 3e15 + 0.5]
    assert processes.first
    assert not Processes(1, 2, processes.device).first


def test_a_bound_process_takes_the_threads_that_its_launcher_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """It sees its own cores alone, and would share those out again."""
    config = load_system("laptop", settings=["launch.threads_per_process=3"])
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    assert _num_threads(config) == 5
    for unset in ("", "4,2"):
        monkeypatch.setenv("OMP_NUM_THREADS", unset)
        assert _num_threads(config) == 3


JOINING = """
import torch, torch.distributed as dist
from implementations.pytorch.distributed.process_group import joined
from podium.config.load import load_system

config = load_system("laptop")
launch = config.launch.model_copy(update={"threads_per_process": 3})
with joined(config.model_copy(update={"launch": launch})) as here:
    assert (here.rank, here.ranks, str(here.device)) == (0, 1, "cpu")
    assert (torch.get_num_threads(), dist.get_backend()) == (3, "gloo")
assert not dist.is_initialized()
"""


def test_joining_gives_rank_device_and_threads_and_leaves_again(
    start_ranks: Callable[..., None], tmp_path: Path
) -> None:
    program = tmp_path / "joining.py"
    program.write_text(JOINING, encoding="utf-8")
    ours = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "OMP_NUM_THREADS": ""}
    start_ranks(program, [[]], [ours])
