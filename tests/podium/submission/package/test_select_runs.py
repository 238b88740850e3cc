"""Selection of ten runs: the window with the median score, never the best, and a reason for every broken rule."""

import math
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from statistics import mean
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podium.config.load import load_system
from podium.mllog.read import read_log
from podium.mllog.score import median_window, window_scores
from podium.mllog.write import RESTARTED
from podium.submission.package.find_runs import read_runs
from podium.submission.package.select_runs import SET_RULES, rejection_reasons, scoring_seconds, select_window
from tests.podium.submission.conftest import edit, set_times, set_value

SECONDS = st.one_of(st.floats(1, 1e5), st.just(math.inf))


@given(st.lists(SECONDS, min_size=1, max_size=40))
def test_the_window_at_the_median_has_as_many_faster_as_slower_ones(scores: list[float]) -> None:
    window = median_window(scores)
    faster = sum(score < scores[window] for score in scores)
    slower = sum(score > scores[window] for score in scores)
    assert faster <= len(scores) // 2
    assert slower <= (len(scores) - 1) // 2
    assert window == scores.index(scores[window])


@given(st.lists(st.floats(1, 1e5), min_size=2, max_size=40, unique=True))
def test_the_selected_window_is_never_the_best_and_the_slower_of_two_medians(scores: list[float]) -> None:
    taken = scores[median_window(scores)]
    assert taken > min(scores)
    assert sum(score < taken for score in scores) == len(scores) // 2


@given(st.lists(st.floats(1, 1e5), min_size=1, max_size=40), st.randoms())
def test_the_order_of_windows_does_not_matter_to_the_score(scores: list[float], source: random.Random) -> None:
    other = scores.copy()
    source.shuffle(other)
    assert scores[median_window(scores)] == other[median_window(other)]


@given(st.lists(SECONDS, min_size=10, max_size=30))
def test_a_window_is_ten_consecutive_runs_without_the_fastest_and_the_slowest(seconds: list[float]) -> None:
    scores = window_scores(seconds)
    assert len(scores) == len(seconds) - 9
    for first, score in enumerate(scores):
        window = sorted(seconds[first : first + 10])
        if sum(map(math.isinf, window)) > 1:
            assert score == math.inf
        else:
            assert score == pytest.approx(mean(window[1:-1]))


def test_windows_of_other_benchmarks_leave_out_as_many_runs_as_their_rules() -> None:
    assert window_scores([1.0, 2.0, 3.0, 5.0, math.inf, math.inf], 5, 1) == [pytest.approx(10 / 3), math.inf]
    assert window_scores([float(n) for n in range(41)], 40, 4) == [19.5, 20.5]
    assert window_scores([1.0, 2.0, 6.0], 3, 0) == [3.0]


def test_fewer_than_ten_runs_have_no_window() -> None:
    with pytest.raises(ValueError, match="9 runs"):
        window_scores([1.0] * 9)


def test_of_four_windows_the_slower_middle_one_is_selected(make_set: Any) -> None:
    made = make_set([100, 100, 100, 100, 100, 100, 100, 100, 100, 100, 108, 116, 124])
    selection = select_window(read_runs(made.logs[0].parent))
    assert selection.scores == (100.0, 100.0, 101.0, 103.0)
    assert selection.window == 2 and selection.score == 101.0
    assert [run.name for run in selection.selected_runs] == [f"result_{n}.txt" for n in range(2, 12)]


def test_runs_are_sorted_by_time_not_by_name(make_set: Any) -> None:
    made = make_set([100] * 11)
    edit(made.logs[10], set_times(1_600_000_000_000, 50))
    assert [run.name for run in read_runs(made.logs[0].parent)][:2] == ["result_10.txt", "result_0.txt"]


def events_without(key: str) -> Callable[[list[dict[str, Any]]], None]:
    def change(events: list[dict[str, Any]]) -> None:
        events[:] = [event for event in events if event["key"] != key]

    return change


def doubled(key: str) -> Callable[[list[dict[str, Any]]], None]:
    def change(events: list[dict[str, Any]]) -> None:
        events.extend([event | {"value": 5} for event in events if event["key"] == key])

    return change


def restart(events: list[dict[str, Any]]) -> None:
    events.insert(-1, events[-1] | {"key": RESTARTED, "value": 1})


