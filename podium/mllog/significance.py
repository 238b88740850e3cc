"""Significance of a difference between two sets of numbers: Welch's t-test, and the t-test of MLPerf's rules.

Welch's test comes with the confidence interval of the ratio of means, and with the smallest difference that these
sets could have detected.

The t-test by which MLPerf's rules compare samples to the target with a reference is computed by the official checker
(mlperf_logging.rcp_checker). It is one-sided and has a pooled variance. The mean and n of either side leave out the
least and the greatest value. The standard deviation of both sides is the reference's, of all its values and divided
by n (np.std): the other side is assumed to have the same spread. A p of 0.05 or less is significant. Of 4,000
simulated pairs of ten equal runs it calls 4.8% significant, but 14% where the reference spreads half as much as the
other side: then Welch's test is more reliable.
"""

import io
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean, median
from typing import Any

import numpy as np
from scipy import optimize, special

SIGNIFICANCE_LEVEL = 0.05  # for p-values; the confidence level of intervals is 1 - SIGNIFICANCE_LEVEL
POWER = 0.8  # the probability with which a difference of `Welch.detectable_ratio` is called significant
MIN_RELATIVE_SD = 1e-12  # a standard deviation of at most this fraction of the mean is rounding error
UNUSABLE = "the values are outside of the range that can be computed with"  # such as 1e300, whose square overflows
MAX_LOG_RATIO = 20.0  # natural logarithm; the search for the end of an interval stops here
# Upper end of the search for the noncentrality that has POWER. It needs 16.4 at one degree of freedom, less at more.
MAX_NONCENTRALITY = 64.0
MAX_REPORTED_RATIO = 100.0  # a larger detectable ratio is not reported


@dataclass(frozen=True)
class Summary:
    """One side's values of one quantity and their statistics, in the quantity's unit."""

    values: tuple[float, ...]
    n: int
    mean: float | None  # None without values, and if their sum overflows
    sd: float | None  # sample standard deviation (n - 1); None for fewer than two values
    median: float | None
    interval: tuple[float, float] | None  # 95% confidence interval of the mean, by Student's t


@dataclass(frozen=True)
class Welch:
    """Welch's t-test of A against B.

    Exchanging A and B inverts `ratio` and `interval`, negates `t`, exchanges the one-sided p and keeps the rest.
    """

    ratio: float  # mean of A divided by mean of B
    interval: tuple[float, float] | None  # 95%, of the ratio: see `fieller_interval`. None if it is unbounded
    t: float
    degrees: float  # Welch's degrees of freedom
    p: float  # Welch's t-test, two-sided
    p_less: float  # one-sided, for the alternative that A is less than B
    p_greater: float  # one-sided, for the alternative that A is greater than B
    # The ratio of means (or its inverse) that is called significant, two-sided, with probability POWER for these n and
    # sd. None if it is above MAX_REPORTED_RATIO. See `smallest_detectable_ratio`.
    detectable_ratio: float | None

    @property
    def significant(self) -> bool:
        return self.p < SIGNIFICANCE_LEVEL


def summarize(values: Sequence[float]) -> Summary:
    """Compute the statistics of any number of finite values. No result is infinite or NaN."""
    numbers = tuple(float(value) for value in values)
    assert all(map(math.isfinite, numbers))
    n = len(numbers)
    middle = median(numbers) if numbers else None
    with np.errstate(over="ignore", invalid="ignore"):
        mean = _finite_or_none(float(np.mean(numbers))) if numbers else None
        sd = _finite_or_none(float(np.std(numbers, ddof=1))) if n > 1 else None
    if middle is not None and not math.isfinite(middle):
        middle = None
    interval = None
    if mean is not None and sd is not None:
        half = float(special.stdtrit(n - 1, 1 - SIGNIFICANCE_LEVEL / 2)) * sd / math.sqrt(n)
        interval = (mean - half, mean + half)
    return Summary(numbers, n, mean, sd, middle, interval)


