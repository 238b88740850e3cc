"""Inconsistencies in results."""

import ast
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import podium.mllog
from podium.comparison.anomalies import inconsistencies
from podium.mllog.anomaly_kinds import KINDS
from podium.mllog.lines import Anomaly
from podium.mllog.run import Run
from tests.podium.comparison.conftest import make_result, make_run

LOGS = tuple(f"result_{number}.txt" for number in range(10))


def test_a_consistent_result_has_no_anomalies() -> None:
    assert inconsistencies(make_result()) == ((), ())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"status": "aborted"}, "1 run(s) did not reach the target (1 aborted, 9 success): result_0.txt"),
        ({"stop_ms": None}, "1 run(s) did not reach the target (1 no run_stop, 9 success): result_0.txt"),
        (
            {"setup_seconds": 1937.7},
            "1 run(s) count as ones that did not reach the target: result_0.txt needed 32.3",
        ),
        ({"global_batch_size": 256.0}, "global batch sizes: 256 in result_0.txt and 448 in 9 other runs"),
        ({"global_batch_size": None}, "none in result_0.txt and 448 in 9 other runs"),
        ({"division": "open"}, "logs have division 'closed', 'open', the description 'closed'"),
        ({"samples": None}, "1 run(s) do not log how many samples they took: result_0.txt"),
        ({"train_samples": 156_725_653.0}, "156,725,653 against 2,400,000 in result_0.txt"),
        ({"digest": "1101.0-2640000.0"}, "2 logs are copies of one another: result_0.txt, result_1.txt"),
        ({"anomalies": (Anomaly(7, "has two events", "two_events"),)}, "result_0.txt: line 7 has two events"),
        ({"stop_ms": 1.7e12 + 1e9}, "1 run(s) have a time that cannot be right, 1,000,000.000 s in result_0.txt: left"),
    ],
)
def test_inconsistent_runs_are_reported(changes: dict[str, Any], message: str) -> None:
    found = inconsistencies(make_result(changed_runs(changes), logs=LOGS))
    assert len(found.affecting) == 1 and message in found.affecting[0] and not found.cosmetic


def changed_runs(changes: dict[str, Any]) -> list[Run]:
    runs = [make_run(1000.0 + n + (n % 2) * 100, 2_400_000.0 * (1 + (n % 2) / 10)) for n in range(10)]
    if "stop_ms" in changes and changes["stop_ms"] is not None:
        changes = {**changes, "start_ms": 1.7e12}
    return [replace(runs[0], **changes), *runs[1:]]


@pytest.mark.parametrize(
    ("changes", "kind", "message"),
    [
        ({"seeds": (1_101_000,)}, "runs share their seed with another run", "2 runs share their seed with another run"),
        (
            {"anomalies": (Anomaly(3, "5 line(s) end in CR LF", "crlf"),)},
            "line(s) end in CR LF",
            "result_0.txt: 5 line(s) end in CR LF",
        ),
        (
            {"anomalies": (Anomaly(3, "1,536 line(s) end in CR LF, the first one", "crlf"),)},
            "line(s) end in CR LF",
            "result_0.txt: 1,536 line(s) end in CR LF",
        ),
        (
            {"anomalies": (Anomaly(3, "is 1 ms earlier", "backwards"),)},
            "log(s) have lines that are earlier than those before them",
            "result_0.txt: line 3 is 1 ms earlier",
        ),
    ],
)
def test_what_affects_no_figure_is_cosmetic(changes: dict[str, Any], kind: str, message: str) -> None:
    assert inconsistencies(make_result(changed_runs(changes), logs=LOGS)) == ((), ((kind, message),))


def test_a_broken_clock_is_in_the_score_but_not_in_spread_and_rates() -> None:
    runs = [make_run(1000.0 + n) for n in range(10)]
    whole, broken = make_result(runs), make_result([*runs[:9], make_run(1_700_000_000.0)])
    assert broken.spread is not None and broken.spread.relative < 0.01
    assert broken.samples_per_second == make_result(runs[:9]).samples_per_second
    assert broken.score_minutes == pytest.approx(whole.score_minutes, rel=0.01)
    assert make_result([make_run(1_700_000_000.0)]).samples_per_second is None


def test_every_kind_of_log_anomaly_has_its_effect_at_its_definition() -> None:
    written = {kind for name in ("lines", "read") for kind in kinds_in(Path(podium.mllog.__path__[0]) / f"{name}.py")}
    assert written == set(KINDS)


def kinds_in(source: Path) -> set[str]:
    """The texts of a module's code that are kinds."""
    nodes = ast.walk(ast.parse(source.read_text(encoding="utf-8")))
    texts = {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    return texts & set(KINDS)


@pytest.mark.parametrize("kind", ["json", "fields", "cut_off"])
def test_a_log_that_no_parser_reads_does_not_count(kind: str) -> None:
    runs = [make_run(1000.0 + n) for n in range(10)]
    runs[0] = replace(runs[0], anomalies=(Anomaly(7, "is broken", kind),))
    result = make_result(runs, logs=LOGS)
    assert len(result.converged) == 9 and result.score_minutes == make_result([make_run(1e9), *runs[1:]]).score_minutes
    assert list(inconsistencies(result).affecting) == [
        "1 run(s) count as ones that did not reach the target: result_0.txt has an event that no parser reads (line 7)"
        ": the official checker rejects the log",
        "result_0.txt: line 7 is broken",
    ]


def test_train_samples_rounded_to_batches_are_consistent() -> None:
    runs = [make_run(1000.0 + n, train_samples=2_400_000.0 + 448 * 9) for n in range(10)]
    assert inconsistencies(make_result(runs)) == ((), ())


def test_each_kind_of_log_anomaly_is_reported_once() -> None:
    anomalies = (
        Anomaly(1, "is early", "backwards"),
        Anomaly(9, "is late", "backwards"),
        Anomaly(2, "is empty", "empty"),
    )
    runs = [make_run(1000.0 + n, anomalies=anomalies) for n in range(10)]
    found = inconsistencies(make_result(runs))
    assert found.affecting == ("10 logs, the first run 1: line 2 is empty",)
    assert [message for _, message in found.cosmetic] == ["10 logs, the first run 1: line 1 is early"]


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
    found = inconsistencies(make_result(**changes)).affecting
    assert len(found) == 1 and message in found[0]


def test_divisions_are_compared_without_case() -> None:
    runs = [make_run(1000.0 + n, division="Closed") for n in range(10)]
    assert inconsistencies(make_result(runs)) == ((), ())


def test_an_unknown_benchmark_is_named() -> None:
    (found,) = inconsistencies(make_result([make_run(benchmark="chess\n2030")], benchmark="chess\n2030")).affecting
    assert found == "chess 2030 is no benchmark that Podium knows: targets and score are not known"


def test_the_number_of_runs_is_the_benchmarks() -> None:
    runs = [make_run(1000.0 + n, benchmark="llama31_405b") for n in range(4)]
    assert inconsistencies(make_result(runs[:3], benchmark="llama31_405b")).affecting == ()
    assert inconsistencies(make_result(runs, benchmark="llama31_405b")).affecting == ("has 4 run(s); a score needs 3",)
    small_dataset = [replace(run, train_samples=7.0) for run in runs[:3]]
    assert inconsistencies(make_result(small_dataset, benchmark="llama31_405b")).affecting == ()
