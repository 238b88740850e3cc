"""Runs and anomalies read from logs, also of both published rounds against known values."""

import json
import tracemalloc
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from podium.mllog.lines import Limits
from podium.mllog.read import LIMITS, read_log
from podium.mllog.results_tree import find_packages
from podium.mllog.run import RunLog

Line = Callable[..., str]
KNOWN = Path(__file__).resolve().parents[4] / "shared" / "data" / "published_bert_scores_v2.0_v2.1.json"


def kinds(log: RunLog) -> list[str]:
    return [anomaly.kind for anomaly in log.anomalies]


def test_run_of_a_valid_log(write_log_file: Any, run_lines: Any) -> None:
    log = read_log(write_log_file(run_lines()))
    assert log.anomalies == ()
    assert (log.seconds, log.status, log.seeds, log.benchmark) == (120.5, "success", (7,), "bert")
    assert (log.global_batch_size, log.train_samples, log.eval_samples) == (448, 300_160, 10_000)
    assert [(e.samples, e.accuracy, e.passes) for e in log.evaluations] == [
        (150_080, 0.5, False),
        (300_160, 0.73, True),
    ]
    assert log.passing == log.evaluations[1] and log.samples == 300_160
    assert (log.division, log.org, log.platform, log.first("x"), log.all("x")) == (None, None, None, None, ())


def test_log_without_events_has_no_values(write_log_file: Any) -> None:
    log = read_log(write_log_file(b"not a log\n"))
    assert kinds(log) == ["empty"]
    found = (log.seconds, log.status, log.seeds, log.samples, log.evaluations, log.passing)
    assert found == (None, None, (), None, (), None)


@pytest.mark.parametrize(
    ("epochs", "doubt"),
    [
        ([1, 1], "is 1 in all evaluations"),
        ([1, 2], "is 1 in an evaluation, too few to be samples"),
        ([0.0043, 0.0086], "is 0.0043 in an evaluation"),
        ([300, 1500], "is 300 in an evaluation"),
        ([150_080, 150_000], "does not increase"),
        ([150_080, None], "is missing or not a number"),
        ([150_080, "300160"], "is missing or not a number"),
        ([150_080.0, 300_160.0], ""),
        ([7_000, 15_007], "is 15007 in the last evaluation, within 15010 steps for 300,160 samples"),
        ([7_000, 15_008], ""),
        ([300, 600], "is 300 in an evaluation, too few to be samples"),
        ([7_000, 15_011], ""),
    ],
)
def test_unit_of_epoch_num(write_log_file: Any, run_lines: Any, line: Line, epochs: list[Any], doubt: str) -> None:
    lines = [text for text in run_lines() if '"eval_accuracy"' not in text]
    lines[4:4] = [line("eval_accuracy", 0.73, 2000 + i, epoch_num=epoch) for i, epoch in enumerate(epochs)]
    lines.append(line("opt_learning_rate_training_steps", 15_010, 99_000))
    log = read_log(write_log_file(lines))
    assert doubt in log.epoch_doubt and bool(log.epoch_doubt) == bool(doubt)
    assert ("epoch_num" in kinds(log)) == bool(doubt)
    steps = {15_007: None, 600: 448 * 600}.get(epochs[1])
    assert log.epochs_are_steps == (steps is not None)
    assert log.trained == (steps or (log.train_samples if doubt else epochs[1]))
    assert log.samples == ((steps and 448 * 300) or (log.train_samples if doubt else epochs[0]))


def test_run_that_continues_after_the_target(write_log_file: Any, run_lines: Any, line: Line) -> None:
    continued = read_log(write_log_file(run_lines((0.5, 0.72, 0.71))))
    assert (continued.samples, continued.trained) == (300_160, 450_240)
    later = line("eval_accuracy", 0.73, 130_000, epoch_num=450_240)
    assert read_log(write_log_file([*run_lines((0.5, 0.72)), later])).trained == 300_160
    aborted = read_log(write_log_file(run_lines((0.5, 0.6), status="aborted")))
    assert (aborted.samples, aborted.trained) == (None, None)


def test_only_a_successful_run_has_samples_to_target(write_log_file: Any, run_lines: Any) -> None:
    assert read_log(write_log_file(run_lines((0.5, 0.72)))).samples == 300_160
    assert read_log(write_log_file(run_lines((0.5, 0.7199)))).samples is None
    assert read_log(write_log_file(run_lines((0.5, 0.73), status="aborted"))).samples is None
    assert read_log(write_log_file(run_lines((0.5, 1.0)))).passing is None


