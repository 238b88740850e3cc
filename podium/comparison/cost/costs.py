"""What it costs to train once, at the user's prices."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

from podium.comparison.cost.prices import UNITS, Entry, Prices
from podium.comparison.result import Result
from podium.comparison.scoring import counted_seconds
from podium.reading.run_log import Run

MOST_KINDS = 6
"""Kinds of accelerators that a note names."""


@dataclass(frozen=True)
class Cost:
    """Of one result, in the prices' currency."""

    per_hour: float
    """Of the whole system."""
    to_train: float
    """Of one run: the mean of the runs of the score, as measured (not scaled), each as it is billed. Where there is no
    score, of the runs that converged, as for `Result.minutes`."""
    samples_per_unit: float | None
    """Samples trained on for one unit of the currency, by what is billed; None where they are not known."""
    entry: int
    """The entry of the prices that counts, from 0 as in `prices.0`."""


@dataclass(frozen=True)
class Costs:
    """Of a list of results."""

    currency: str
    costs: tuple[Cost | None, ...]
    """One for each result, in their order; None where it is not known."""
    notes: tuple[str, ...]
    """Why some are not known, and what is odd about the prices, a sentence each."""


def costs(results: Sequence[Result], prices: Prices, path: Path) -> Costs:
    """The cost of each result. `path` is where the prices were read, for the notes."""
    found: list[Cost | None] = []
    unpriced: list[Result] = []
    reasons: dict[str, list[Result]] = {}
    counted: set[int] = set()
    for result in results:
        place = prices.entry_for(result)
        cost = None
        if place is None:
            unpriced.append(result)
        else:
            counted.add(place)
            told = _cost(result, prices, place)
            if isinstance(told, str):
                reasons.setdefault(told, []).append(result)
            else:
                cost = told
        found.append(cost)
    notes = [f"no price for {_results(unpriced)}; add entries to {path}"] if unpriced else []
    unscored = [one for one, cost in zip(results, found, strict=True) if cost is not None and one.score_minutes is None]
    if unscored:
        notes.append(f"no score for {_results(unscored)}; the cost is of the runs that reached the target")
    notes += [f"no cost for {_results(some)}: {reason}" for reason, some in reasons.items()]
    idle = [str(place) for place in range(len(prices.prices)) if place not in counted]
    if idle and results:
        entries = f"prices.{', prices.'.join(idle)}"
        notes.append(f"{path}: {entries} count for none of these results: nothing fits, or an earlier one does")
    return Costs(prices.currency, tuple(found), tuple(notes))


def _cost(result: Result, prices: Prices, place: int) -> Cost | str:
    """Or why it is not known, as a sentence fragment."""
    entry = prices.prices[place]
    number = _number(result, entry)
    if not number:
        what = UNITS[entry.per]
        missing = f"has no {what}" if number == 0 else f"does not tell its number of {what}"
        return f"prices.{place} is per {entry.per}, and the description {missing}"
    scored = _scored(result)
    if not scored:
        return "no run reached the target"
    times = [_billed(run, prices) for run in scored]
    seconds = [time for time in times if time is not None]
    if len(seconds) < len(times):
        return "a log does not tell when initialisation began"
    per_hour = entry.price * number
    to_train = per_hour * mean(seconds) / 3600
    samples = [run.samples for run in scored if run.samples is not None]
    known = len(samples) == len(scored) and to_train > 0
    each = mean(samples) / to_train if known else None
    if not math.isfinite(to_train) or (each is not None and not math.isfinite(each)):
        return "its times are none that can be computed with"
    return Cost(per_hour, to_train, each, place)


def _number(result: Result, entry: Entry) -> int | None:
    return {"accelerators": result.accelerators, "nodes": result.nodes, "system": 1}[UNITS[entry.per]]


def _scored(result: Result) -> Sequence[Run]:
    """The runs of which the score is the mean (`scoring.score_seconds`), else those that converged."""
    return result.converged if result.score_minutes is None else sorted(result.runs, key=counted_seconds)[1:-1]


def _billed(run: Run, prices: Prices) -> float | None:
    """Seconds of a run that are paid for."""
    assert run.seconds is not None
    seconds = run.seconds
    if prices.initialisation:
        if run.init_seconds is None:
            return None
        seconds += run.init_seconds
    seconds = max(seconds, 60 * prices.minimum_minutes)
    if prices.billing_seconds is None:
        return seconds
    steps = seconds / prices.billing_seconds
    return prices.billing_seconds * (math.ceil(steps) if math.isfinite(steps) else steps)


def _results(some: Sequence[Result]) -> str:
    """How many, and of what accelerators."""
    kinds = Counter(result.family or "no accelerator" for result in some).most_common()
    named = ", ".join(f"{kind} ({count:,})" for kind, count in kinds[:MOST_KINDS])
    rest = sum(count for _, count in kinds[MOST_KINDS:])
    return f"{len(some):,} result{'s' * (len(some) != 1)}: {named}{f' and {rest:,} others' if rest else ''}"