def welch_test(a: Summary, b: Summary, names: tuple[str, str] = ("A", "B")) -> Welch | str:
    """Test the means of two sets of positive numbers for a difference, without assuming equal variances.

    Returns the reason as a sentence fragment, with these names of the sides, if there is no test. Source: B. L. Welch,
    The generalization of "Student's" problem when several different population variances are involved, Biometrika 34,
    1947.
    """
    few = [name for name, side in zip(names, (a, b), strict=True) if side.n < 2]
    if few:
        return f"{' and '.join(few)} {'have' if len(few) > 1 else 'has'} fewer than two values"
    if a.mean is None or b.mean is None or a.sd is None or b.sd is None or min(a.mean, b.mean) <= 0:
        return UNUSABLE
    if a.sd <= MIN_RELATIVE_SD * a.mean and b.sd <= MIN_RELATIVE_SD * b.mean:
        return "neither side has any spread: all its values are the same"
    from scipy import stats  # takes a second to import, for commands that test nothing

    relative = a.sd / a.mean / math.sqrt(a.n), b.sd / b.mean / math.sqrt(b.n)
    ratio = a.mean / b.mean
    sides = (ratio, a.sd / b.mean, a.n, 1.0, b.sd / b.mean, b.n)  # in units of B's mean, so that no square overflows
    (t, p), (_, less), (_, greater) = (
        stats.ttest_ind_from_stats(*sides, equal_var=False, alternative=alternative)
        for alternative in ("two-sided", "less", "greater")
    )
    if ratio == 0 or not all(map(math.isfinite, (ratio, t, p, less, greater))):
        return UNUSABLE
    counts = a.n, b.n
    smallest = smallest_detectable_ratio(math.hypot(*relative), _degrees_of_freedom(relative, counts))
    return Welch(
        ratio,
        fieller_interval(ratio, relative, counts),
        float(t),
        _degrees_of_freedom((ratio * relative[0], relative[1]), counts),
        float(p),
        float(less),
        float(greater),
        smallest if smallest is not None and smallest <= MAX_REPORTED_RATIO else None,
    )


def format_p_value(p: float) -> str:
    """Format a p-value, such as `p = 0.031` or `p = 6e-5`."""
    if p < 1e-99:
        return "p < 1e-99"
    if p < 1e-3:
        digits, _, power = f"{p:.0e}".partition("e")
        return f"p = {digits}e{int(power)}"
    return f"p = {p:.2g}" if p < 0.995 else "p = 1.0"


def fieller_interval(ratio: float, errors: tuple[float, float], counts: tuple[int, int]) -> tuple[float, float] | None:
    """Return the 95% confidence interval of the ratio of two means; None if one mean does not differ from 0.

    It contains every ratio r for which A and r·B do not differ in Welch's test (E. C. Fieller, Some problems in
    interval estimation, Journal of the Royal Statistical Society B 16, 1954; for unequal variances with Welch's degrees
    of freedom). So it contains 1 if p is 0.05 or more, and the interval of B / A is its inverse. `errors` are the
    standard errors of the means divided by the means, `counts` the numbers of values.
    """

    def outside(log_share: float) -> float:
        """Return a positive number if ratio · exp(log_share) is outside of the interval."""
        # In units of A's mean: A = 1 ± errors[0], and r·B = share ± share · errors[1].
        share = math.exp(log_share)
        scaled = errors[0], share * errors[1]
        critical = float(special.stdtrit(_degrees_of_freedom(scaled, counts), 1 - SIGNIFICANCE_LEVEL / 2))
        return abs(1 - share) - critical * math.hypot(*scaled)

    def end(sign: float) -> float:
        """Return the lower (-1) or upper (1) end of the interval; NaN if it is beyond MAX_LOG_RATIO."""
        far = math.hypot(*errors)
        while far < MAX_LOG_RATIO and not outside(sign * far) > 0:
            far *= 2
        if far >= MAX_LOG_RATIO:
            return math.nan
        return ratio * math.exp(sign * float(optimize.brentq(lambda near: outside(sign * near), 0.0, far)))

    low, high = end(-1.0), end(1.0)
    return (low, high) if 0 < low <= high < math.inf else None


