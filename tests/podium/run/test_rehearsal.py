"""`podium rehearse`: its data, what is refused, and what a user sees."""

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

from benchmarks.bert import rehearsal_store as stores_of_rehearsals
from benchmarks.bert.length_index import FILE
from benchmarks.bert.lengths import wikipedia_histogram
from benchmarks.bert.manifest import MANIFEST, MARKER
from benchmarks.bert.preparation.tokenization import Vocabulary
from benchmarks.bert.rehearsal_store import MOST_SAMPLES, rehearsal_store, rehearsal_vocabulary
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
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Any]:
    """What the implementation was asked, by its configuration and its options."""
    calls: list[Any] = []

    def ask(implementation: str, entry: str, options: list[str]) -> dict[str, Any]:
        calls.append((f"{implementation}.{entry}", load_resolved(Path(options[0])), options[1:]))
        return FOUND

    monkeypatch.setattr(rehearsal, "ask", ask)
    monkeypatch.setattr(rehearsal, "FOLDER", tmp_path / "rehearsal")
    return calls


def test_a_system_is_rehearsed_at_its_own_number_of_ranks(asked: list[Any]) -> None:
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
    ((entry, config, options),) = asked
    assert entry == "pytorch.rehearse"
    assert options == ["--rank", "5", "--steps", "3"]
    assert len(SampleStore(config.data.store)) == 2000
    assert len(SampleStore(config.data.evaluation_store)) == config.evaluation_samples == 10_000
    assert config.seed is not None


def test_json_has_all_of_it(asked: list[Any]) -> None:
    found = CliRunner().invoke(app, ["rehearse", "laptop", "--samples", "2000", "--json"])
    assert found.exit_code == 0, found.output
    document = json.loads(found.stdout)
    about = {"system": "laptop", "recipe": "indexed", "global_batch_size": 16}
    assert document == FOUND | about | {"samples": 2000, "stated_memory_bytes": None}


def test_a_rank_that_is_not_there_is_wrong_use(asked: list[Any]) -> None:
    with pytest.raises(UsageError, match="--rank: found 2, allowed is 0 to 1, the ranks of laptop_2x"):
        CliRunner().invoke(app, ["rehearse", "laptop_2x", "--rank", "2"], catch_exceptions=False)
    assert not asked


def test_a_node_with_too_little_memory_is_told(asked: list[Any]) -> None:
    system = ["rehearse", "dgxa100_n128", "--samples", "2000", "--set"]
    found = CliRunner().invoke(app, [*system, "description.host_memory_capacity=2 GB"])
    assert found.exit_code == 1
    assert "8 processes take at least 2.5 GB" in found.output
    assert CliRunner().invoke(app, [*system, "description.host_memory_capacity=1,024 GB"]).exit_code == 0


def test_what_is_not_rehearsed_and_not_compared_is_said(asked: list[Any]) -> None:
    found = CliRunner().invoke(app, ["rehearse", "laptop", "--samples", "2000"])
    assert found.exit_code == 0, found.output
    assert "Not rehearsed: communication, checkpoints." in found.stdout
    assert "'not stated' is no amount such as 1 TB" in found.stdout
    assert "16 on 1,024 ranks" in found.stdout


def test_ranks_without_evaluation_samples_are_named(asked: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FOUND, "evaluation", {"samples": 0, "batches": 0, "ranks_without": 6384})
    found = CliRunner().invoke(app, ["rehearse", "laptop", "--samples", "2000"])
    assert "6,384 ranks have none" in found.stdout


def test_more_samples_than_any_run_has_are_refused(asked: list[Any], tmp_path: Path) -> None:
    command = ["rehearse", "laptop", "--samples", str(10**13)]
    with pytest.raises(UsageError, match="--samples: found 10,000,000,000,000, allowed is 1 to 626,902,612"):
        CliRunner().invoke(app, command, catch_exceptions=False)
    command = ["rehearse", "laptop", "--samples", "100", "--set", f"evaluation.samples={MOST_SAMPLES + 1}"]
    with pytest.raises(UsageError, match=r"evaluation\.samples: found 626,902,613, allowed is 1 to 626,902,612"):
        CliRunner().invoke(app, command, catch_exceptions=False)
    assert not asked and not (tmp_path / "rehearsal").exists()


def test_an_index_is_not_begun_on_a_disk_without_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = rehearsal_vocabulary(tmp_path, 512)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=5_000_000))
    with pytest.raises(WorkError, match=r"of 3,000,000 samples needs 6\.0 MB, and it has 5\.0 MB free; make room"):
        rehearsal_store(tmp_path, 3_000_000, words)
    assert [path.name for path in tmp_path.iterdir()] == [words.name]


def test_a_disk_that_fills_meanwhile_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = rehearsal_vocabulary(tmp_path, 512)

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "touch", full)
    monkeypatch.setattr(stores_of_rehearsals, "mark_unfinished", lambda _: None)
    with pytest.raises(WorkError, match="v2: the disk is full"):
        rehearsal_store(tmp_path, 700, words)
    assert [path.name for path in tmp_path.iterdir()] == [words.name]


def cut_index(store: Path) -> None:
    (store / FILE).write_bytes((store / FILE).read_bytes()[:-2])


def change_index(store: Path) -> None:
    content = (store / FILE).read_bytes()
    (store / FILE).write_bytes(bytes([content[0] ^ 1]) + content[1:])


def words_of(store: Path) -> Path:
    return store.parent / "vocabulary-512.txt"


