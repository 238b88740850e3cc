"""Prediction intervals from the errors of the back-test, by training code and number of GPUs.

An error is ln(published / predicted) of a system's seconds. For code in the fit the interval is symmetric in
logarithms. Its half-width is the k-th smallest |error| of n systems with k = ⌈0.9·(n + 1)⌉, which covers a further
system of the kind with a probability of 90% (split conformal prediction: Vovk, Gammerman and Shafer, Algorithmic
Learning in a Random World, 2005; Lei et al., JASA 2018). Three systems with other code are published, all of one
submitter, too few to state a coverage. Their interval reaches from the lower end of the fitted code to the upper end of
Student's two-sided 90% prediction interval for one more such system, computed from the greatest error (of time or of
rate) of each known one.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil, exp, sqrt
from statistics import mean, stdev
from typing import Literal

COVERAGE = 0.9  # share of systems that an interval is designed to contain
MAX_SMALL_GPUS = 32  # larger systems are another kind, with an interval from their own errors
SystemSize = Literal["small", "large"]
Measure = Literal["seconds", "rate"]  # seconds of a run to the target; rate for a given number of samples


@dataclass(frozen=True)
class ErrorInterval:
    """Interval of ln(published / predicted) for one kind of system. The field names are keys of constants.json."""

    code: Literal["fitted", "other"]
    gpus: SystemSize  # small: up to MAX_SMALL_GPUS
    of: Measure
    low: float
    high: float
    coverage: float | None  # share of systems inside; None: too few systems to state it
    systems: int
    inside_left_out: int  # systems inside the interval computed from the others


@dataclass(frozen=True)
class Interval:
    """Factors by which a prediction is divided (`low`) and multiplied (`high`), and the systems behind them."""

    low: float
    high: float
    coverage: float | None
    systems: int
    inside_left_out: int
    assumed: float = 0.0  # assumed relative error of the rate, included in both factors

    @property
    def statement(self) -> str:
        """Sentence on the coverage of the interval and the number of systems behind it."""
        if self.systems == 0:
            return (
                "the interval combines the spread of known runs with the error of measured steps; its coverage is not "
                "known"
            )
        checked = f"{self.inside_left_out} of {self.systems} lie inside the interval computed from the others"
        if self.assumed:
            checked += f"; both ends are widened by an assumed {self.assumed:.0%} for this GPU or precision"
        if self.coverage is not None:
            return (
                f"the interval is designed to cover {self.coverage:.0%} of scores, from the errors of {self.systems} "
                f"published systems of this kind; {checked}"
            )
        return (
            f"the interval has no stated coverage: its upper end follows from the errors of the {self.systems} "
            f"published systems whose code is not in the fit, all of one submitter; {checked}"
        )


def half_width(errors: Sequence[float]) -> tuple[float, float | None]:
    """Return the half-width of a symmetric interval for one more error, and its coverage.

    With too few errors for COVERAGE it is the greatest one, and the coverage is None.
    """
    sizes = sorted(abs(error) for error in errors)
    k = ceil(COVERAGE * (len(sizes) + 1))
    return (sizes[k - 1], COVERAGE) if k <= len(sizes) else (sizes[-1], None)


def student_upper_end(errors: Sequence[float]) -> float:
    """Return the upper end of Student's two-sided prediction interval of COVERAGE for one more error.

    Assumes normally distributed errors; at least two are needed.
    """
    from scipy.stats import t  # imported here since it takes long

    deviation = stdev(errors) * sqrt(1 + 1 / len(errors))
    return mean(errors) + float(t.ppf((1 + COVERAGE) / 2, len(errors) - 1)) * deviation


def count_inside_left_out(errors: Sequence[float], end: Callable[[Sequence[float]], float]) -> int:
    """Return the number of errors that do not exceed the `end` computed from all the others (leave-one-out)."""
    return sum(error <= end([*errors[:i], *errors[i + 1 :]]) for i, error in enumerate(errors))


def prediction_interval(
    intervals: Sequence[ErrorInterval], code: str, gpus: int, of: Measure, rate_error: float
) -> Interval:
    """Return the interval of a system's kind, widened by an assumed relative error of its rate.

    Measured steps have no back-test: their interval is `rate_error` only.
    """
    size, wider = "small" if gpus <= MAX_SMALL_GPUS else "large", 1 + rate_error
    for one in intervals:
        if (one.code, one.gpus, one.of) == (code, size, of):
            low, high = wider * exp(-one.low), wider * exp(one.high)
            return Interval(low, high, one.coverage, one.systems, one.inside_left_out, rate_error)
    return Interval(wider, wider, None, 0, 0, rate_error)