def smallest_detectable_ratio(error: float, degrees: float) -> float | None:
    """Return the ratio that a two-sided t-test calls significant with probability POWER; None if it is above exp(20).

    `error` is the standard error of the log of the ratio. The test's statistic is assumed to have the noncentral t
    distribution with these degrees of freedom, whose noncentrality is log ratio / error (J. Cohen, Statistical Power
    Analysis, 1988, for equal variances). With Welch's degrees of freedom it is an approximation: by simulation the
    power is 80% for ten and ten runs, 77% for three and three or for ten and five of unequal variance.
    """
    from scipy import stats  # as in welch_test

    critical = float(special.stdtrit(degrees, 1 - SIGNIFICANCE_LEVEL / 2))

    def excess_power(noncentrality: float) -> float:
        # The lower tail, below -critical, is left out: its probability is about 1e-6.
        return float(stats.nct.sf(critical, degrees, noncentrality)) - POWER

    logarithm = float(optimize.brentq(excess_power, 0.0, MAX_NONCENTRALITY)) * error
    return math.exp(logarithm) if logarithm < MAX_LOG_RATIO else None


def _degrees_of_freedom(errors: Sequence[float], counts: Sequence[int]) -> float:
    """Return the degrees of freedom of Welch (1947) and Satterthwaite for two standard errors, in any common unit."""
    shares = [(error / max(errors)) ** 2 for error in errors]
    return sum(shares) ** 2 / sum(share**2 / (n - 1) for share, n in zip(shares, counts, strict=True))


def _finite_or_none(value: float) -> float | None:
    return value if math.isfinite(value) else None


RULESET = "5.0.0"  # the last one with BERT; the test is the same in all of them
# The checker searches for the least accepted mean with a tolerance of 0.0001, and never ends if floats of that size are
# spaced more coarsely, as they are from 1e12.
MAX_SAMPLES = 1e11


@dataclass(frozen=True)
class RcpTest:
    """MLPerf's test of whether one side needs fewer samples than the other side, the reference."""

    mean: float  # of the side's samples without the least and the greatest
    reference: float  # mean of the reference's samples, without the least and the greatest
    least: float  # the lowest mean that is not significantly below the reference's
    p: float  # one-sided, for the alternative that the side needs fewer samples than the reference

    @property
    def significant(self) -> bool:
        return self.p <= SIGNIFICANCE_LEVEL


def rcp_test(samples: Sequence[float], unfinished: int, reference: Sequence[float]) -> RcpTest | str:
    """Run MLPerf's test of a side's samples to the target; without a test, return the reason as a sentence fragment.

    `unfinished` is the number of the side's runs that did not reach the target. By the rules one such run counts as the
    one with the most samples.
    """
    counted = sorted([*samples, *[math.inf] * unfinished])[1:-1]
    if not counted or len(reference) < 3 or len(counted) + len(reference) - 2 < 3:
        return "there are too few runs: the test leaves out the least and the greatest"
    if not math.isfinite(counted[-1]):
        return f"{unfinished} runs did not reach the target, and the rules allow one"
    if min(reference) <= 0 or max(*reference, counted[-1]) > MAX_SAMPLES:
        return UNUSABLE
    if max(reference) - min(reference) <= MIN_RELATIVE_SD * max(reference):
        return "the reference's runs all need the same number of samples"
    checker = _rcp_checker(tuple(reference), len(counted) + 2)
    record = checker.rcp_data["reference"]
    middle, spread = float(record["RCP Mean"]), float(record["RCP Stdev"])
    side_mean = mean(counted)
    # The reference's spread is used for both sides, as in the checker's own calls.
    _, p = checker._find_p_value(side_mean, spread, len(counted), middle, spread, len(reference) - 2)
    found = RcpTest(float(side_mean), middle, float(record["Min Epochs"]), float(p))
    return found if math.isfinite(found.p) else UNUSABLE


def _rcp_checker(reference: tuple[float, ...], runs: int) -> Any:
    """Return the official checker for submissions of `runs` runs, with this as its only reference convergence point."""
    from mlperf_logging.rcp_checker import rcp_checker  # it imports scipy.stats

    record = {"Benchmark": "bert", "BS": 1, "Hyperparams": {}, "Epochs to converge": list(reference)}
    file = io.StringIO(json.dumps({"reference": record}))
    checker = rcp_checker.RCP_Checker("training", RULESET, "bert", verbose=False, rcp_file=file)
    checker.submission_runs = runs
    checker.compute_rcp_stats()
    return checker
