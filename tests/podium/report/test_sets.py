"""Several sets: their names, and their tests against the first; the slowest ranks of a run."""

from pathlib import Path
from typing import Any

import pytest

from podium.mllog.significance import Welch
from podium.report.find import find_runs
from podium.report.load import read_sets
from podium.report.run import ReportedSet
from podium.report.sets import (
    ComparedSet,
    SlowRank,
    compare_sets,
    format_p,
    name_sets,
    p_caption,
    slowest_ranks,
    welch_json,
)
from podium.report.table import as_json
from podium.run.outcome import Outcome
from tests.podium.report.conftest import SETTINGS, MakeRun, lines, step, summary

SETS = [f"2026-11-21_10-00-0{number}" for number in range(10)]


@pytest.fixture
def sets(make_run: MakeRun) -> Any:
    """Reads sets of one run each with these changes to its settings."""

    def make(*changes: dict[str, Any]) -> list[ReportedSet]:
        folders = [
            make_run(settings={**SETTINGS, **change}, totals=summary(), set_name=name)
            for change, name in zip(changes, SETS, strict=False)
        ]
        return read_sets(find_runs(folders))

    return make


def optimizer(**changes: Any) -> dict[str, Any]:
    return {"optimizer": {**SETTINGS["optimizer"], **changes}}


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ([{}, {"recipe": "random"}], ["indexed", "random"]),
        (
            [optimizer(learning_rate=0.001), optimizer(learning_rate=0.002)],
            ["learning rate 0.001", "learning rate 0.002"],
        ),
        # What follows from the recipes is left out, and what overrides them is not.
        (
            [{"balancing": "indexed", "gradient_wire": "fp32"}, {"recipe": "exchanged", "balancing": "exchanged"}],
            ["indexed, gradient_wire fp32", "exchanged"],
        ),
        (
            [{"balancing": "indexed"}, {"recipe": "exchanged", "balancing": "random"}],
            ["indexed, balancing indexed", "exchanged, balancing random"],
        ),
        # The batch size determines the hyper-parameters; a learning rate that was set is named.
        (
            [
                {"hyperparameters": "tiny_adamw_16"},
                {"hyperparameters": "tiny_lamb_16", **optimizer(algorithm="lamb", learning_rate=0.5)},
            ],
            ["optimizer adamw, learning rate 0.0015", "optimizer lamb, learning rate 0.5"],
        ),
        ([{"seed": 1, "data": {"store": "a"}}, {"seed": 2, "data": {"store": "b"}}], SETS[:2]),
        ([{}, {"dropout": True}, {"dropout": 1}], [SETS[0], f"dropout yes, {SETS[1]}", f"dropout 1, {SETS[2]}"]),
    ],
)
def test_sets_are_named_by_what_differs(sets: Any, changes: list[dict[str, Any]], names: list[str]) -> None:
    assert [name for name, _ in name_sets(sets(*changes))] == names


def test_a_setting_that_differs_within_a_set_names_no_set(make_run: MakeRun) -> None:
    for number in (0, 1):
        folder = make_run(number, settings={**SETTINGS, "max_samples": number}).parent
    other = make_run(settings={**SETTINGS, "max_samples": 5}, set_name=SETS[0]).parent
    (_, first), (name, second) = name_sets(read_sets(find_runs([folder, other])))
    assert first == {} and second == {"max_samples": 5} and "maximum samples 5" in name


def compared(make_run: MakeRun, *times: list[float | None]) -> list[ComparedSet]:
    """Compare sets of runs with these times; None for a run that missed its target."""
    folders: list[Path] = []
    for name, of_set in zip(SETS, times, strict=False):
        for number, seconds in enumerate(of_set):
            missed = {"reached_target": False} if seconds is None else {}
            totals = summary(seconds=seconds or 1.0, samples=640 + 16 * number, **missed)
            folder = make_run(number, totals=totals, set_name=name)
        folders.append(folder.parent)
    return compare_sets(read_sets(find_runs(folders)))


def test_a_first_set_without_runs_that_succeeded_is_no_reference(make_run: MakeRun) -> None:
    missed, first, other = compared(make_run, [None, None], [40, 41, 42], [60, 61, 62])
    assert missed.tests["seconds"] == "this set has fewer than two values" and first.tests == {}
    assert isinstance(other.tests["seconds"], Welch) and other.reference == f"2 {first.name}"
    assert f"against that of set 2 {first.name}, two-sided" in p_caption([missed, first, other])


def test_an_interval_without_ends_has_a_reason(make_run: MakeRun) -> None:
    _, other = compared(make_run, [40, 80], [45, 90])
    test = other.tests["seconds"]
    assert isinstance(test, Welch) and test.interval is None
    assert "no finite ends" in welch_json(test)["reason"]


def test_each_set_is_tested_against_the_first(make_run: MakeRun) -> None:
    first, slower, same = compared(make_run, [40, 41, 42], [60, 61, 62], [40, 41, 42])
    assert first.tests == {}
    test = slower.tests["seconds"]
    assert isinstance(test, Welch) and test.p < 0.001 and test.ratio == pytest.approx(61 / 41)
    again = same.tests["seconds"]
    assert isinstance(again, Welch) and again.p == pytest.approx(1)
    assert format_p(test) == "2e-5" and format_p(None) == "–" and format_p("too few") == "–"


def test_runs_that_missed_their_target_have_no_time(make_run: MakeRun) -> None:
    first, other = compared(make_run, [40, 41], [10, None])
    assert other.values("seconds") == [10] and "fewer than two values" in str(other.tests["seconds"])
    assert [run.outcome for run in other.set.runs] == [Outcome.SUCCEEDED, Outcome.MISSED]
    document = as_json([first.set, other.set], [])["sets"][1]
    assert document["n"] == 1 and document["against_first"]["seconds"]["p"] is None
    assert "reason" in document["against_first"]["seconds"]


def test_slowest_ranks(make_run: MakeRun) -> None:
    work = [[10, 12], [10, 14], [30, 10], None, [5], "x", [1, True], [1, float("nan")], [3, -1], [2, 2]]
    steps = [step(number, **({} if times is None else {"rank_work_ms": times})) for number, times in enumerate(work, 1)]
    run = read_sets(find_runs([make_run(metrics=lines(steps), hosts__json='{"0": "one", "1": 7}')]))[0].runs[0]
    one, zero = slowest_ranks(run)
    assert (one.rank, one.steps, one.share) == (0, 2, 0.5) and one.host == "one"
    assert (one.excess_ms, one.excess_share) == (pytest.approx(5.0), pytest.approx(0.25))
    assert zero == SlowRank(1, 2, 0.5, pytest.approx(1.5), pytest.approx((1 / 11 + 2 / 12) / 2), "one")
    assert any("rank_work_ms of 4 steps is not a list of milliseconds" in note for note in run.notes)


def test_a_run_without_times_of_ranks_has_no_slowest(make_run: MakeRun) -> None:
    run = read_sets(find_runs([make_run()]))[0].runs[0]
    assert slowest_ranks(run) == [] and not run.notes and run.host(0) is None
