"""What is taken of a log."""

import json
from pathlib import Path
from typing import Any

import pytest

from podium.comparison.run import Point, Run, run_from_json, run_of
from podium.reading.log import read_log
from tests.podium.comparison.conftest import START, event, log_text, make_run


def read(folder: Path, text: str) -> Run:
    path = folder / "result_0.txt"
    path.write_text(text, encoding="utf-8")
    return run_of(read_log(path), "digest")


def test_a_log(tmp_path: Path) -> None:
    run = read(tmp_path, log_text(opt_name="lamb", opt_base_learning_rate=[0.0004], seed="x"))
    assert (run.digest, run.start_ms, run.stop_ms, run.seconds) == ("digest", START, START + 1e6, 1000.0)
    assert (run.status, run.converged, run.benchmark, run.division, run.org) == (
        "success",
        True,
        "bert",
        "closed",
        "ORG",
    )
    assert (run.init_seconds, run.first_step_seconds) == (60.0, 1.0)
    assert run.evaluating_seconds == pytest.approx(0.4)
    assert run.evaluations[1] == Point(500.0, 896_000, 0.6)
    assert (run.samples, run.train_samples, run.global_batch_size) == (1_792_000, 1_792_000, 448)
    assert run.rate == 1792.0 and run.training_rate == pytest.approx(1_792_000 / 999.6)
    assert run.hyperparameters == {"opt_name": "lamb", "opt_base_learning_rate": 0.0004}
    assert run.seeds == (1_000_000,)


def test_a_log_that_says_nothing(tmp_path: Path) -> None:
    run = read(tmp_path, "nothing\n")
    known = {key: value for key, value in run.as_json().items() if value not in (None, (), {}, 0)}
    assert set(known) == {"digest", "oddities"}
    assert (run.seconds, run.rate, run.training_rate, run.steady_rate, run.startup_seconds) == (None,) * 5
    assert not run.converged and run.closing_seconds is None


def test_there_and_back_as_json(tmp_path: Path) -> None:
    run = read(tmp_path, log_text().replace("\n", "\r\n"))
    assert run.oddities
    assert run_from_json(json.loads(json.dumps(run.as_json()))) == run


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
def test_time_in_evaluation(tmp_path: Path, edges: list[tuple[str, int]], seconds: float | None) -> None:
    lines = [event("run_start"), *(event(key, ms=1000 * at) for key, at in edges)]
    run = read(tmp_path, "".join([*lines, event("run_stop", ms=100_000, status="success")]))
    assert run.evaluating_seconds == seconds


def test_what_evaluations_tell_of_throughput() -> None:
    points = [(130.0, 1000.0, 0.3), (230.0, 2000.0, 0.5), (330.0, 3000.0, 0.73), (530.0, 5000.0, 0.74)]
    run = make_run(340.0, 3000.0, evaluations=tuple(Point(*point) for point in points))
    assert run.steady_rate == 10.0, "what follows the target does not count"
    assert run.startup_seconds == pytest.approx(30.0)
    assert run.closing_seconds == pytest.approx(10.0)


@pytest.mark.parametrize(
    "changes",
    [
        {"evaluations": (Point(130.0, 1000.0, 0.73),)},
        {"evaluations": (Point(130.0, None, 0.5), Point(230.0, 2000.0, 0.73))},
        {"evaluations": (Point(230.0, 1000.0, 0.5), Point(230.0, 2000.0, 0.73))},
        {"status": "aborted"},
        {"stop_ms": None},
        {"stop_ms": START - 1},
    ],
)
def test_what_evaluations_do_not_tell(changes: dict[str, Any]) -> None:
    run = make_run(**changes)
    assert run.steady_rate is None and run.startup_seconds is None
