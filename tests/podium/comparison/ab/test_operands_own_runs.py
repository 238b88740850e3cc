"""Runs of one's own and the logs that belong to them, wherever later sets have moved these."""

from pathlib import Path

import pytest

from podium.comparison.ab.operands import by_seeds, home_of, known_code, made_by, runs_in, with_logs
from podium.mllog.run import Run
from podium.run.source import Source
from tests.podium.comparison.own import Workshop, read

CODES = (Source("ab" * 32, "12" * 20), Source("cd" * 32, None))


@pytest.fixture
def workshop(tmp_path: Path) -> Workshop:
    return Workshop(tmp_path)


def seconds_of(workshop: Workshop, folder: Path) -> list[float | None]:
    own = runs_in(folder)
    return [run.seconds for run in with_logs(own, home_of(own[0].folder.path), read).runs]


@pytest.mark.parametrize("kept", [True, False])
def test_every_set_finds_its_own_logs(workshop: Workshop, kept: bool) -> None:
    """In the layout before, those of the set before the last are in the last one's folder."""
    workshop.kept = kept
    times = ([100.0, 101.0, 102.0], [110.0, 111.0], [120.0 + n for n in range(11)])
    for one in times:
        workshop.make(one)
    assert [seconds_of(workshop, folder) for folder in workshop.sets] == list(times)


def test_one_seed_in_two_sets_is_told_apart_by_the_totals(workshop: Workshop) -> None:
    workshop.make([100.0], seed=7)
    workshop.make([130.0], seed=7)
    assert [seconds_of(workshop, folder) for folder in workshop.sets] == [[100.0], [130.0]]
    logs = [run for run in read([workshop.home.results / "mine/bert/result_0.txt"]).values() if isinstance(run, Run)]
    assert [run.folder.path for run in by_seeds(logs, "mine", workshop.home)] == [workshop.sets[1] / "run_0"]
    for folder in workshop.sets:
        (folder / "run_0" / "summary.json").unlink()
    found = with_logs(runs_in(workshop.sets[0] / "run_0"), workshop.home, read)
    assert found.runs == () and "run_0 is left out: 2 logs have its seed 7" in found.notes[0]
    assert by_seeds(logs, "mine", workshop.home) == []


def test_why_a_run_has_no_log(workshop: Workshop) -> None:
    folder = workshop.make([100.0, 101.0, 102.0, 103.0])
    results = workshop.home.results / "mine" / "bert"
    (results / "result_0.txt").rename(folder / "run_0" / "result.restarted.txt")
    (results / "result_1.txt").rename(folder / "run_1" / "result.partial.txt")
    (results / "result_2.txt").unlink()
    found = with_logs(runs_in(folder), workshop.home, read)
    assert [run.seconds for run in found.runs] == [103.0] and found.of[0].name.endswith("/run_3")
    whys = [note.partition("is left out: ")[2] for note in found.notes]
    assert whys[0] == "it was restarted, which is no result" and whys[1] == "its log is not whole yet"
    assert whys[2].startswith("no log in ") and "102000" in whys[2]


def test_runs_by_the_code_that_made_them(workshop: Workshop) -> None:
    for n, source in enumerate((CODES[0], CODES[1], None, CODES[0])):
        workshop.make([100.0 + n], source)
    commit = CODES[0].commit
    assert [run.folder.path.parent for run in made_by("", commit, workshop.home)] == [
        workshop.sets[0],
        workshop.sets[3],
    ]
    assert made_by("abab", None, workshop.home) == made_by("1212", None, workshop.home)
    assert [run.name for run in made_by("cdcdcd", None, workshop.home)] == [
        "/".join((workshop.sets[1] / "run_0").parts[-3:])
    ]
    assert made_by("ef", None, workshop.home) == [] == made_by("", "34" * 20, workshop.home)
    assert known_code(workshop.home) == ["121212121212", "cdcdcdcdcdcd"]


def test_folders_of_logs_by_their_seeds(workshop: Workshop) -> None:
    for n in range(3):
        workshop.make([100.0 + n, 200.0 + n])
    logs = read([workshop.home.results / "mine/bert/result_1.txt"])
    own = by_seeds([run for run in logs.values() if not isinstance(run, str)], "mine", workshop.home)
    assert [run.folder.path for run in own] == [workshop.sets[2] / "run_1"]
