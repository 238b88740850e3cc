"""The interval of a prediction: what the back-test is known to miss, by whose code was run and on how many GPUs.

A miss is ln(published / predicted) of a system's seconds. For code that the constants are fitted on, the interval is
symmetric in logarithms and as wide as the k-th smallest |miss| of n systems, k = ⌈0.9·(n + 1)⌉, which covers a further
system of the kind with 90% probability (split conformal prediction: Vovk, Gammerman and Shafer, 2005; Lei et al., JASA
2018). Of other code three systems are published, all of one submitter, too few for any share: its interval reaches from
the fitted code's lower end to the upper end of Student's two-sided 90% interval for one more such system, by each known
one's greatest miss, of time or of rate.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil, exp, sqrt
from statistics import mean, stdev
from typing import Literal

COVERED = 0.9  # share of systems that an interval is made for
SMALL = 32  # GPUs up to which systems are one kind
Kind = Literal["small", "large"]
Measure = Literal["seconds", "rate"]  # of a run to the target; of a given number of samples


@dataclass(frozen=True)
class Miss:
    """What is known to be missed of one kind of systems. `low` and `high` are logarithms of published / predicted."""

    code: Literal["fitted", "other"]
    gpus: Kind  # up to SMALL GPUs, or more
    of: Measure
    low: float
    high: float
    coverage: float | None  # the share that is covered; None where too few systems are known to state one
    systems: int
    inside_left_out: int  # how many of these lie inside the interval that the others give


@dataclass(frozen=True)
class Interval:
    """Factors by which a prediction is divided and multiplied, and what they rest on."""

    low: float
    high: float
    coverage: float | None
    systems: int
    inside_left_out: int
    assumed: float = 0.0  # error of the rate that is in both factors

    @property
    def statement(self) -> str:
        """What the interval covers and on how many systems that rests."""
        if self.systems == 0:
            return "the interval is the spread of known runs and the error of measured steps; its coverage is not known"
        checked = f"{self.inside_left_out} of {self.systems} lie inside the interval that the others give"
        if self.assumed:
            checked += f"; both ends are wider by {self.assumed:.0%} for this GPU or precision, which is assumed"
        if self.coverage is not None:
            return (
                f"the interval is made to cover {self.coverage:.0%} of scores, by the misses of {self.systems} "
                f"published systems of the kind; {checked}"
            )
        return (
            f"the interval has no stated coverage: its upper end follows from the misses of the {self.systems} "
            f"published systems whose code was not fitted on, all of one submitter; {checked}"
        )


def width(misses: Sequence[float]) -> tuple[float, float | None]:
    """Half the width of a symmetric interval for one more miss, and its coverage; the greatest where n is too small."""
    sizes = sorted(abs(miss) for miss in misses)
    place = ceil(COVERED * (len(sizes) + 1))
    return (sizes[place - 1], COVERED) if place <= len(sizes) else (sizes[-1], None)


def upper_end(misses: Sequence[float]) -> float:
    """Of Student's two-sided interval of COVERED for one more of some normally distributed misses, at least two."""
    from scipy.stats import t  # here, since it takes long to import

    deviation = stdev(misses) * sqrt(1 + 1 / len(misses))
    return mean(misses) + float(t.ppf((1 + COVERED) / 2, len(misses) - 1)) * deviation


def inside_left_out(misses: Sequence[float], end: Callable[[Sequence[float]], float]) -> int:
    """How many of these do not exceed the end that the others give."""
    return sum(miss <= end([*misses[:i], *misses[i + 1 :]]) for i, miss in enumerate(misses))


def interval_for(misses: Sequence[Miss], code: str, gpus: int, of: Measure, rate_error: float) -> Interval:
    """The interval of a system's kind, wider by an assumed error of its rate; `rate_error` alone for measured steps."""
    size, wider = "small" if gpus <= SMALL else "large", 1 + rate_error
    for miss in misses:
        if (miss.code, miss.gpus, miss.of) == (code, size, of):
            low, high = wider * exp(-miss.low), wider * exp(miss.high)
            return Interval(low, high, miss.coverage, miss.systems, miss.inside_left_out, rate_error)
    return Interval(wider, wider, None, 0, 0, rate_error)