def change_manifest(store: Path) -> None:
    text = (store / MANIFEST).read_text()
    (store / MANIFEST).write_text(text.replace(Vocabulary.read(words_of(store)).sha256, 64 * "0"))


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
        lambda store: words_of(store).write_text("[PAD]\n"),
        lambda store: (shutil.rmtree(store), store.mkdir()),
    ],
)
def test_what_is_damaged_is_written_anew(tmp_path: Path, damage: Callable[[Path], Any]) -> None:
    store = rehearsal_store(tmp_path, 700, rehearsal_vocabulary(tmp_path, 512))
    index, vocabulary = (store / FILE).read_bytes(), words_of(store).read_bytes()
    damage(store)
    assert rehearsal_store(tmp_path, 700, rehearsal_vocabulary(tmp_path, 512)) == store
    assert ((store / FILE).read_bytes(), words_of(store).read_bytes()) == (index, vocabulary)
    assert SampleStore(store).vocabulary_sha256 == Vocabulary.read(words_of(store)).sha256


@pytest.mark.parametrize("make", [Path.touch, os.mkfifo])
def test_damage_that_cannot_be_removed_is_named(tmp_path: Path, make: Callable[[Path], None]) -> None:
    words = rehearsal_vocabulary(tmp_path, 512)
    store = rehearsal_store(tmp_path, 700, words)
    shutil.rmtree(store)
    make(store)
    with pytest.raises(WorkError, match=r"v2: is damaged, and cannot be removed .*; remove it"):
        rehearsal_store(tmp_path, 700, words)


def interrupt(*_: Any) -> None:
    raise Interrupted("interrupted")


def test_an_interruption_is_no_reason_to_write_samples_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = rehearsal_vocabulary(tmp_path, 512)
    store = rehearsal_store(tmp_path, 700, words)
    inode = store.stat().st_ino
    monkeypatch.setattr(stores_of_rehearsals, "SampleStore", interrupt)
    with pytest.raises(Interrupted):
        rehearsal_store(tmp_path, 700, words)
    assert store.stat().st_ino == inode


def test_an_interrupted_rehearsal_leaves_nothing(
    asked: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, command = tmp_path / "rehearsal", ["rehearse", "laptop", "--samples", "2000"]
    with monkeypatch.context() as patch, pytest.raises(Interrupted):
        patch.setattr(stores_of_rehearsals, "write_manifest", interrupt)
        CliRunner().invoke(app, command, catch_exceptions=False)
    assert [path.name for path in folder.iterdir()] == ["vocabulary-512.txt"]
    with monkeypatch.context() as patch, pytest.raises(Interrupted):
        patch.setattr(rehearsal, "ask", interrupt)
        CliRunner().invoke(app, command, catch_exceptions=False)
    assert not [*folder.glob("rank-*")]
    assert len([*folder.iterdir()]) == 3


def test_what_a_killed_rehearsal_left_is_removed(asked: list[Any], tmp_path: Path) -> None:
    folder = tmp_path / "rehearsal"
    left = [folder / "rank-dead", folder / "wikipedia-50-512-vocabulary-512-v2", folder / "rank-alive"]
    for path in left:
        path.mkdir(parents=True)
        (path / ".lengths.bin.0a1b2c3d.partial").touch()
    left[1].joinpath(MARKER).touch()
    (folder / ".vocabulary-512.txt.0a1b2c3d.partial").touch()
    (folder / "wikipedia-mine").mkdir()  # of another kind
    with folder_lock(left[2], "podium rehearse"):
        found = CliRunner().invoke(app, ["rehearse", "laptop", "--samples", "2000"])
    assert found.exit_code == 0, found.output
    assert [path.exists() for path in left] == [False, False, True]
    assert (folder / "wikipedia-mine").exists()
    assert not [*folder.glob(".*")]


def test_of_two_rehearsals_the_second_waits_for_the_samples_of_the_first(tmp_path: Path) -> None:
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


def test_every_length_of_a_phase_has_a_store_of_its_own(tmp_path: Path) -> None:
    config = with_synthetic_data(load_system("academic_t4"), tmp_path, 3000, lambda _: None)
    longest = [SampleStore(folder).max_sequence_length for folder in config.stores]
    assert longest == [512, 128]
    assert [config.phases[0].store, config.phases[1].store] == [config.stores[1], None]
    short = SampleStore(config.stores[1])
    assert int(np.asarray(short.lengths).max()) == 128
    assert short.max_predictions == 20 >= int(np.asarray(short.masked_counts).max())


def test_a_store_is_written_once_and_the_same_everywhere(tmp_path: Path) -> None:
    written: list[str] = []
    stores = []
    for folder in ("one", "one", "two"):
        words = rehearsal_vocabulary(tmp_path / folder, 512)
        stores.append(rehearsal_store(tmp_path / folder, 40_000, words, on_write=lambda: written.append("")))
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


def test_many_samples_are_drawn_as_few_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a table of all published samples instead of a search."""
    words = rehearsal_vocabulary(tmp_path, 512)
    few = rehearsal_store(tmp_path / "few", 5000, words)
    monkeypatch.setattr("benchmarks.bert.rehearsal_store.DRAWN_TOGETHER", 5000 - 1)
    many = rehearsal_store(tmp_path / "many", 5000, words)
    assert SampleStore(few).index.sha256 != ""
    same = np.asarray(SampleStore(few).lengths)[:4999] == np.asarray(SampleStore(many).lengths)[:4999]
    assert same.all()
