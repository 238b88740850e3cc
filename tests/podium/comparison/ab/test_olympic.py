"""The rules' own test of samples, against the official checker over files, and by hand."""

import io
import json
import math
from pathlib import Path

import numpy as np
import pytest
from mlperf_logging.rcp_checker import rcp_checker
from scipy import stats

from podium.comparison.ab.olympic import Fewer, fewer
from podium.comparison.ab.significance import UNUSABLE
from tests.podium.comparison.conftest import event

REFERENCE = [2.40e6, 2.45e6, 2.50e6, 2.55e6, 2.35e6, 2.60e6, 2.48e6, 2.52e6, 2.44e6, 2.56e6]


def test_by_hand() -> None:
    """The pooled test with the reference's spread on both sides, of eight values each."""
    samples = [value - 1.0e5 for value in REFERENCE]
    found = fewer(samples, 0, REFERENCE)
    assert isinstance(found, Fewer)
    middle = sum(sorted(REFERENCE)[1:-1]) / 8
    assert found.reference == pytest.approx(middle) and found.mean == pytest.approx(middle - 1.0e5)
    t = -1.0e5 / (float(np.std(REFERENCE)) * math.sqrt(2 / 8))
    assert found.p == pytest.approx(float(stats.t.cdf(t, 14)), rel=1e-9)
    least = middle + float(stats.t.ppf(0.05, 14)) * float(np.std(REFERENCE)) * math.sqrt(2 / 8)
    assert found.least == pytest.approx(least, abs=1)
    assert found.significant


@pytest.mark.parametrize("shift", [-20.0, 20.0])
def test_the_official_checker_says_the_same_of_logs(tmp_path: Path, shift: float) -> None:
    """Samples whose mean is a little below and a little above the least that is accepted."""
    found = fewer(REFERENCE, 0, REFERENCE)
    assert isinstance(found, Fewer) and not found.significant and found.p == pytest.approx(0.5)
    samples = [round(value - found.mean + found.least + shift) for value in REFERENCE]
    own = fewer(samples, 0, REFERENCE)
    for number, value in enumerate(samples):
        lines = [event("submission_benchmark", "bert"), event("global_batch_size", 448), event("train_samples", value)]
        text = "".join([*lines, event("run_stop", status="success")])
        (tmp_path / f"result_{number}.txt").write_text(text, encoding="utf-8")
    record = {"Benchmark": "bert", "BS": 448, "Hyperparams": {}, "Epochs to converge": list(REFERENCE)}
    accepted, _, _ = rcp_checker.check_directory(
        str(tmp_path),
        "training",
        "5.0.0",
        False,
        True,
        rcp_file=io.StringIO(json.dumps({"bert": record})),
        rcp_pass="full_rcps",
    )
    assert isinstance(own, Fewer) and own.significant == (not accepted) == (shift < 0)


def test_a_run_without_end_counts_as_the_greatest_and_two_are_too_many() -> None:
    whole = fewer(REFERENCE, 0, REFERENCE)
    one = fewer([value for value in REFERENCE if value != max(REFERENCE)], 1, REFERENCE)
    assert one == whole
    assert fewer(REFERENCE[:8], 2, REFERENCE) == "2 runs did not reach the target, and the rules allow one"


@pytest.mark.parametrize(
    ("samples", "reference", "why"),
    [
        (REFERENCE[:2], REFERENCE, "too few runs: without the least and the greatest nothing can be tested"),
        (REFERENCE, REFERENCE[:2], "too few runs: without the least and the greatest nothing can be tested"),
        (REFERENCE[:3], REFERENCE[:3], "too few runs: without the least and the greatest nothing can be tested"),
        (REFERENCE, [2e6] * 10, "the reference's runs all need the same"),
        ([1e300] * 10, REFERENCE, UNUSABLE),
        (REFERENCE, [1e300 * n for n in range(1, 11)], UNUSABLE),
        (REFERENCE, [-1.0, *REFERENCE], UNUSABLE),
    ],
)
def test_no_test(samples: list[float], reference: list[float], why: str) -> None:
    assert fewer(samples, 0, reference) == why


def test_false_alarms() -> None:
    random = np.random.default_rng(11)
    draws = [random.normal(2.5e6, 1e5, (2, 10)).tolist() for _ in range(600)]
    found = [fewer(a, 0, b) for a, b in draws]
    assert sum(isinstance(one, Fewer) and one.significant for one in found) / 600 == pytest.approx(0.05, abs=0.027)
