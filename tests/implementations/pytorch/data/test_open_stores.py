"""A run with different data on its ranks does not start; all ranks raise an error that names the ranks that differ."""

import json
import shutil
import socket
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from benchmarks.bert.manifest import MANIFEST
from benchmarks.bert.preparation.prepare import prepare
from benchmarks.bert.preparation.tokenization import ALL_SPECIAL_TOKENS
from benchmarks.bert.samples import gather
from benchmarks.bert.shard import Shard, write_shard
from benchmarks.bert.store import SampleStore, update_manifest
from implementations.pytorch.data.open_stores import _format_ranks, _group_by_ranks, open_stores
from implementations.pytorch.distributed.process_group import Processes
from podium.config.load import load_resolved, load_system, write_resolved
from podium.config.run_data import RunData, write_run_data
from podium.config.run_folder import RunFolder
from podium.config.schema import DataSettings
from podium.core.errors import UsageError, WorkError
from podium.planning.costs import with_measured_costs

WORKER = Path(__file__).with_name("stores_worker.py")
HOST = socket.gethostname()
ADVICE = "; copy the same shards to every node, and find a damaged one with `podium data verify`"


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with train/ of three shards, eval/ of one, and vocab.txt."""
    folder = tmp_path_factory.mktemp("prepared")
    (folder / "vocab.txt").write_text("\n".join([*ALL_SPECIAL_TOKENS, *"abcdefg"]), encoding="utf-8")
    for number, name in enumerate(("one", "two", "three", "eval", "other/two"), start=3):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(f"{' '.join('abcdefg'[:number])}\ne f\n\ng a\nb c\n", encoding="utf-8")
    prepare([folder / name for name in ("one", "two", "three")], folder / "vocab.txt", folder / "train")
    prepare([folder / "eval"], folder / "vocab.txt", folder / "evaluation")
    prepare([folder / "other" / "two"], folder / "vocab.txt", folder / "swapped")
    return folder


@pytest.fixture
def node(prepared: Path, tmp_path: Path) -> Callable[[str], list[Path]]:
    """(name) → copies of the training and the evaluation store for a node with this name."""

    def make(name: str) -> list[Path]:
        stores = ("train", "evaluation")
        return [shutil.copytree(prepared / store, tmp_path / name / store) for store in stores]

    return make


@pytest.fixture
def open_on_all_ranks(
    start_ranks: Callable[..., None], prepared: Path, tmp_path: Path
) -> Callable[[Sequence[list[Path]]], str]:
    """(stores of each rank) → the output of all ranks, which is the same on each."""

    def start(folders: Sequence[list[Path]]) -> str:
        ranks = range(len(folders))
        out = [tmp_path / f"{rank}.txt" for rank in ranks]
        (tmp_path / "group").unlink(missing_ok=True)
        arguments = [
            (tmp_path / "group", rank, len(ranks), prepared / "vocab.txt", out[rank], *folders[rank]) for rank in ranks
        ]
        start_ranks(WORKER, arguments)
        (message,) = {path.read_text(encoding="utf-8") for path in out}
        return message

    return start


Node = Callable[[str], list[Path]]
OpenOnAllRanks = Callable[[Sequence[list[Path]]], str]


def test_ranks_with_the_same_data_open_their_stores(
    node: Node, open_on_all_ranks: OpenOnAllRanks, prepared: Path
) -> None:
    """One of the two folders has no manifest."""
    here, there = node("a"), node("b")
    (there[0] / MANIFEST).unlink()
    samples = [sum(s["samples"] for s in json.loads((f / MANIFEST).read_text())["shards"]) for f in here]
    assert open_on_all_ranks([here, there]) == f"vocabulary of 12, {samples[0]} and {samples[1]} samples"


def test_rank_with_a_missing_shard_is_named(node: Node, open_on_all_ranks: OpenOnAllRanks) -> None:
    here, there = node("a"), node("b")
    (there[0] / MANIFEST).unlink()
    (there[0] / "three.h5").unlink()
    assert open_on_all_ranks([here, there]) == (
        f"WorkError: data.store is not the same on all ranks: rank 1 on {HOST}: {there[0]}/three.h5 is missing, "
        f"rank 0 on {HOST} has it{ADVICE}"
    )


def test_rank_that_differs_from_the_majority_is_named(
    node: Node, open_on_all_ranks: OpenOnAllRanks, prepared: Path
) -> None:
    here, there = node("a"), node("b")
    for place in (here, there):
        (place[0] / MANIFEST).unlink()
    shutil.copy(prepared / "swapped" / "two.h5", here[0])
    message = open_on_all_ranks([here, there, there])
    start = f"WorkError: data.store is not the same on all ranks: rank 0 on {HOST}: {here[0]}/two.h5: its "
    assert message.startswith(start) and f"rank 1 on {HOST} has" in message and message.endswith(ADVICE)


def test_missing_shard_of_a_manifest_is_an_error_on_all_ranks(node: Node, open_on_all_ranks: OpenOnAllRanks) -> None:
    here, there = node("a"), node("b")
    (there[1] / "eval.h5").rename(there[1] / "more.h5")
    message = open_on_all_ranks([here, there])
    assert message.startswith(
        f"WorkError: not every rank can open the data: rank 1 on {HOST}: {there[1]}/eval.h5 is missing, "
        f"manifest.json has it (1 more difference); copy the missing"
    )


def test_error_common_to_all_ranks_is_raised_unchanged(node: Node, prepared: Path, processes: Processes) -> None:
    train, evaluation = node("a")
    named = {"store": train, "evaluation_store": evaluation}
    with pytest.raises(UsageError, match=r"none: there is no such folder of shards; make it with"):
        open_stores(named | {"store": train / "none"}, prepared / "vocab.txt", processes)
    other = train / "vocab.txt"
    other.write_text((prepared / "vocab.txt").read_text(encoding="utf-8") + "\nx", encoding="utf-8")
    with pytest.raises(UsageError, match="was made with another vocabulary"):
        open_stores(named, other, processes)
    (train / "one.h5").unlink()
    with pytest.raises(WorkError, match=r"one\.h5 is missing, manifest\.json has it; copy"):
        open_stores(named, prepared / "vocab.txt", processes)


def test_ranks_of_a_node_are_grouped_in_messages() -> None:
    assert _format_ranks([3]) == "rank 3"
    assert _format_ranks([0, 2, 3, 4, 7]) == "ranks 0, 2 to 4, 7"
    many = _group_by_ranks(["", *"aabbcdef"], ["n", *"mmnnopqr"])
    assert many == "ranks 1 to 2 on m: a; ranks 3 to 4 on n: b; rank 5 on o: c; rank 6 on p: d; and 2 more nodes"


def test_stores_are_compared_with_the_verified_data(
    node: Node, open_on_all_ranks: OpenOnAllRanks, tmp_path: Path
) -> None:
    """All ranks have the same data, but a shard was replaced after `podium run` had verified it."""
    stores = node("a")
    keys = ("data.store", "data.evaluation_store")
    verified = RunData({key: SampleStore(folder).manifest for key, folder in zip(keys, stores, strict=True)})
    write_run_data(tmp_path / "data.json", verified)
    assert "samples" in open_on_all_ranks([stores, stores])
    shard = Shard(stores[0] / "two.h5")
    write_shard(shard.path, gather(shard.samples, np.arange(len(shard) - 1)), shard.origin)
    update_manifest(stores[0])
    message = open_on_all_ranks([stores, stores])
    start = f"WorkError: data.store: {shard.path}: its samples is {len(shard) - 1}, what was verified has {len(shard)};"
    assert message == f"{start} the data was changed after it was verified: restore it and start again"
    (tmp_path / "data.json").write_text("[]", encoding="utf-8")
    assert f"WorkError: {tmp_path}/data.json: cannot be used (its format is not" in open_on_all_ranks([stores, stores])


def test_no_sample_is_read_before_the_clock_starts(
    warm_project: Path, tmp_path: Path, start_ranks: Callable[..., None], rank_environments: Callable[[int], list]
) -> None:
    """The page cache stays cleared: between init_start and run_start ranks read only metadata."""
    (resolved,) = (warm_project / "runs").rglob("config.yaml")
    folder, notes = RunFolder(tmp_path / "run"), tmp_path / "notes"
    folder.path.mkdir()
    arguments = [(notes, resolved, folder.path, "--caches-cleared")]
    start_ranks(WORKER.parents[1] / "order_worker.py", arguments, rank_environments(1))
    noted = notes.read_text(encoding="utf-8").split()
    assert noted[:2] == ["log_submission", "log_run_start"]
    assert {"map_file", "prefetch"} == set(noted[2:])


def test_training_stops_before_the_clock_starts(
    warm_project: Path, tmp_path: Path, start_ranks: Callable[..., None], rank_environments: Callable[[int], list]
) -> None:
    """Two ranks are started as by torchrun; the store of the second lacks its last shard."""
    (resolved,) = (warm_project / "runs").rglob("config.yaml")
    data = load_resolved(resolved).data
    assert data.store is not None
    lacking = tmp_path / "lacking"
    shutil.copytree(data.store, lacking)
    (lacking / MANIFEST).unlink()
    *_, last = sorted(lacking.glob("*.h5"))
    last.unlink()
    config = with_measured_costs(load_system("laptop", "indexed", ["launch.processes_per_node=2", "seed=3"]))
    folder, configs = RunFolder(tmp_path / "run"), [tmp_path / "0.yaml", tmp_path / "1.yaml"]
    folder.path.mkdir()
    for path, store in zip(configs, (data.store, lacking), strict=True):
        own = DataSettings(store=store, evaluation_store=data.evaluation_store, vocabulary=data.vocabulary)
        write_resolved(config.model_copy(update={"data": own}), path)
    arguments = [(path, folder.path, "--caches-cleared") for path in configs]
    start_ranks("implementations.pytorch.train", arguments, rank_environments(2), 1)
    failure = folder.read_failure(final_only=True)
    assert isinstance(failure, WorkError)
    assert str(failure) == (
        f"data.store is not the same on all ranks: rank 1 on {HOST}: {last} is missing, rank 0 on {HOST} has it{ADVICE}"
    )
    log = folder.log.read_text(encoding="utf-8")
    assert '"init_start"' in log and "run_start" not in log
