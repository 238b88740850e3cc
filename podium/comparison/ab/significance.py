"""Significance of a difference between two sets of numbers: Welch's test, and the t-test of MLPerf's rules.

Each set is summarised and compared with the other, with the smallest difference that could have been detected.

The t-test by which MLPerf's rules compare samples to the target with a reference is computed by the official checker
(mlperf_logging.rcp_checker). It is one-sided and has a pooled variance. The mean of either side leaves out the least
and the greatest value, and so does its n. The standard deviation is the reference's, of all its values and with n
(np.std), for both sides: the other side is assumed to have the same spread. p of 0.05 or less is significant. Of
4,000 simulated pairs of ten equal runs it calls 4.8% significant, but 14% where the reference spreads half as much
as the other side: then Welch's test is the one to trust.
"""

import io
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean, median
from typing import Any

import numpy as np
from mlperf_logging.rcp_checker import rcp_checker
from scipy import optimize, stats

LEVEL = 0.05  # a p-value below it is called significant; intervals hold the truth in 1 - LEVEL of all cases
POWER = 0.8  # how often `Welch.detectable_ratio` would have been called significant
NO_SPREAD = 1e-12  # a standard deviation that is no more than this share of the mean is rounding
UNUSABLE = "the values are none that can be computed with"  # why there is no test of numbers such as 1e300
WIDEST = 20.0  # logarithm of a ratio that is as good as infinite
# Noncentrality that is seen more often than POWER at any degrees of freedom from 1: there 16.4 is enough.
FARTHEST = 64.0
LARGEST_RATIO = 100.0  # where nothing smaller could have been seen, nothing is said of it


@dataclass(frozen=True)
class Summary:
    """One side's values of one quantity. All in its unit."""

    values: tuple[float, ...]
    n: int
    mean: float | None  # None without a value, and where the values are too great to be added
    sd: float | None  # with n - 1; None for fewer than two values
    median: float | None
    interval: tuple[float, float] | None  # of the mean: Student's t, 95%


@dataclass(frozen=True)
class Welch:
    """A against B.

    Exchanging them inverts `ratio` and `interval`, negates `t`, exchanges the one-sided p and keeps the rest.
    """

    ratio: float  # mean of A by mean of B
    interval: tuple[float, float] | None  # of the ratio, 95%: see `fieller`. None where it has no end
    t: float
    degrees: float  # Welch's degrees of freedom
    p: float  # Welch's t-test, two-sided
    p_less: float  # that A is not less than B: one-sided
    p_greater: float
    # The ratio of means (or its inverse) that these n and sd would have called significant, two-sided, in 80% of all
    # cases. None where it is beyond LARGEST_RATIO. See `detectable`.
    detectable_ratio: float | None

    @property
    def significant(self) -> bool:
        return self.p < LEVEL


def summary(values: Sequence[float]) -> Summary:
    """Finite values in any number; none of what comes back is infinite or NaN."""
    numbers = tuple(float(value) for value in values)
    assert all(map(math.isfinite, numbers))
    n = len(numbers)
    middle = median(numbers) if numbers else None
    with np.errstate(over="ignore", invalid="ignore"):
        mean = _finite(float(np.mean(numbers))) if numbers else None
        sd = _finite(float(np.std(numbers, ddof=1))) if n > 1 else None
    if middle is not None and not math.isfinite(middle):
        middle = None
    interval = None
    if mean is not None and sd is not None:
        half = float(stats.t.ppf(1 - LEVEL / 2, n - 1)) * sd / math.sqrt(n)
        interval = (mean - half, mean + half)
    return Summary(numbers, n, mean, sd, middle, interval)


