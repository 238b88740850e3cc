"""What does not fit together is told, and nothing else is."""

from dataclasses import replace
from typing import Any

import pytest

from podium.comparison.anomalies import inconsistencies
from podium.mllog.lines import Oddity
from tests.podium.comparison.conftest import make_result, make_run


def test_nothing_odd() -> None:
    assert inconsistencies(make_result()) == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"status": "aborted"}, "1 run(s) did not reach the target (1 aborted, 9 success)"),
        ({"stop_ms": None}, "1 run(s) did not reach the target (1 no run_stop, 9 success)"),
        ({"setup_seconds": 1937.7}, "1 run(s) count as ones that did not reach the target: the first needed 32.3 min"),
        ({"global_batch_size": 256.0}, "1 of 256, 9 of 448"),
        ({"global_batch_size": None}, "9 of 448, 1 of none"),
        ({"division": "open"}, "logs say division 'closed', 'open', the description 'closed'"),
        ({"samples": None}, "1 run(s) do not tell how many samples they took"),
        ({"train_samples": 156_725_653.0}, "156,725,653 against 2,400,000"),
        ({"digest": "1101.0-2640000.0"}, "2 logs are copies of one another"),
        ({"seeds": (1_101_000,)}, "2 runs have a seed that another has too"),
        ({"oddities": (Oddity(7, "is cut off", "cut_off"),)}, "1 log(s): line 7 is cut off"),
        ({"oddities": (Oddity(3, "5 line(s) end in CR LF", "crlf"),)}, "1 log(s): 5 line(s) end in CR LF"),
    ],
)
def test_of_runs(changes: dict[str, Any], words: str) -> None:
    runs = [make_run(1000.0 + n + (n % 2) * 100, 2_400_000.0 * (1 + (n % 2) / 10)) for n in range(10)]
    found = inconsistencies(make_result([replace(runs[0], **changes), *runs[1:]]))
    assert len(found) == 1 and words in found[0]


def test_train_samples_of_whole_batches_are_right() -> None:
    runs = [make_run(1000.0 + n, train_samples=2_400_000.0 + 448 * 9) for n in range(10)]
    assert inconsistencies(make_result(runs)) == []


def test_each_kind_of_oddity_is_told_once() -> None:
    odd = (Oddity(1, "is early", "backwards"), Oddity(9, "is late", "backwards"), Oddity(2, "is empty", "empty"))
    runs = [make_run(1000.0 + n, oddities=odd) for n in range(10)]
    assert inconsistencies(make_result(runs)) == ["10 log(s): line 1 is early", "10 log(s): line 2 is empty"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"runs": ()}, "has 0 run(s)"),
        ({"accelerators": None}, "number_of_nodes None and accelerators_per_node None do not tell"),
        ({"accelerators": 0}, "has 0 accelerators, and their model is 'NVIDIA A100-SXM4-80GB'"),
        (
            {"division": "open", "description": {"division": "open"}},
            "the description 'open'",
        ),
    ],
)
def test_of_results(changes: dict[str, Any], words: str) -> None:
    found = inconsistencies(make_result(**changes))
    assert len(found) == 1 and words in found[0]


def test_spelled_otherwise_is_the_same_division() -> None:
    runs = [make_run(1000.0 + n, division="Closed") for n in range(10)]
    assert inconsistencies(make_result(runs)) == []
