"""Inconsistencies in results."""

from dataclasses import replace
from typing import Any

import pytest

from podium.comparison.anomalies import inconsistencies
from podium.mllog.lines import Anomaly
from tests.podium.comparison.conftest import make_result, make_run


def test_a_consistent_result_has_no_anomalies() -> None:
    assert inconsistencies(make_result()) == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"status": "aborted"}, "1 run(s) did not reach the target (1 aborted, 9 success)"),
        ({"stop_ms": None}, "1 run(s) did not reach the target (1 no run_stop, 9 success)"),
        ({"setup_seconds": 1937.7}, "1 run(s) count as ones that did not reach the target: the first needed 32.3 min"),
        ({"global_batch_size": 256.0}, "1 of 256, 9 of 448"),
        ({"global_batch_size": None}, "9 of 448, 1 of none"),
        ({"division": "open"}, "logs have division 'closed', 'open', the description 'closed'"),
        ({"samples": None}, "1 run(s) do not log how many samples they took"),
        ({"train_samples": 156_725_653.0}, "156,725,653 against 2,400,000"),
        ({"digest": "1101.0-2640000.0"}, "2 logs are copies of one another"),
        ({"seeds": (1_101_000,)}, "2 runs share their seed with another run"),
        ({"anomalies": (Anomaly(7, "has two events", "two_events"),)}, "1 log(s): line 7 has two events"),
        ({"anomalies": (Anomaly(3, "5 line(s) end in CR LF", "crlf"),)}, "1 log(s): 5 line(s) end in CR LF"),
        (
            {"anomalies": (Anomaly(3, "1,536 line(s) end in CR LF, the first one", "crlf"),)},
            "1 log(s): 1,536 line(s) end in CR LF",
        ),
    ],
)
def test_inconsistent_runs_are_reported(changes: dict[str, Any], message: str) -> None:
    runs = [make_run(1000.0 + n + (n % 2) * 100, 2_400_000.0 * (1 + (n % 2) / 10)) for n in range(10)]
    found = inconsistencies(make_result([replace(runs[0], **changes), *runs[1:]]))
    assert len(found) == 1 and message in found[0]


@pytest.mark.parametrize("kind", ["json", "fields", "cut_off"])
def test_a_log_that_no_parser_reads_does_not_count(kind: str) -> None:
    runs = [make_run(1000.0 + n) for n in range(10)]
    runs[0] = replace(runs[0], anomalies=(Anomaly(7, "is broken", kind),))
    result = make_result(runs)
    assert len(result.converged) == 9 and result.score_minutes == make_result([make_run(1e9), *runs[1:]]).score_minutes
    assert inconsistencies(result) == [
        "1 run(s) count as ones that did not reach the target: the first has an event that no parser reads (line 7): "
        "the official checker rejects the log",
        "1 log(s): line 7 is broken",
    ]


def test_train_samples_rounded_to_batches_are_consistent() -> None:
    runs = [make_run(1000.0 + n, train_samples=2_400_000.0 + 448 * 9) for n in range(10)]
    assert inconsistencies(make_result(runs)) == []


def test_each_kind_of_log_anomaly_is_reported_once() -> None:
    anomalies = (
        Anomaly(1, "is early", "backwards"),
        Anomaly(9, "is late", "backwards"),
        Anomaly(2, "is empty", "empty"),
    )
    runs = [make_run(1000.0 + n, anomalies=anomalies) for n in range(10)]
    assert inconsistencies(make_result(runs)) == ["10 log(s): line 1 is early", "10 log(s): line 2 is empty"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"runs": ()}, "has 0 run(s)"),
        ({"accelerators": None}, "the description has number_of_nodes missing and accelerators_per_node missing"),
        ({"accelerators": 0}, "has 0 accelerators, but the description names the model 'NVIDIA A100-SXM4-80GB'"),
        (
            {"division": "open", "description": {"division": "open"}},
            "the description 'open'",
        ),
    ],
)
def test_inconsistent_results_are_reported(changes: dict[str, Any], message: str) -> None:
    found = inconsistencies(make_result(**changes))
    assert len(found) == 1 and message in found[0]


def test_divisions_are_compared_without_case() -> None:
    runs = [make_run(1000.0 + n, division="Closed") for n in range(10)]
    assert inconsistencies(make_result(runs)) == []


def test_an_unknown_benchmark_is_named() -> None:
    (found,) = inconsistencies(make_result([make_run(benchmark="chess\n2030")], benchmark="chess\n2030"))
    assert found == "chess 2030 is no benchmark that Podium knows: targets and score are not known"


def test_the_number_of_runs_is_the_benchmarks() -> None:
    runs = [make_run(1000.0 + n, benchmark="llama31_405b") for n in range(4)]
    assert inconsistencies(make_result(runs[:3], benchmark="llama31_405b")) == []
    assert inconsistencies(make_result(runs, benchmark="llama31_405b")) == ["has 4 run(s); a score needs 3"]
    small_dataset = [replace(run, train_samples=7.0) for run in runs[:3]]
    assert inconsistencies(make_result(small_dataset, benchmark="llama31_405b")) == []
