"""`podium rehearse`: its synthetic stores, errors and output."""

import errno
import json
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from benchmarks.bert import rehearsal_store as rehearsal_store_module
from benchmarks.bert.length_index import FILE
from benchmarks.bert.lengths import wikipedia_histogram
from benchmarks.bert.manifest import MANIFEST, MARKER
from benchmarks.bert.preparation.tokenization import Vocabulary
from benchmarks.bert.rehearsal_store import MAX_SAMPLES, rehearsal_store, rehearsal_vocabulary
from benchmarks.bert.store import SampleStore
from podium.cli.main import app
from podium.config.load import load_resolved, load_system
from podium.core.errors import Interrupted, UsageError, WorkError
from podium.core.locks import folder_lock
from podium.run import rehearsal
from podium.run.rehearsal import with_synthetic_data

PART = {"seconds": 4.0, "cpu_seconds": 2.0, "own_bytes": 200_000_000}
FOUND: dict[str, Any] = {
    "rank": 5,
    "ranks": 1024,
    "steps": 3,
    "start": {
        "parts": {"interpreter and imports": PART, "model": PART},
        "not_the_systems": ["model"],
        "seconds": 4.0,
        "cpu_seconds": 2.0,
    },
    "host": {
        "parts": {"global batch": {"median": 1.25, "least": 1.0, "greatest": 3.0, "calls": 3}},
        "milliseconds": 1.25,
    },
    "memory": {
        "own_bytes": 250_000_000,
        "file_bytes": 5 * 10**8,
        "index_bytes": 313_000_000,
        "model_bytes": 7,
        "node_bytes": 2_500_000_000,
    },
    "read": {
        "disk_bytes": 3 * 10**8,
        "store_disk_bytes": 7_340_000,
        "requested_bytes": 1000,
        "index_bytes": 5,
        "sample_bytes_a_step": 10_700.0,
    },
    "not_rehearsed": ["communication", "checkpoints"],
    "shapes": 2,
    "evaluation": {"samples": 9, "batches": 1, "ranks_without": 0},
}


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Any]:
    """The calls of the implementation's entry points: name, configuration and options."""
    calls: list[Any] = []

    def call_entry_point(implementation: str, entry: str, options: list[str]) -> dict[str, Any]:
        calls.append((f"{implementation}.{entry}", load_resolved(Path(options[0])), options[1:]))
        return FOUND

    monkeypatch.setattr(rehearsal, "call_entry_point", call_entry_point)
    monkeypatch.setattr(rehearsal, "FOLDER", tmp_path / "rehearsal")
    return calls


def test_rehearsal_has_the_systems_number_of_ranks(calls: list[Any]) -> None:
    found = CliRunner().invoke(app, ["rehearse", "dgxa100_n128", "--rank", "5", "--steps", "3", "--samples", "2000"])
    assert found.exit_code == 0, found.output
    for text in (
        "recipe presorted: rank 5 of 1,024, rehearsed",
        "1.25 ms",
        "313 MB",
        "10.7 kB a step",
        "2.5 GB",
        "7.34 MB",
    ):
        assert text in found.stdout
    ((entry, config, options),) = calls
    assert entry == "pytorch.rehearse"
    assert options == ["--rank", "5", "--steps", "3"]
    assert len(SampleStore(config.data.store)) == 2000
    assert len(SampleStore(config.data.evaluation_store)) == config.evaluation_samples == 10_000
    assert config.seed is not None


def test_json_has_all_results(calls: list[Any]) -> None:
    found = CliRunner().invoke(app, ["rehearse", "laptop", "--samples", "2000", "--json"])
    assert found.exit_code == 0, found.output
    document = json.loads(found.stdout)
    about = {"system": "laptop", "recipe": "indexed", "global_batch_size": 16}
    assert document == FOUND | about | {"samples": 2000, "stated_memory_bytes": None}


def test_rank_beyond_the_world_size_is_a_usage_error(calls: list[Any]) -> None:
    with pytest.raises(UsageError, match="--rank: found 2, allowed is 0 to 1, the ranks of laptop_2x"):
        CliRunner().invoke(app, ["rehearse", "laptop_2x", "--rank", "2"], catch_exceptions=False)
    assert not calls


def test_too_little_node_memory_exits_with_code_1(calls: list[Any]) -> None:
    system = ["rehearse", "dgxa100_n128", "--samples", "2000", "--set"]
    found = CliRunner().invoke(app, [*system, "description.host_memory_capacity=2 GB"])
    assert found.exit_code == 1
    assert "8 processes need at least 2.5 GB" in found.output
    assert CliRunner().invoke(app, [*system, "description.host_memory_capacity=1,024 GB"]).exit_code == 0