def compare(a: Summary, b: Summary) -> Welch | str:
    """Welch's t-test of two sets of positive numbers, or why there is none, as a sentence fragment."""
    few = [name for name, side in (("A", a), ("B", b)) if side.n < 2]
    if few:
        return f"{' and '.join(few)} {'have' if len(few) > 1 else 'has'} fewer than two values"
    if a.mean is None or b.mean is None or a.sd is None or b.sd is None or min(a.mean, b.mean) <= 0:
        return UNUSABLE
    if a.sd <= NO_SPREAD * a.mean and b.sd <= NO_SPREAD * b.mean:
        return "neither side has any spread: all its values are the same"
    relative = a.sd / a.mean / math.sqrt(a.n), b.sd / b.mean / math.sqrt(b.n)
    ratio = a.mean / b.mean
    sides = (ratio, a.sd / b.mean, a.n, 1.0, b.sd / b.mean, b.n)  # in units of B's mean: no square is too great
    (t, p), (_, less), (_, greater) = (
        stats.ttest_ind_from_stats(*sides, equal_var=False, alternative=way) for way in ("two-sided", "less", "greater")
    )
    if ratio == 0 or not all(map(math.isfinite, (ratio, t, p, less, greater))):
        return UNUSABLE
    counts = a.n, b.n
    smallest = detectable(math.hypot(*relative), _degrees(relative, counts))
    return Welch(
        ratio,
        fieller(ratio, relative, counts),
        float(t),
        _degrees((ratio * relative[0], relative[1]), counts),
        float(p),
        float(less),
        float(greater),
        smallest if smallest is not None and smallest <= LARGEST_RATIO else None,
    )


def fieller(ratio: float, errors: tuple[float, float], counts: tuple[int, int]) -> tuple[float, float] | None:
    """The 95% interval of a ratio of two means that differ from 0; None where one of them does not, at that level.

    It holds every ratio r for which A and r·B do not differ in Welch's test (E. C. Fieller, Some problems in interval
    estimation, Journal of the Royal Statistical Society B 16, 1954; for unequal variances with Welch's degrees of
    freedom). So it holds 1 where p is 0.05 or more, and the interval of B by A is its inverse. `errors` are the
    standard errors of the means by the means.
    """

    def outside(log_share: float) -> float:
        """Above 0 where ratio · exp(log_share) is not in the interval."""
        # A = 1 ± errors[0] and r·B = share ± share · errors[1], in units of A's mean
        share = math.exp(log_share)
        scaled = errors[0], share * errors[1]
        critical = float(stats.t.ppf(1 - LEVEL / 2, _degrees(scaled, counts)))
        return abs(1 - share) - critical * math.hypot(*scaled)

    def end(way: float) -> float:
        """Down (-1) or up (1)."""
        far = math.hypot(*errors)
        while far < WIDEST and not outside(way * far) > 0:
            far *= 2
        if far >= WIDEST:
            return math.nan
        return ratio * math.exp(way * float(optimize.brentq(lambda near: outside(way * near), 0.0, far)))

    low, high = end(-1.0), end(1.0)
    return (low, high) if 0 < low <= high < math.inf else None


def detectable(error: float, degrees: float) -> float | None:
    """The ratio that a two-sided t-test calls significant with probability POWER; None where it is beyond all bounds.

    `error` is the standard error of the log of the ratio. The test's statistic is taken to have the noncentral t
    distribution with these degrees of freedom, whose parameter is log ratio / error (J. Cohen, Statistical Power
    Analysis, 1988, for equal variances; with Welch's degrees of freedom it is an approximation: by simulation 80%
    for ten and ten runs, 77% for three and three or for ten and five that spread unequally).
    """
    critical = float(stats.t.ppf(1 - LEVEL / 2, degrees))

    def missing(shift: float) -> float:
        return float(stats.nct.sf(critical, degrees, shift)) - POWER  # what is below -critical is about 1e-6

    logarithm = float(optimize.brentq(missing, 0.0, FARTHEST)) * error
    return math.exp(logarithm) if logarithm < WIDEST else None


def _degrees(errors: Sequence[float], counts: Sequence[int]) -> float:
    """Welch's degrees of freedom for a sum of two variances, by their square roots; their scale does not matter."""
    shares = [(error / max(errors)) ** 2 for error in errors]
    return sum(shares) ** 2 / sum(share**2 / (n - 1) for share, n in zip(shares, counts, strict=True))


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


RULESET = "5.0.0"  # BERT's last; the test is the same in all of them
# The checker searches the least accepted mean to 0.0001, and would search for ever where a float is coarser.
MOST_SAMPLES = 1e11


@dataclass(frozen=True)
class Fewer:
    """Whether one side needs fewer samples than the other, which is the reference."""

    mean: float  # without the least and the greatest
    reference: float  # the same of the reference
    least: float  # the least mean that would not have been significantly below the reference's
    p: float  # that the side does not need fewer

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
