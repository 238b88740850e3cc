"""Statistics, score and settings of the runs of a set."""

from pathlib import Path

import pytest

from podium.report.find import find_runs
from podium.report.load import read_sets
from podium.report.run import ReportedSet
from tests.podium.report.conftest import SETTINGS, MakeRun, evaluation, step, summary


def read(folder: Path) -> ReportedSet:
    (one,) = read_sets(find_runs([folder]))
    return one


def test_statistics_are_of_the_runs_that_reached_the_target(make_run: MakeRun) -> None:
    for number, seconds in enumerate((40.0, 50.0, 90.0)):
        make_run(number, totals=summary(seconds=seconds, reached_target=number < 2))
    runs = read(make_run(3).parent)
    over = runs.statistics("seconds")
    assert over is not None and (over.n, over.mean, over.greatest) == (2, 45.0, 50.0)
    assert over.sd == pytest.approx(50**0.5)
    assert runs.statistics("moved_sequences") is None


def test_statistics_without_a_reached_target_are_of_all_finished_runs(make_run: MakeRun) -> None:
    for number in range(2):
        make_run(number, totals=summary(seconds=40.0 + number, reached_target=False))
    over = read(make_run(2).parent).statistics("seconds")
    assert over is not None and (over.n, over.mean) == (2, 40.5)


def test_score_needs_ten_runs_without_restarts(make_run: MakeRun) -> None:
    folders = [make_run(number, totals=summary(seconds=40.0 + number)) for number in range(9)]
    assert read(folders[0].parent).score_seconds is None
    tenth = make_run(9, totals=summary(seconds=1.0, reached_target=False))
    assert read(tenth.parent).score_seconds == pytest.approx(sum(40.0 + number for number in range(1, 9)) / 8)
    (tenth / "restarts.jsonl").write_text('{"samples": 0}\n')
    assert read(tenth.parent).score_seconds is None


def test_unfinished_set_has_no_score(make_run: MakeRun) -> None:
    for number in range(9):
        make_run(number, totals=summary())
    assert read(make_run(9).parent).score_seconds is None


def test_accuracy_by_samples(make_run: MakeRun) -> None:
    make_run(0, metrics=[step(1), evaluation(320, 0.2), evaluation(640, 0.8)])
    runs = read(make_run(1, metrics=[step(1), evaluation(320, 0.4)]).parent)
    assert [(samples, over.n, pytest.approx(over.mean)) for samples, over in runs.accuracy_by_samples.items()] == [
        (320, 2, 0.3),
        (640, 1, 0.8),
    ]


def test_common_and_differing_settings(make_run: MakeRun) -> None:
    make_run(0)
    runs = read(make_run(1, settings={**SETTINGS, "seed": 8, "recipe": "padded", "only": 1}).parent)
    assert runs.common_settings["system"] == "mine" and "seed" not in runs.common_settings
    assert set(runs.differing_settings) == {"seed", "recipe", "only"}