def test_parts_not_rehearsed_or_compared_are_listed(calls: list[Any]) -> None:
    found = CliRunner().invoke(app, ["rehearse", "laptop", "--samples", "2000"])
    assert found.exit_code == 0, found.output
    assert "Not rehearsed: communication, checkpoints." in found.stdout
    assert "'not stated', which is not an amount such as 1 TB" in found.stdout
    assert "16 on 1,024 ranks" in found.stdout


def test_ranks_without_evaluation_samples_are_reported(calls: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FOUND, "evaluation", {"samples": 0, "batches": 0, "ranks_without": 6384})
    found = CliRunner().invoke(app, ["rehearse", "laptop", "--samples", "2000"])
    assert "6,384 ranks have none" in found.stdout


def test_too_many_samples_are_a_usage_error(calls: list[Any], tmp_path: Path) -> None:
    command = ["rehearse", "laptop", "--samples", str(10**13)]
    with pytest.raises(UsageError, match="--samples: found 10,000,000,000,000, allowed is 1 to 626,902,612"):
        CliRunner().invoke(app, command, catch_exceptions=False)
    command = ["rehearse", "laptop", "--samples", "100", "--set", f"evaluation.samples={MAX_SAMPLES + 1}"]
    with pytest.raises(UsageError, match=r"evaluation\.samples: found 626,902,613, allowed is 1 to 626,902,612"):
        CliRunner().invoke(app, command, catch_exceptions=False)
    assert not calls and not (tmp_path / "rehearsal").exists()


def test_length_index_needs_enough_free_disk_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    vocabulary = rehearsal_vocabulary(tmp_path, 512)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=5_000_000))
    with pytest.raises(WorkError, match=r"of 3,000,000 samples needs 6\.0 MB, and it has 5\.0 MB free; make room"):
        rehearsal_store(tmp_path, 3_000_000, vocabulary)
    assert [path.name for path in tmp_path.iterdir()] == [vocabulary.name]


def test_disk_that_fills_during_the_write_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    vocabulary = rehearsal_vocabulary(tmp_path, 512)

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "touch", full)
    monkeypatch.setattr(rehearsal_store_module, "mark_unfinished", lambda _: None)
    with pytest.raises(WorkError, match="v2: the disk is full"):
        rehearsal_store(tmp_path, 700, vocabulary)
    assert [path.name for path in tmp_path.iterdir()] == [vocabulary.name]


def cut_index(store: Path) -> None:
    (store / FILE).write_bytes((store / FILE).read_bytes()[:-2])


def change_index(store: Path) -> None:
    content = (store / FILE).read_bytes()
    (store / FILE).write_bytes(bytes([content[0] ^ 1]) + content[1:])


def vocabulary_of(store: Path) -> Path:
    return store.parent / "vocabulary-512.txt"


def change_manifest(store: Path) -> None:
    text = (store / MANIFEST).read_text()
    (store / MANIFEST).write_text(text.replace(Vocabulary.read(vocabulary_of(store)).sha256, 64 * "0"))


@pytest.mark.parametrize(
    "damage",
    [
        cut_index,
        change_index,
        change_manifest,
        lambda store: (store / FILE).unlink(),
        lambda store: (store / MANIFEST).write_text("{"),
        lambda store: (store / MARKER).touch(),
        lambda store: (store / "part-000.h5").unlink(),
        lambda store: vocabulary_of(store).write_text("[PAD]\n"),
        lambda store: (shutil.rmtree(store), store.mkdir()),
    ],
)
def test_damaged_files_are_written_again(tmp_path: Path, damage: Callable[[Path], Any]) -> None:
    store = rehearsal_store(tmp_path, 700, rehearsal_vocabulary(tmp_path, 512))
    index, vocabulary = (store / FILE).read_bytes(), vocabulary_of(store).read_bytes()
    damage(store)
    assert rehearsal_store(tmp_path, 700, rehearsal_vocabulary(tmp_path, 512)) == store
    assert ((store / FILE).read_bytes(), vocabulary_of(store).read_bytes()) == (index, vocabulary)
    assert SampleStore(store).vocabulary_sha256 == Vocabulary.read(vocabulary_of(store)).sha256


@pytest.mark.parametrize("make", [Path.touch, os.mkfifo])
def test_damaged_store_that_cannot_be_removed_is_an_error(tmp_path: Path, make: Callable[[Path], None]) -> None:
    vocabulary = rehearsal_vocabulary(tmp_path, 512)
    store = rehearsal_store(tmp_path, 700, vocabulary)
    shutil.rmtree(store)
    make(store)
    with pytest.raises(WorkError, match=r"v2: is damaged, and cannot be removed .*; remove it"):
        rehearsal_store(tmp_path, 700, vocabulary)


def interrupt(*_: Any) -> None:
    raise Interrupted("interrupted")