CASES: dict[str, Callable[[list[str]], list[str]]] = {
    "truncated": lambda lines: lines[:6],
    "time": lambda lines: [lines[0].replace("1700000000000", "17000000000000"), *lines[1:]],
    "backwards": lambda lines: [lines[1], lines[0], *lines[2:]],
    "number": lambda lines: [text.replace('"value": 10000', '"value": [10000]') for text in lines],
    "point_in_time": lambda lines: [text.replace("INTERVAL_END", "POINT_IN_TIME") for text in lines],
    "accuracy": lambda lines: [text.replace("0.5,", '"0.5",') for text in lines],
}


@pytest.mark.parametrize("kind", CASES)
def test_each_anomaly_is_reported(write_log_file: Any, run_lines: Any, kind: str) -> None:
    log = read_log(write_log_file(CASES[kind](list(run_lines()))))
    assert set(kinds(log)) == {kind}
    assert log.eval_samples == (None if kind == "truncated" else 10_000)


def test_evaluations_after_the_target_or_their_block_are_reported(
    write_log_file: Any, run_lines: Any, line: Line
) -> None:
    assert kinds(read_log(write_log_file(run_lines((0.5, 0.73, 0.74))))) == ["after_target"]
    lines = list(run_lines())
    lines[4:4] = [line("block_start", None, 2000, "INTERVAL_START"), line("block_stop", None, 90_000, "INTERVAL_END")]
    log = read_log(write_log_file(lines))
    assert kinds(log) == ["backwards", "after_block"]
    assert log.anomalies[0].line == 7


def test_reading_stops_at_the_limits(write_log_file: Any, line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    """With an eighth of the limits; memory is at most six times the characters."""
    monkeypatch.setattr("podium.mllog.read.LIMITS", Limits(LIMITS.events // 8, LIMITS.content // 8))
    log = read_log(write_log_file([line("noise")] * (LIMITS.events // 8 + 9)))
    assert len(log.events) == LIMITS.events // 8 and "too_long" in kinds(log)
    for value in ("x" * 125_000, [[[]]] * 375, {str(i): {} for i in range(375)}):
        path = write_log_file([line("noise", value)] * 100)
        tracemalloc.start()
        log = read_log(path)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert 8 <= len(log.events) < 100 and "too_long" in kinds(log) and peak < 6 << 20


# Anomalies of two logs of each published result.
IN_SAMPLE = {
    "crlf": 64,
    "backwards": 85,
    "prefix": 74,
    "epoch_num": 14,
    "after_block": 10,
    "number": 6,
    "point_in_time": 4,
    "keyboard": 1,
}


@pytest.mark.slow
@pytest.mark.parametrize("every", [5, pytest.param(1, marks=pytest.mark.exhaustive)])
def test_published_logs_have_their_known_values(round_2_0: Path, round_2_1: Path, every: int) -> None:
    """Times, batch sizes and status of 1,000 logs, or of two of each result, and the counts of their anomalies."""
    known = json.loads(KNOWN.read_text(encoding="utf-8"))
    assert len(known) == 100
    reported: Counter[str] = Counter()
    packages = {"v2.0": find_packages(round_2_0), "v2.1": find_packages(round_2_1)}
    results = {
        (name, result.system): result
        for name, found in packages.items()
        for package in found
        for result in package.results
    }
    assert len(results) == 100 and sum(len(result.logs) for result in results.values()) == 1_000
    for row in known:
        logs = [read_log(path) for path in results[row["round"], row["system"]].logs[::every]]
        reported.update(kind for log in logs for kind in set(kinds(log)))
        assert {log.global_batch_size for log in logs} == {row["global_batch_size"]}, row["system"]
        missed = sum(log.samples is None for log in logs)
        assert missed == row["n_nonconverged"] if every == 1 else missed <= row["n_nonconverged"], row["system"]
        times = {round(seconds, 2) for seconds in row["run_times_s"] if seconds is not None}
        converged = {round(log.seconds or 0, 2) for log in logs if log.samples is not None}
        assert converged <= times, row["system"]
    whole = {
        "crlf": 320,
        "backwards": 392,
        "prefix": 352,
        "epoch_num": 70,
        "after_block": 50,
        "number": 30,
        "point_in_time": 20,
        "keyboard": 1,
        "truncated": 1,
        "time": 1,
    }
    assert dict(reported) == (whole if every == 1 else IN_SAMPLE)
