"""Values of a run, derived from its log."""

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from podium.mllog.read import read_log
from podium.mllog.run import Point, Run, as_number, run_from_json
from podium.mllog.score import counted_seconds, score_seconds
from tests.podium.comparison.conftest import START, evaluations_at, event, log_text, make_run


def read(folder: Path, text: str) -> Run:
    path = folder / "result_0.txt"
    path.write_text(text, encoding="utf-8")
    return read_log(path).run("digest")


def test_run_of_a_valid_log(tmp_path: Path) -> None:
    run = read(tmp_path, log_text(opt_name="lamb", opt_base_learning_rate=[0.0004], seed="x"))
    assert (run.digest, run.start_ms, run.stop_ms, run.seconds) == ("digest", START, START + 1e6, 1000.0)
    assert (run.status, run.converged, run.benchmark, run.division, run.org) == (
        "success",
        True,
        "bert",
        "closed",
        "ORG",
    )
    assert run.init_seconds == 60.0
    assert run.evaluating_seconds == pytest.approx(0.4)
    assert run.points[1] == Point(500.0, 896_000, 0.6, False)
    assert (run.samples, run.train_samples, run.global_batch_size) == (1_792_000, 1_792_000, 448)
    assert run.rate == 1792.0 and run.training_rate == pytest.approx(1_792_000 / 999.6)
    assert run.hyperparameters == {"opt_name": "lamb", "opt_base_learning_rate": 0.0004}
    assert run.seeds == (1_000_000,)


def test_log_without_events_has_no_values(tmp_path: Path) -> None:
    run = read(tmp_path, "nothing\n")
    known = {key: value for key, value in asdict(run).items() if value not in (None, (), {}, 0)}
    assert set(known) == {"digest", "folder", "anomalies"}
    assert (run.seconds, run.rate, run.training_rate, run.steady_rate, run.startup_seconds) == (None,) * 5
    assert not run.converged and run.closing_seconds is None


def test_run_round_trips_through_json(tmp_path: Path) -> None:
    run = read(tmp_path, log_text().replace("\n", "\r\n"))
    assert run.anomalies
    assert run_from_json(json.loads(json.dumps(asdict(run)))) == run


@pytest.mark.parametrize(
    ("edges", "seconds"),
    [
        ([("eval_start", 10), ("eval_stop", 20), ("eval_start", 50), ("eval_stop", 55)], 15),
        ([("eval_stop", 20), ("eval_start", 10)], 10),
        ([("eval_start", 10), ("eval_start", 15), ("eval_stop", 20), ("eval_stop", 30)], 20),
        ([("eval_start", 10), ("eval_stop", 10)], 0),
        ([("eval_start", -10), ("eval_stop", 5)], 5),
        ([("eval_start", 90), ("eval_stop", 120)], 10),
        ([("eval_start", 110), ("eval_stop", 120)], 0),
        ([("eval_start", 10)], None),
        ([("eval_start", 20), ("eval_stop", 10)], None),
        ([("eval_start", 10), ("eval_stop", 20), ("eval_stop", 30)], None),
        ([], None),
    ],
)
def test_evaluating_seconds(tmp_path: Path, edges: list[tuple[str, int]], seconds: float | None) -> None:
    lines = [event("run_start"), *(event(key, ms=1000 * at) for key, at in edges)]
    run = read(tmp_path, "".join([*lines, event("run_stop", ms=100_000, status="success")]))
    assert run.evaluating_seconds == seconds


def test_implausible_values_are_none(tmp_path: Path) -> None:
    org = "\ud800\x1b[31mA\n\u202eB" * 200
    odd = log_text(submission_org=org, batch=-448, train_samples=1e300)
    run = read(tmp_path, odd.replace('"value": 0.6', '"value": 60.0'))
    assert run.org is not None and run.org.startswith("[31mA B [31mA B") and len(run.org) == 300
    assert run.global_batch_size is None and run.train_samples is None
    assert [point.accuracy for point in run.points] == [0.4, 0.7, 0.73]
    assert {point.samples for point in run.points} == {None}