def test_interruption_does_not_rewrite_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    vocabulary = rehearsal_vocabulary(tmp_path, 512)
    store = rehearsal_store(tmp_path, 700, vocabulary)
    inode = store.stat().st_ino
    monkeypatch.setattr(rehearsal_store_module, "SampleStore", interrupt)
    with pytest.raises(Interrupted):
        rehearsal_store(tmp_path, 700, vocabulary)
    assert store.stat().st_ino == inode


def test_interrupted_rehearsal_removes_its_files(
    calls: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, command = tmp_path / "rehearsal", ["rehearse", "laptop", "--samples", "2000"]
    with monkeypatch.context() as patch, pytest.raises(Interrupted):
        patch.setattr(rehearsal_store_module, "write_manifest", interrupt)
        CliRunner().invoke(app, command, catch_exceptions=False)
    assert [path.name for path in folder.iterdir()] == ["vocabulary-512.txt"]
    with monkeypatch.context() as patch, pytest.raises(Interrupted):
        patch.setattr(rehearsal, "call_entry_point", interrupt)
        CliRunner().invoke(app, command, catch_exceptions=False)
    assert not [*folder.glob("rank-*")]
    assert len([*folder.iterdir()]) == 3


def test_files_of_a_killed_rehearsal_are_removed(calls: list[Any], tmp_path: Path) -> None:
    folder = tmp_path / "rehearsal"
    leftovers = [folder / "rank-dead", folder / "wikipedia-50-512-vocabulary-512-v2", folder / "rank-alive"]
    for path in leftovers:
        path.mkdir(parents=True)
        (path / ".lengths.bin.0a1b2c3d.partial").touch()
    leftovers[1].joinpath(MARKER).touch()
    (folder / ".vocabulary-512.txt.0a1b2c3d.partial").touch()
    (folder / "wikipedia-mine").mkdir()  # not a rehearsal's
    with folder_lock(leftovers[2], "podium rehearse"):
        found = CliRunner().invoke(app, ["rehearse", "laptop", "--samples", "2000"])
    assert found.exit_code == 0, found.output
    assert [path.exists() for path in leftovers] == [False, False, True]
    assert (folder / "wikipedia-mine").exists()
    assert not [*folder.glob(".*")]


def test_concurrent_rehearsals_wait_for_the_same_samples(tmp_path: Path) -> None:
    waiting = threading.Event()

    def note(text: str) -> None:
        if text.startswith("Waiting"):
            waiting.set()

    second = threading.Thread(target=with_synthetic_data, args=[load_system("laptop"), tmp_path, 700, note])
    with folder_lock(tmp_path, "podium rehearse"):
        second.start()
        assert waiting.wait(60)
        assert not [*tmp_path.iterdir()]
    second.join()
    assert len([*tmp_path.iterdir()]) == 3


def test_each_phase_length_has_its_own_store(tmp_path: Path) -> None:
    config = with_synthetic_data(load_system("academic_t4"), tmp_path, 3000, lambda _: None)
    longest = [SampleStore(folder).max_sequence_length for folder in config.stores]
    assert longest == [512, 128]
    assert [config.phases[0].store, config.phases[1].store] == [config.stores[1], None]
    short = SampleStore(config.stores[1])
    assert int(np.asarray(short.lengths).max()) == 128
    assert short.max_predictions == 20 >= int(np.asarray(short.masked_counts).max())


def test_store_is_written_once_and_is_reproducible(tmp_path: Path) -> None:
    written: list[str] = []
    stores = []
    for folder in ("one", "one", "two"):
        vocabulary = rehearsal_vocabulary(tmp_path / folder, 512)
        stores.append(rehearsal_store(tmp_path / folder, 40_000, vocabulary, on_write=lambda: written.append("")))
    assert len(written) == 2
    one, _, two = (SampleStore(store) for store in stores)
    assert one.manifest == two.manifest
    assert one.index.sha256 == two.index.sha256
    lengths, histogram = np.asarray(one.lengths), wikipedia_histogram()
    mean = np.arange(513) @ histogram / histogram.sum()
    assert lengths.mean() == pytest.approx(mean, rel=0.01)
    assert np.bincount(lengths, minlength=513)[512] / 40_000 == pytest.approx(
        histogram[512] / histogram.sum(), rel=0.05
    )


def test_lengths_do_not_depend_on_the_drawing_method(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many lengths are drawn with a table of all published samples, few with a search."""
    vocabulary = rehearsal_vocabulary(tmp_path, 512)
    few = rehearsal_store(tmp_path / "few", 5000, vocabulary)
    monkeypatch.setattr("benchmarks.bert.rehearsal_store.CHUNK_SAMPLES", 5000 - 1)
    many = rehearsal_store(tmp_path / "many", 5000, vocabulary)
    assert SampleStore(few).index.sha256 != ""
    same = np.asarray(SampleStore(few).lengths)[:4999] == np.asarray(SampleStore(many).lengths)[:4999]
    assert same.all()
