"""Preparation of a sample store from text files."""

import errno
import multiprocessing
import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest

from benchmarks.bert.length_index import FILE
from benchmarks.bert.manifest import MANIFEST, MARKER, read_manifest
from benchmarks.bert.preparation.prepare import EvaluationPick, PreparedShard, prepare, prepare_subset
from benchmarks.bert.preparation.settings import GenerationSettings
from benchmarks.bert.preparation.tokenization import ALL_SPECIAL_TOKENS
from benchmarks.bert.shard import Shard
from benchmarks.bert.store import SampleStore, shard_paths
from podium.core.errors import Interrupted, UsageError, WorkError
from tests.benchmarks.bert.test_upgrade import write_older

ROOT = Path(__file__).resolve().parents[4]
LETTERS = "abcdefghijklmnopqrstuvwxyz"


@pytest.fixture
def vocabulary(tmp_path: Path) -> Path:
    path = tmp_path / "vocab.txt"
    path.write_text(
        "\n".join([*ALL_SPECIAL_TOKENS, *LETTERS, *(f"##{letter}" for letter in LETTERS)]), encoding="utf-8"
    )
    return path


@pytest.fixture
def texts(tmp_path: Path) -> list[Path]:
    paths = [tmp_path / f"part-{number}" for number in range(3)]
    for number, path in enumerate(paths):
        path.write_text(f"{LETTERS}\nhello world\n\nthis is {LETTERS[number]}\n", encoding="utf-8")
    return paths


def test_each_text_becomes_a_shard_in_the_order_of_the_texts(
    texts: list[Path], vocabulary: Path, tmp_path: Path
) -> None:
    finished: list[PreparedShard] = []
    shards = prepare(texts[::-1], vocabulary, tmp_path / "new" / "out", on_finished=finished.append)
    assert [shard.name for shard in shards] == ["part-2.h5", "part-1.h5", "part-0.h5"]
    assert [prepared.shard for prepared in finished] == shards
    out = tmp_path / "new" / "out"
    assert sorted(out.iterdir()) == sorted([*shards, out / FILE, out / MANIFEST])
    SampleStore(shards).verify()
    assert read_manifest(out) == SampleStore(shards).manifest