@pytest.mark.parametrize(
    ("status", "expected"), [("success ", "'success '"), ("Success", "'Success'"), ("aborted", "aborted"), (7, None)]
)
def test_only_the_exact_status_is_success(tmp_path: Path, status: object, expected: str | None) -> None:
    run = read(tmp_path, event("run_start") + event("run_stop", ms=5, status=status))
    assert run.status == expected and not run.converged


@pytest.mark.parametrize(
    ("division", "minutes", "refused"),
    [
        ("closed", 29.999, None),
        ("closed", 30, "needed 30.0 minutes from init_start to init_stop, of 30 allowed"),
        ("open", 239, None),
        ("open", 240, "needed 240.0 minutes from init_start to init_stop, of 240 allowed"),
        ("neither", 999, None),
    ],
)
def test_run_with_too_long_setup_does_not_converge(
    tmp_path: Path, division: str, minutes: float, refused: str | None
) -> None:
    text = log_text(submission_division=division).replace(event("init_start", ms=-60_000), "")
    edges = event("init_start", ms=-60_000 * minutes - 5) + event("init_start", ms=0) + event("init_stop", ms=-5)
    run = read(tmp_path, edges + text)
    assert (run.setup_seconds, run.rejection_reason) == (pytest.approx(60 * minutes), refused)
    assert run.succeeded and run.converged == (refused is None)
    ten = [make_run(seconds) for seconds in range(2, 11)]
    counted = [counted_seconds(one) for one in (replace(run, stop_ms=START + 1000.0), *ten)]
    assert score_seconds(counted) == (5.5 if refused is None else 6.5)


def test_closed_run_below_its_target_does_not_converge(tmp_path: Path) -> None:
    low = log_text().replace("0.73", "0.7199")
    assert (
        read(tmp_path, low).rejection_reason
        == "has status success, but no evaluation reaches masked-LM accuracy ≥ 0.72"
    )
    assert read(tmp_path, low.replace('"closed"', '"open"')).converged
    assert read(tmp_path, log_text()).converged and not make_run(status="aborted").converged


def test_rate_and_startup_from_evaluations() -> None:
    points = [(130.0, 1000.0, 0.3), (230.0, 2000.0, 0.5), (330.0, 3000.0, 0.73), (530.0, 5000.0, 0.74)]
    run = make_run(340.0, 3000.0, evaluations=evaluations_at(points))
    assert run.steady_rate == 10.0, "evaluations after the target do not count"
    assert run.startup_seconds == pytest.approx(30.0)
    assert run.closing_seconds == pytest.approx(10.0)


@pytest.mark.parametrize(
    "changes",
    [
        {"evaluations": evaluations_at([(130.0, 1000.0, 0.73)])},
        {"evaluations": evaluations_at([(130.0, None, 0.5), (230.0, 2000.0, 0.73)])},
        {"evaluations": evaluations_at([(230.0, 1000.0, 0.5), (230.0, 2000.0, 0.73)])},
        {"status": "aborted"},
        {"stop_ms": None},
        {"stop_ms": START - 1},
    ],
)
def test_no_steady_rate_without_two_valid_evaluations(changes: dict[str, Any]) -> None:
    run = make_run(**changes)
    assert run.steady_rate is None and run.startup_seconds is None


@pytest.mark.parametrize(
    ("value", "number"),
    [(1, 1), (0.5, 0.5), ([448], 448), (True, None), ([False], None), ("1", None), ([1, 2], None), (None, None)],
)
def test_as_number_accepts_numbers_and_lists_of_one(value: Any, number: float | None) -> None:
    assert as_number(value) == number


def test_as_number_rejects_non_finite_numbers() -> None:
    assert as_number(float("nan")) is as_number(float("inf")) is None
