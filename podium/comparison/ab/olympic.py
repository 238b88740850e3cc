"""The t-test by which MLPerf's rules hold samples to the target against a reference, made by the official checker.

The rules' test (mlperf_logging.rcp_checker) is one-sided and has a pooled variance. The mean of either side leaves out
the least and the greatest value, and so does its n. The standard deviation is the reference's, of all its values and
with n (np.std), for both sides: the other side is taken to spread like it. p of 0.05 or less is
significant. Of 4,000 simulated pairs of ten equal runs it calls 4.8% significant, but 14% where the reference spreads
half as much as the side: Welch's test (significance.py) is the one to believe then.
"""

import io
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any

from mlperf_logging.rcp_checker import rcp_checker

from podium.comparison.ab.significance import LEVEL, NO_SPREAD, UNUSABLE

RULESET = "5.0.0"
"""BERT's last; the test is the same in all of them."""
MOST_SAMPLES = 1e11
"""The checker searches the least accepted mean to 0.0001, and would search for ever where a float is coarser."""


@dataclass(frozen=True)
class Fewer:
    """Whether one side needs fewer samples than the other, which is the reference."""

    mean: float
    """Without the least and the greatest."""
    reference: float
    """The same of the reference."""
    least: float
    """The least mean that would not have been significantly below the reference's."""
    p: float
    """That the side does not need fewer."""

    @property
    def significant(self) -> bool:
        return self.p <= LEVEL


def fewer(samples: Sequence[float], unfinished: int, reference: Sequence[float]) -> Fewer | str:
    """The rules' test of a side's samples to the target, or why there is none, as a sentence fragment.

    `unfinished` runs of the side did not reach the target: one of them counts as the greatest, as the rules have it.
    """
    counted = sorted([*samples, *[math.inf] * unfinished])[1:-1]
    if not counted or len(reference) < 3 or len(counted) + len(reference) - 2 < 3:
        return "too few runs: without the least and the greatest nothing can be tested"
    if not math.isfinite(counted[-1]):
        return f"{unfinished} runs did not reach the target, and the rules allow one"
    if min(reference) <= 0 or max(*reference, counted[-1]) > MOST_SAMPLES:
        return UNUSABLE
    if max(reference) - min(reference) <= NO_SPREAD * max(reference):
        return "the reference's runs all need the same"
    checker = _checker(tuple(reference), len(counted) + 2)
    record = checker.rcp_data["reference"]
    middle, spread = float(record["RCP Mean"]), float(record["RCP Stdev"])
    own = mean(counted)
    _, p = checker._find_p_value(own, spread, len(counted), middle, spread, len(reference) - 2)
    found = Fewer(float(own), middle, float(record["Min Epochs"]), float(p))
    return found if math.isfinite(found.p) else UNUSABLE


def _checker(reference: tuple[float, ...], runs: int) -> Any:
    """The official checker with this one reference convergence point, for submissions of so many runs."""
    record = {"Benchmark": "bert", "BS": 1, "Hyperparams": {}, "Epochs to converge": list(reference)}
    file = io.StringIO(json.dumps({"reference": record}))
    checker = rcp_checker.RCP_Checker("training", RULESET, "bert", verbose=False, rcp_file=file)
    checker.submission_runs = runs
    checker.compute_rcp_stats()
    return checker