def test_manifest_is_updated_when_shards_are_added(texts: list[Path], vocabulary: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    prepare(texts[:2], vocabulary, out)

    def interrupt(prepared: PreparedShard) -> None:
        raise KeyboardInterrupt

    (shard,) = prepare(texts[2:], vocabulary, tmp_path / "other")
    shard.rename(out / shard.name)
    with pytest.raises(KeyboardInterrupt):
        prepare(texts[2:], vocabulary, out, on_finished=interrupt)
    with pytest.raises(WorkError, match=r"part-2\.h5 is one shard too many, manifest\.json does not have it"):
        SampleStore(out)  # the shard existed and was kept, so the manifest was not updated
    prepare(texts[2:], vocabulary, out)
    manifest = read_manifest(out)
    assert manifest is not None and manifest == SampleStore(out).manifest
    assert [shard.name for shard in manifest.shards] == ["part-0.h5", "part-1.h5", "part-2.h5"]


def test_a_shard_of_another_vocabulary_in_the_folder_is_an_error(
    texts: list[Path], vocabulary: Path, tmp_path: Path
) -> None:
    prepare(texts[:1], vocabulary, tmp_path / "out")
    other = tmp_path / "other.txt"
    other.write_text(vocabulary.read_text(encoding="utf-8") + "\nmore", encoding="utf-8")
    with pytest.raises(UsageError, match=r"such as part-0\.h5 with vocabulary_sha256 .*; give another --out"):
        prepare(texts[1:2], other, tmp_path / "out")


@pytest.mark.parametrize(
    ("given", "match"),
    [
        (
            {"settings": GenerationSettings(128, 20)},
            r"length 512 \(here 128\), max_predictions 76 \(here 20",
        ),
        ({"settings": GenerationSettings(512, 20)}, r"with max_predictions 76 \(here 20\), which would be replaced"),
        ({"selection": EvaluationPick(3)}, r"with selection whole \(here evaluation\)"),
    ],
)
def test_shards_of_other_settings_are_not_replaced(
    texts: list[Path], vocabulary: Path, tmp_path: Path, given: dict[str, Any], match: str
) -> None:
    shards = prepare(texts, vocabulary, tmp_path / "out")
    whole = [shard.read_bytes() for shard in shards]
    with pytest.raises(UsageError, match=match):
        prepare(texts[:1], vocabulary, tmp_path / "out", **given)
    with pytest.raises(UsageError, match=r"with selection whole \(here random\)"):
        prepare_subset(texts, vocabulary, tmp_path / "out", 5)
    assert [shard.read_bytes() for shard in shards] == whole
    SampleStore(tmp_path / "out").verify()


def test_a_finished_shard_is_kept_and_any_other_is_replaced(
    texts: list[Path], vocabulary: Path, tmp_path: Path
) -> None:
    def again(**changes: Any) -> list[bool]:
        """Which shards were kept, in the order of the texts."""
        finished: list[PreparedShard] = []
        prepare(texts, vocabulary, tmp_path / "out", on_finished=finished.append, **changes)
        assert [shard.read_bytes() for shard in shards] == whole or changes
        return [prepared.kept for prepared in finished]

    shards = prepare(texts, vocabulary, tmp_path / "out")
    whole = [shard.read_bytes() for shard in shards]
    times = [shard.stat().st_mtime_ns for shard in shards]
    assert again() == [True] * 3
    assert [shard.stat().st_mtime_ns for shard in shards] == times

    shards[0].write_bytes(b"old")
    flipped = bytearray(whole[1])
    flipped[Shard(shards[1]).dataset_ranges["records"].stop - 1] ^= 1
    shards[1].write_bytes(flipped)
    shards[2].unlink()
    assert again() == [False] * 3

    shards[2].write_bytes(whole[1])  # valid, but of another text
    assert again() == [True, True, False]
    assert again(settings=GenerationSettings(seed=1)) == [False] * 3
    assert again(settings=GenerationSettings(seed=1)) == [True] * 3
    assert again() == [False] * 3
    texts[0].write_text(f"{LETTERS}\n", encoding="utf-8")
    assert [shard.read_bytes() for shard in prepare(texts, vocabulary, tmp_path / "out")][1:] == whole[1:]
    assert shards[0].read_bytes() != whole[0]


def test_valid_shards_of_an_older_version_are_converted_and_others_regenerated(
    texts: list[Path], vocabulary: Path, tmp_path: Path
) -> None:
    """The preparation was interrupted before it wrote the manifest."""
    shards = prepare(texts, vocabulary, tmp_path / "out")
    whole = {path: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    for shard in shards:
        write_older(shard)
    shards[1].write_bytes(shards[1].read_bytes()[:-9])
    (tmp_path / "out" / MANIFEST).unlink()
    (tmp_path / "out" / MARKER).touch()
    finished: list[PreparedShard] = []
    prepare(texts, vocabulary, tmp_path / "out", on_finished=finished.append)
    assert [prepared.kept for prepared in finished] == [True, False, True]
    assert {path: path.read_bytes() for path in (tmp_path / "out").iterdir()} == whole


def test_interruption_does_not_cause_a_shard_to_be_regenerated(
    texts: list[Path], vocabulary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise Interrupted("interrupted")

    shards = prepare(texts, vocabulary, tmp_path / "out")
    inodes = [shard.stat().st_ino for shard in shards]
    monkeypatch.setattr(Shard, "verify", interrupted)
    with pytest.raises(Interrupted):
        prepare(texts, vocabulary, tmp_path / "out")
    assert [shard.stat().st_ino for shard in shards] == inodes


def test_text_without_a_final_line_feed_is_reported(texts: list[Path], vocabulary: Path, tmp_path: Path) -> None:
    texts[1].write_text(f"{LETTERS}\nhel", encoding="utf-8")
    finished: list[PreparedShard] = []
    prepare(texts, vocabulary, tmp_path / "out", on_finished=finished.append)
    notes = [prepared.note for prepared in finished]
    assert notes[0] is notes[2] is None
    assert notes[1] is not None and "does not end with a line feed" in notes[1]


def test_second_preparation_in_the_same_folder_is_an_error(texts: list[Path], vocabulary: Path, tmp_path: Path) -> None:
    def start_another(prepared: PreparedShard) -> None:
        with pytest.raises(UsageError, match="out: another `podium data prepare` is using this folder"):
            prepare(texts, vocabulary, tmp_path / "out")

    prepare(texts, vocabulary, tmp_path / "out", on_finished=start_another)
    prepare(texts, vocabulary, tmp_path / "out")


def assert_group_ends(group: int) -> None:
    """Wait until no process of the group is left, also no worker that was being started when the parent was killed."""
    deadline = time.monotonic() + 20
    with suppress(ProcessLookupError):
        while True:
            os.killpg(group, 0)
            assert time.monotonic() < deadline, "a worker outlived the process that started it"
            time.sleep(0.05)


@pytest.mark.slow
@pytest.mark.parametrize(
    "moments",
    [
        pytest.param([".*.partial", "*.h5"], id="shards"),
        pytest.param(["*"], id="marker", marks=pytest.mark.exhaustive),
    ],
)
def test_killed_and_restarted_preparation_gives_the_same_bytes(
    texts: list[Path], vocabulary: Path, tmp_path: Path, moments: list[str]
) -> None:
    """Killed when these first exist: the unfinished or the finished file of a shard, or the marker before them."""
    random = Random(0)
    for text in texts:
        words = ["".join(random.choices(LETTERS, k=random.randint(1, 8))) for _ in range(1000)]
        lines = [" ".join(random.choices(words, k=20)) if random.random() < 0.9 else "" for _ in range(2_000)]
        text.write_text("\n".join([*lines, ""]), encoding="utf-8")
    out = tmp_path / "out"
    code = (
        "import sys; from pathlib import Path; from benchmarks.bert.preparation.prepare import prepare\n"
        "paths = [*map(Path, sys.argv[1:])]\n"
        "if __name__ == '__main__': prepare(paths[2:], *paths[:2], processes=2)"
    )
    script = tmp_path / "script.py"
    script.write_text(code, encoding="utf-8")
    command = [sys.executable, script, vocabulary, out, *texts]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    expected = [shard.read_bytes() for shard in prepare(texts, vocabulary, tmp_path / "whole")]
    for moment in moments:
        process = subprocess.Popen(command, env=environment, start_new_session=True)
        while process.poll() is None and not any(out.glob(moment)):
            time.sleep(0.001)
        time.sleep(random.uniform(0, 0.05))
        assert process.poll() is None, "the preparation finished before it could be killed"
        process.kill()
        process.wait()
        assert_group_ends(process.pid)
        for shard in out.glob("*.h5"):
            assert shard.read_bytes() == expected[int(shard.stem[-1])]
            shard.unlink()  # so that there is work left
    prepare(texts, vocabulary, out)
    assert sorted(path.name for path in out.iterdir()) == [FILE, MANIFEST, "part-0.h5", "part-1.h5", "part-2.h5"]
    assert [(out / f"part-{number}.h5").read_bytes() for number in range(3)] == expected


def test_invalid_inputs_are_errors_before_anything_is_written(
    texts: list[Path], vocabulary: Path, tmp_path: Path
) -> None:
    out, other = tmp_path / "out", tmp_path / "other"
    other.mkdir()
    (other / "part-0").write_text("a b", encoding="utf-8")
    with pytest.raises(UsageError, match="no text files were given"):
        prepare([], vocabulary, out)
    with pytest.raises(UsageError, match="part-9: there is no such text file"):
        prepare([*texts, tmp_path / "part-9"], vocabulary, out)
    with pytest.raises(UsageError, match="other: this is a folder"):
        prepare([*texts, other], vocabulary, out)
    with pytest.raises(UsageError, match="2 text files have the name part-0"):
        prepare([*texts, other / "part-0"], vocabulary, out)
    with pytest.raises(UsageError, match="there is no such vocabulary"):
        prepare(texts, tmp_path / "none.txt", out)
    with pytest.raises(UsageError, match="a file exists at this path"):
        prepare(texts, vocabulary, vocabulary)
    with pytest.raises(UsageError, match="a file exists at this path"):
        prepare(texts, vocabulary, vocabulary / "below")
    assert not out.exists()


def test_text_that_is_not_utf_8_is_reported_with_its_byte_offset(
    texts: list[Path], vocabulary: Path, tmp_path: Path
) -> None:
    texts[1].write_bytes("é\n".encode() + b"ab\xffcd\n")
    with pytest.raises(WorkError, match=r"part-1: the text is not UTF-8 at byte 5 \(invalid start byte\)"):
        prepare(texts, vocabulary, tmp_path / "out")
    left = shard_paths(tmp_path / "out")
    assert [path.name for path in left] == ["part-0.h5"]
    SampleStore(left).verify()
    with pytest.raises(WorkError, match=r"out/manifest\.unfinished: the preparation of this store was interrupted"):
        SampleStore(tmp_path / "out")
    prepare(texts[:1], vocabulary, tmp_path / "out")
    SampleStore(tmp_path / "out")


def test_text_without_a_document_is_an_error(texts: list[Path], vocabulary: Path, tmp_path: Path) -> None:
    texts[0].write_text("\n\n", encoding="utf-8")
    with pytest.raises(WorkError, match="part-0: there is no document in it"):
        prepare(texts, vocabulary, tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_full_disk_is_an_error_and_leaves_no_partial_file(
    texts: list[Path], vocabulary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(WorkError, match=r"part-0\.h5: cannot be written \(No space left on device\)"):
        prepare(texts, vocabulary, tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == [tmp_path / "out" / MARKER]


def test_interruption_leaves_only_complete_shards_whatever_the_number_of_processes(
    texts: list[Path], vocabulary: Path, tmp_path: Path
) -> None:
    one = prepare(texts, vocabulary, tmp_path / "one")

    def interrupt(prepared: PreparedShard) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare(texts, vocabulary, tmp_path / "out", processes=2, on_finished=interrupt)
    assert multiprocessing.active_children() == []
    assert (tmp_path / "out" / MARKER).is_file()
    left = shard_paths(tmp_path / "out")
    for path in left:
        assert path.read_bytes() == (tmp_path / "one" / path.name).read_bytes()
    SampleStore(left).verify()
    assert {path.name for path in left} <= {path.name for path in one}


def test_dead_worker_is_an_error_and_leaves_no_partial_file(
    texts: list[Path], vocabulary: Path, tmp_path: Path
) -> None:
    texts[1].write_text(f"{LETTERS}\n" * 40_000, encoding="utf-8")
    out = tmp_path / "out"
    out.mkdir()
    (out / ".part-1.h5.0123abcd.partial").write_bytes(b"left behind")

    def kill_workers(prepared: PreparedShard) -> None:
        for worker in multiprocessing.active_children():
            worker.kill()

    with pytest.raises(WorkError, match=r"part-[012]\.h5: the worker process that made it died"):
        prepare(texts, vocabulary, out, processes=2, on_finished=kill_workers)
    assert {path.suffix for path in out.iterdir()} == {".h5", ".unfinished"}
    SampleStore(shard_paths(out)).verify()
