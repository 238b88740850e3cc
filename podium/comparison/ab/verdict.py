"""The sentences that a comparison of two sides comes to."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from podium.comparison.ab.significance import Summary, Welch


@dataclass(frozen=True)
class Quantity:
    """One quantity of the runs that converged, on both sides."""

    kind: str
    """A key of ab.KINDS."""
    a: Summary
    b: Summary
    test: Welch | str
    """Welch's, or why there is none."""


def verdict(a: str, b: str, quantities: Mapping[str, Quantity]) -> str:
    """Whether one of the sides of these names is faster, and whether samples or throughput make it so."""
    time, cause = quantities["seconds"].test, _cause(quantities)
    names = f"A ({a})", f"B ({b})"
    if isinstance(time, str):
        return f"Whether {names[0]} is faster than {names[1]} cannot be tested: {time}.{cause}"
    low, high = time.interval or (0.0, math.inf)
    sure = f"{low:.3f} to {high:.3f} with 95% confidence, " if math.isfinite(high) else ""
    takes = f"{time.ratio:.3f} times as long ({sure}{p_value(time.p)})"
    if not time.significant:
        none = f"No difference in time-to-train is shown between {names[0]} and {names[1]}"
        return f"{none}: A takes {takes}. {_seen(time)}{cause}"
    way = "faster" if time.ratio < 1 else "slower"
    return f"{names[0]} is {way} than {names[1]}: it takes {takes}.{cause}"


def p_value(p: float) -> str:
    """Such as `p = 0.031` or `p = 6e-5`."""
    if p < 1e-99:
        return "p < 1e-99"
    if p < 1e-3:
        digits, _, power = f"{p:.0e}".partition("e")
        return f"p = {digits}e{int(power)}"
    return f"p = {p:.2g}" if p < 0.995 else "p = 1.0"


def _seen(test: Welch) -> str:
    if test.detectable_ratio is None:
        return "Even a hundredfold difference would rarely have been seen."
    percent = 100 * (test.detectable_ratio - 1)
    shown = f"{percent:,.0f}" if percent >= 10 else f"{percent:.2g}"
    return f"A difference of {shown}% would have been seen in four of five such comparisons."


def _cause(quantities: Mapping[str, Quantity]) -> str:
    parts = []
    for kind, verb, what in (("samples", "needs", "samples"), ("sequences_per_second", "trains", "sequences a second")):
        test = quantities[kind].test
        if isinstance(test, Welch):
            more = "more" if test.ratio > 1 else "fewer"
            words = f"significantly {more} {what}" if test.significant else f"as many {what}, as far as can be seen"
            parts.append(f"{verb} {words} ({test.ratio:.3f}, {p_value(test.p)})")
    return f" A {', and '.join(parts)}." if parts else ""
