"""Fuzzing of a few thousand lines; `python -m tests.podium.mllog.fuzzing` runs longer."""

import random
from pathlib import Path

import pytest

from podium.mllog.read import read_log
from tests.podium.mllog import fuzzing
from tests.podium.mllog.dialects import DIALECTS, logs
from tests.podium.mllog.mutations import MUTATIONS, corrupt_content, corrupt_order


@pytest.mark.parametrize("seed", range(2))
def test_corrupted_logs_are_read(tmp_path: Path, seed: int) -> None:
    fuzzer = fuzzing.Fuzzer(seed, tmp_path)
    while fuzzer.tally.lines < 2_000:
        fuzzer.run_once()
    assert fuzzer.tally.signatures > 40, "the mutations find too few signatures"


def test_corrupted_published_logs_are_read(tmp_path: Path, round_2_1: Path) -> None:
    fuzzer = fuzzing.Fuzzer(0, tmp_path, list(fuzzing.published(round_2_1)))
    while fuzzer.tally.lines < 1_500:
        fuzzer.run_once()


def test_seed_logs_are_valid(tmp_path: Path) -> None:
    read = []
    for number, content in enumerate(logs()):
        path = tmp_path / f"result_{number}.txt"
        path.write_bytes(b"".join(content))
        read.append(read_log(path))
    assert [log.status for log in read] == ["success"] * 7 + ["aborted", None]
    assert [log.samples for log in read[:7]] == [600_320] * 4 + [3_000_064, None, 600_320]
    assert all(log.events for log in read) and len(read) == len(DIALECTS)


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_each_mutation_changes_lines(mutation: object) -> None:
    assert callable(mutation)
    rng = random.Random(3)
    line = logs()[0][9]
    changed = sum(mutation(line, rng) != line for _ in range(50))
    assert changed > 25


def test_order_and_content_mutations_change_logs() -> None:
    rng = random.Random(3)
    one, other = logs()[0], logs()[3]
    assert len({tuple(corrupt_order(one, other, rng)) for _ in range(60)}) > 20
    assert corrupt_order([], [], rng) == []
    assert len({corrupt_content(b"".join(one), rng) for _ in range(60)}) > 20


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert fuzzing.main(["--lines", "50", "--seed", "2", "--kept", str(tmp_path)]) == 0
    assert "Tally(lines=" in capsys.readouterr().out and not list(tmp_path.iterdir())
    monkeypatch.setattr(fuzzing, "MAX_SECONDS", 0.0)
    with pytest.raises(AssertionError, match="took"):
        fuzzing.main(["--lines", "50", "--seed", "2", "--kept", str(tmp_path)])
    assert len(list(tmp_path.iterdir())) == 1 and "is kept as" in capsys.readouterr().err
