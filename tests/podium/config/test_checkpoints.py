"""Which checkpoints of a run are whole, and what becomes of those that are not."""

import json
from pathlib import Path
from typing import Any

import pytest

from podium.config import newest_checkpoint, whole_checkpoints
from podium.config.checkpoints import (
    FACTS,
    checkpoint_path,
    facts_of,
    rank_file,
    remove_old_checkpoints,
    remove_unfinished_checkpoints,
)


def write(folder: Path, batches: int, ranks: int = 2) -> Path:
    path = checkpoint_path(folder, batches)
    path.mkdir(parents=True)
    for rank in range(ranks):
        rank_file(path, rank).touch()
    facts = facts_of(batches, 10 * batches, ranks, 7, "a log\n", {"seed": 5}, {"own": [1]})
    (path / FACTS).write_text(facts, encoding="utf-8")
    return path


def batches(folder: Path) -> list[int]:
    return [checkpoint.batches for checkpoint in whole_checkpoints(folder)]


def test_facts_come_back(tmp_path: Path) -> None:
    path = write(tmp_path, 12)
    (found,) = whole_checkpoints(tmp_path)
    assert (found.path, found.batches, found.samples, found.metrics_bytes) == (path, 12, 120, 7)
    assert (found.log, found.facts["own"], found.facts["ranks"]) == ("a log\n", [1], 2)


def test_the_newest_is_that_of_most_batches(tmp_path: Path) -> None:
    for number in (100_000_001, 9, 10):
        write(tmp_path, number)
    assert batches(tmp_path) == [9, 10, 100_000_001]
    newest = newest_checkpoint(tmp_path)
    assert newest and newest.batches == 100_000_001
    assert newest_checkpoint(tmp_path / "nothing") is None


def change(key: str, value: Any) -> Any:
    def spoil(path: Path) -> None:
        facts = json.loads((path / FACTS).read_text(encoding="utf-8"))
        (path / FACTS).write_text(json.dumps(facts | {key: value}), encoding="utf-8")

    return spoil


@pytest.mark.parametrize(
    "spoil",
    [
        lambda path: rank_file(path, 0).unlink(),
        lambda path: rank_file(path, 1).unlink(),
        lambda path: (path / FACTS).unlink(),
        lambda path: (path / FACTS).write_text("{"),
        lambda path: (path / FACTS).write_text("[]"),
        change("version", 1),
        change("format", "other"),
        change("ranks", 3),
        change("ranks", None),
        change("batches", "2"),
        change("samples", None),
        change("digest", None),
        change("configuration", None),
    ],
)
def test_what_is_not_whole_is_no_checkpoint(tmp_path: Path, spoil: Any) -> None:
    write(tmp_path, 1)
    spoil(write(tmp_path, 2))
    assert batches(tmp_path) == [1]
    remove_unfinished_checkpoints(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["batch_00000001"]


def test_only_whole_ones_are_counted_when_old_ones_are_removed(tmp_path: Path) -> None:
    for number in range(1, 6):
        write(tmp_path, number)
    for number in (4, 5):
        rank_file(checkpoint_path(tmp_path, number), 1).unlink()
    remove_old_checkpoints(tmp_path, keep=2)
    assert batches(tmp_path) == [2, 3]
    assert len(list(tmp_path.iterdir())) == 4  # the unfinished ones may still be in the writing