def fail(events: list[dict[str, Any]]) -> None:
    next(event for event in events if event["key"] == "run_stop")["metadata"]["status"] = "aborted"


FAULTS: list[tuple[str, str, tuple[tuple[int, Callable[[list[dict[str, Any]]], None]], ...]]] = [
    ("whole logs", "run_stop", ((4, events_without("run_stop")),)),
    ("whole logs", "run_start", ((4, events_without("run_start")),)),
    ("no restarted run", "result_4.txt", ((4, restart),)),
    ("consecutive runs", "result_5.txt began before result_4.txt", ((4, set_times(1_700_000_000_000 + 4e6, 1001)),)),
    ("converged runs", "result_2.txt, result_6.txt", ((2, fail), (6, fail))),
    ("same settings", "opt_base_learning_rate", ((7, set_value("opt_base_learning_rate", 0.5)),)),
    ("same settings", "global_batch_size", ((7, events_without("global_batch_size")),)),
    ("same settings", "cache_clear", ((7, set_value("cache_clear", False)),)),
    ("distinct seeds", "no seed", ((3, events_without("seed")),)),
    ("distinct seeds", "2 seeds", ((3, doubled("seed")),)),
    ("distinct seeds", "result_3.txt and result_1.txt", ((3, set_value("seed", 1001)),)),
    ("logged names", "submission_org", ((0, set_value("submission_org", "Another")),)),
    ("logged names", "submission_platform", ((0, set_value("submission_platform", "another")),)),
    ("logged names", "submission_division", ((0, set_value("submission_division", "Open")),)),
    ("logged names", "submission_status", ((0, set_value("submission_status", "preview")),)),
    ("logged names", "submission_benchmark", ((0, set_value("submission_benchmark", "resnet")),)),
]


@pytest.mark.parametrize(("rule", "text", "changes"), FAULTS, ids=[f"{rule}: {text}" for rule, text, _ in FAULTS])
def test_every_rule_refuses(make_set: Any, rule: str, text: str, changes: Any) -> None:
    made = make_set()
    description = load_system(str(made.system)).description
    assert rejection_reasons(read_runs(made.logs[0].parent), description, "Podium") == []
    for number, change in changes:
        edit(made.logs[number], change)
    reasons = rejection_reasons(read_runs(made.logs[0].parent), description, "Podium")
    assert any(reason.startswith(f"{rule}: ") and text in reason for reason in reasons), reasons


def test_every_rule_has_a_fault() -> None:
    assert {rule for rule, _, _ in FAULTS} | {"ten runs"} == set(SET_RULES)


def test_nine_runs_are_refused(make_set: Any) -> None:
    made = make_set([100] * 9)
    (reason,) = rejection_reasons(read_runs(made.logs[0].parent), load_system(str(made.system)).description, "Podium")
    assert reason.startswith("ten runs: ") and "has 9 runs" in reason


def test_one_failed_run_counts_as_the_slowest(make_set: Any) -> None:
    made = make_set(failed=[5])
    runs = read_runs(made.logs[0].parent)
    assert rejection_reasons(runs, load_system(str(made.system)).description, "Podium") == []
    assert select_window(runs).score == pytest.approx(mean([101, 102, 103, 104, 106, 107, 108, 109]))


def test_only_the_selected_window_must_have_converged(make_set: Any) -> None:
    """Windows with two failed runs are the slowest; where most windows have two, the median does too."""
    for failed, refused in (([0, 1], False), ([5, 6], True)):
        made = make_set([100 + n for n in range(14)], failed=failed)
        reasons = rejection_reasons(read_runs(made.logs[0].parent), load_system(str(made.system)).description, "Podium")
        assert bool(reasons) == refused
        shutil.rmtree(made.results)


def test_a_truncated_log_is_a_run_that_did_not_converge(make_set: Any) -> None:
    made = make_set()
    text = made.logs[0].read_text(encoding="utf-8")
    made.logs[0].write_text(text[: len(text) // 8], encoding="utf-8")
    run = read_log(made.logs[0])
    assert run.stop_ms is None and not run.converged and scoring_seconds(run) == math.inf


def test_a_folder_without_results_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has no result_"):
        read_runs(tmp_path)
