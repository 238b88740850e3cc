"""Ranks that do not have the same data do not train: the same plain error on all names who differs, and in what."""

import json
import shutil
import socket
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from benchmarks.bert.manifest import MANIFEST
from benchmarks.bert.preparation.prepare import prepare
from benchmarks.bert.preparation.tokenization import SPECIAL_WORDS
from benchmarks.bert.samples import gather
from benchmarks.bert.shard import Shard, write_shard
from benchmarks.bert.store import SampleStore, renew_manifest
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
ADVICE = "; have the same shards on every node, and find a wrong one with `podium data verify`"


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with train/ of three shards, eval/ of one, and vocab.txt."""
    folder = tmp_path_factory.mktemp("prepared")
    (folder / "vocab.txt").write_text("\n".join([*SPECIAL_WORDS, *"abcdefg"]), encoding="utf-8")
    for number, name in enumerate(("one", "two", "three", "eval", "other/two"), start=3):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(f"{' '.join('abcdefg'[:number])}\ne f\n\ng a\nb c\n", encoding="utf-8")
    prepare([folder / name for name in ("one", "two", "three")], folder / "vocab.txt", folder / "train")
    prepare([folder / "eval"], folder / "vocab.txt", folder / "evaluation")
    prepare([folder / "other" / "two"], folder / "vocab.txt", folder / "swapped")
    return folder


@pytest.fixture
def node(prepared: Path, tmp_path: Path) -> Callable[[str], list[Path]]:
    """(name) → training and evaluation store of a node of this name, to be changed."""

    def make(name: str) -> list[Path]:
        stores = ("train", "evaluation")
        return [shutil.copytree(prepared / store, tmp_path / name / store) for store in stores]

    return make


@pytest.fixture
def together(start_ranks: Callable[..., None], prepared: Path, tmp_path: Path) -> Callable[[Sequence[list[Path]]], str]:
    """(stores of each rank) → what every rank has said, which is the same."""

    def start(folders: Sequence[list[Path]]) -> str:
        ranks = range(len(folders))
        out = [tmp_path / f"{rank}.txt" for rank in ranks]
        (tmp_path / "group").unlink(missing_ok=True)
        arguments = [
            (tmp_path / "group", rank, len(ranks), prepared / "vocab.txt", out[rank], *folders[rank]) for rank in ranks
        ]
        start_ranks(WORKER, arguments)
        (said,) = {path.read_text(encoding="utf-8") for path in out}
        return said

    return start


Node = Callable[[str], list[Path]]
Together = Callable[[Sequence[list[Path]]], str]


def test_ranks_with_the_same_data_open_it(node: Node, together: Together, prepared: Path) -> None:
    """In two folders, one of them without a manifest."""
    here, there = node("a"), node("b")
    (there[0] / MANIFEST).unlink()
    samples = [sum(s["samples"] for s in json.loads((f / MANIFEST).read_text())["shards"]) for f in here]
    assert together([here, there]) == f"12 words, {samples[0]} and {samples[1]} samples"


def test_a_rank_that_lacks_a_shard_is_named(node: Node, together: Together) -> None:
    here, there = node("a"), node("b")
    (there[0] / MANIFEST).unlink()
    (there[0] / "three.h5").unlink()
    assert together([here, there]) == (
        f"WorkError: data.store is not the same on all ranks: rank 1 on {HOST}: {there[0]}/three.h5 is missing, "
        f"rank 0 on {HOST} has it{ADVICE}"
    )


def test_the_majority_is_right_about_a_shard_with_other_content(node: Node, together: Together, prepared: Path) -> None:
    here, there = node("a"), node("b")
    for place in (here, there):
        (place[0] / MANIFEST).unlink()
    shutil.copy(prepared / "swapped" / "two.h5", here[0])
    said = together([here, there, there])
    start = f"WorkError: data.store is not the same on all ranks: rank 0 on {HOST}: {here[0]}/two.h5: its "
    assert said.startswith(start) and f"rank 1 on {HOST} has" in said and said.endswith(ADVICE)


def test_a_rank_whose_manifest_lists_a_shard_that_is_gone_stops_all(node: Node, together: Together) -> None:
    here, there = node("a"), node("b")
    (there[1] / "eval.h5").rename(there[1] / "more.h5")
    said = together([here, there])
    assert said.startswith(
        f"WorkError: not every rank can open the data: rank 1 on {HOST}: {there[1]}/eval.h5 is missing, "
        f"manifest.json has it (1 more difference); copy the missing"
    )


def test_what_is_wrong_everywhere_is_said_as_it_is(node: Node, prepared: Path, processes: Processes) -> None:
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


def test_ranks_of_a_node_are_named_together() -> None:
    assert _format_ranks([3]) == "rank 3"
    assert _format_ranks([0, 2, 3, 4, 7]) == "ranks 0, 2 to 4, 7"
    many = _group_by_ranks(["", *"aabbcdef"], ["n", *"mmnnopqr"])
    assert many == "ranks 1 to 2 on m: a; ranks 3 to 4 on n: b; rank 5 on o: c; rank 6 on p: d; and 2 more nodes"


def test_ranks_compare_what_they_open_with_what_was_verified(node: Node, together: Together, tmp_path: Path) -> None:
    """All have the same data, and a shard of it was replaced after `podium run` had verified it."""
    stores = node("a")
    keys = ("data.store", "data.evaluation_store")
    verified = RunData({key: SampleStore(folder).manifest for key, folder in zip(keys, stores, strict=True)})
    write_run_data(tmp_path / "data.json", verified)
    assert "samples" in together([stores, stores])
    shard = Shard(stores[0] / "two.h5")
    write_shard(shard.path, gather(shard.samples, np.arange(len(shard) - 1)), shard.origin)
    renew_manifest(stores[0])
    said = together([stores, stores])
    start = f"WorkError: data.store: {shard.path}: its samples is {len(shard) - 1}, what was verified has {len(shard)};"
    assert said == f"{start} the data was changed after it was verified: put it back, and start again"
    (tmp_path / "data.json").write_text("[]", encoding="utf-8")
    assert f"WorkError: {tmp_path}/data.json: cannot be used (its format is not" in together([stores, stores])


def test_no_sample_is_read_before_the_clock_starts(
    warm_project: Path, tmp_path: Path, start_ranks: Callable[..., None], rank_environments: Callable[[int], list]
) -> None:
    """What the caches were cleared of stays out of them: between init_start and run_start ranks read metadata."""
    (resolved,) = (warm_project / "runs").rglob("config.yaml")
    folder, notes = RunFolder(tmp_path / "run"), tmp_path / "notes"
    folder.path.mkdir()
    arguments = [(notes, resolved, folder.path, "--caches-cleared")]
    start_ranks(WORKER.parents[1] / "order_worker.py", arguments, rank_environments(1))
    noted = notes.read_text(encoding="utf-8").split()
    assert noted[:2] == ["submission", "run_starts"]
    assert {"mapped_file", "will_need"} == set(noted[2:])


def test_training_stops_before_the_clock_starts(
    warm_project: Path, tmp_path: Path, start_ranks: Callable[..., None], rank_environments: Callable[[int], list]
) -> None:
    """Two ranks of a run as torchrun starts them, of which the second has a store without its last shard."""
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
    failure = folder.told_failure(final_only=True)
    assert isinstance(failure, WorkError)
    assert str(failure) == (
        f"data.store is not the same on all ranks: rank 1 on {HOST}: {last} is missing, rank 0 on {HOST} has it{ADVICE}"
    )
    log = folder.log.read_text(encoding="utf-8")
    assert '"init_start"' in log and "run_start" not in log
