"""The cost of training once, at the user's prices, as a table and as JSON.

Prices are machine costs an hour in a YAML file of entries, of which the first that matches is used; docs/prices.yaml
is an example.
"""

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from statistics import mean
from types import MappingProxyType
from typing import Annotated, Any, Literal, Protocol

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints, ValidationError
from rich.console import Console
from rich.table import Table
from rich.text import Text

from podium.comparison.result import Result
from podium.config.errors import Origins, format_validation_error
from podium.core.console import UNKNOWN, print_line, result_table
from podium.core.errors import UsageError
from podium.core.text import printable
from podium.core.yaml_files import read_yaml
from podium.mllog.run import Run
from podium.mllog.score import counted_seconds
from podium.planning.accelerators import LONGEST_NAME

MOST_ENTRIES = 1_000
# Units of prices, and what there is of them in a system.
UNITS: Mapping[str, str] = MappingProxyType(
    {"accelerator-hour": "accelerators", "node-hour": "nodes", "system-hour": "system"}
)

Pattern = Annotated[str, StringConstraints(min_length=1, max_length=LONGEST_NAME)]


class Priced(Protocol):
    """What prices go by: a result, or a predicted system."""

    @property
    def accelerator(self) -> str | None: ...
    @property
    def family(self) -> str | None: ...
    @property
    def system(self) -> str | None: ...
    @property
    def submitter(self) -> str | None: ...
    @property
    def round(self) -> str | None: ...
    @property
    def accelerators(self) -> int | None: ...
    @property
    def nodes(self) -> int | None: ...


class Entry(BaseModel):
    """A price, and which results it is of: those that fit all of its patterns."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    per: Literal["accelerator-hour", "node-hour", "system-hour"]
    price: Annotated[float, Field(gt=0, le=1e9, allow_inf_nan=False)]
    accelerator: Pattern | None = None  # of the description's name or the usual one
    system: Pattern | None = None
    submitter: Pattern | None = None
    round: Pattern | None = None  # such as v2.1; `own` for one's own results

    def fits(self, result: Priced) -> bool:
        return all(
            pattern is None or any(_fits(pattern, name) for name in names if name)
            for pattern, names in (
                (self.accelerator, (result.accelerator, result.family)),
                (self.system, (result.system,)),
                (self.submitter, (result.submitter,)),
                (self.round, (result.round or "own",)),
            )
        )


def _is_currency(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z€$£¥₩₹]{1,8}", text):
        raise ValueError(f"found {text[:40]!r}; allowed are up to eight letters, or a sign such as €")
    return text


def _is_some(entries: Any) -> Any:
    if isinstance(entries, list) and not 1 <= len(entries) <= MOST_ENTRIES:
        raise ValueError(f"found {len(entries):,} entries; allowed are 1 to {MOST_ENTRIES:,}")
    return entries


class Prices(BaseModel):
    """A file of prices."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    currency: Annotated[str, AfterValidator(_is_currency)]
    prices: Annotated[tuple[Entry, ...], BeforeValidator(_is_some)]
    initialisation: bool = False  # whether the time from the first init_start to run_start is paid for
    # Each run is rounded up to a multiple of it; None: not.
    billing_seconds: Annotated[float, Field(gt=0, le=86_400, allow_inf_nan=False)] | None = None
    # That each run is billed for at least.
    minimum_minutes: Annotated[float, Field(ge=0, le=10_080, allow_inf_nan=False)] = 0.0

    def entry_for(self, result: Priced) -> int | None:
        """The place of the first entry that fits, from 0."""
        return next((place for place, entry in enumerate(self.prices) if entry.fits(result)), None)


def read_prices(path: Path) -> Prices:
    """UsageError, which names the key, for whatever is wrong with the file."""
    document = read_yaml(path, all_text=True)  # as text, since YAML's own 2:50 is the number 170
    try:
        return Prices.model_validate(document)
    except ValidationError as error:
        lines = format_validation_error(error, Prices, Origins(path)).splitlines()
        rest = [f"and {len(lines) - MOST_TOLD:,} more of the kind"] if len(lines) > MOST_TOLD else []
        raise UsageError("\n".join([*lines[:MOST_TOLD], *rest])) from None


MOST_TOLD = 10  # lines of what is wrong with a file


def _fits(pattern: str, name: str) -> bool:
    return fnmatchcase(name[:LONGEST_NAME].casefold(), pattern.casefold())


MOST_KINDS = 6  # kinds of accelerators that a note names


@dataclass(frozen=True)
class Cost:
    """Of one result, in the prices' currency."""

    per_hour: float  # of the whole system
    # Of one run: the mean of the runs of the score, as measured (not scaled), each as it is billed. Where there is no
    # score, of the runs that converged, as for `Result.minutes`.
    to_train: float
    # Samples trained on for one unit of the currency, by what is billed; None where they are not known.
    samples_per_unit: float | None


@dataclass(frozen=True)
class Costs:
    """Of a list of results."""

    currency: str
    costs: tuple[Cost | None, ...]  # one for each result, in their order; None where it is not known
    notes: tuple[str, ...]  # why some are not known, and what is odd about the prices, a sentence each


def costs(results: Sequence[Result], prices: Prices, path: Path) -> Costs:
    """The cost of each result. `path` is where the prices were read, for the notes."""
    found: list[Cost | None] = []
    unpriced: list[Result] = []
    reasons: dict[str, list[Result]] = {}
    counted: set[int] = set()
    for result in results:
        place = prices.entry_for(result)
        if place is None:
            unpriced.append(result)
            found.append(None)
            continue
        counted.add(place)
        cost = _cost(result, prices, place)
        if isinstance(cost, str):
            reasons.setdefault(cost, []).append(result)
        found.append(None if isinstance(cost, str) else cost)
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
    per_hour = hourly_price(result, prices, place)
    if isinstance(per_hour, str):
        return per_hour
    # the runs of which the score is the mean (`score_seconds`), else those that converged
    scored = result.converged if result.score_minutes is None else sorted(result.runs, key=counted_seconds)[1:-1]
    if not scored:
        return "no run reached the target"
    times = [_billed(run, prices) for run in scored]
    seconds = [time for time in times if time is not None]
    if len(seconds) < len(times):
        return "a log does not tell when initialisation began"
    to_train = per_hour * mean(seconds) / 3600
    samples = [run.samples for run in scored if run.samples is not None]
    known = len(samples) == len(scored) and to_train > 0
    each = mean(samples) / to_train if known else None
    if not math.isfinite(to_train) or (each is not None and not math.isfinite(each)):
        return "its times are none that can be computed with"
    return Cost(per_hour, to_train, each)


def hourly_price(system: Priced, prices: Prices, place: int) -> float | str:
    """Of the whole system by the entry at this place, or why it is not known, as a sentence fragment."""
    entry = prices.prices[place]
    number = {"accelerators": system.accelerators, "nodes": system.nodes, "system": 1}[UNITS[entry.per]]
    if number:
        return entry.price * number
    what = UNITS[entry.per]
    missing = f"has no {what}" if number == 0 else f"does not state its number of {what}"
    return f"prices.{place} is per {entry.per}, and the description {missing}"


def _billed(run: Run, prices: Prices) -> float | None:
    """Seconds of a run that are paid for."""
    assert run.seconds is not None
    seconds = run.seconds
    if prices.initialisation:
        if run.init_seconds is None:
            return None
        seconds += run.init_seconds
    return billed_seconds(seconds, prices)


def billed_seconds(seconds: float, prices: Prices) -> float:
    """Seconds that are paid for where a run takes so many."""
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


def cost_json(cost: Cost | None, currency: str) -> dict[str, Any]:
    """The fields that a result's object gets."""
    return {
        "currency": currency,
        "cost_to_train": None if cost is None else cost.to_train,
        "cost_per_hour": None if cost is None else cost.per_hour,
        "samples_per_currency_unit": None if cost is None else cost.samples_per_unit,
    }


def print_costs(console: Console, results: Sequence[Result], costs: Costs) -> None:
    """A line for each result whose cost is known, the least cost first; then the notes."""
    known = [(cost, result) for result, cost in zip(results, costs.costs, strict=True) if cost is not None]
    if known:
        console.print(_table(sorted(known, key=lambda pair: pair[0].to_train), costs.currency))
    for note in costs.notes:
        print_line(console, note)


def money(amount: float) -> str:
    """With cents where they say something; no more digits than can be read."""
    if amount >= 1e12:
        return f"{amount:.3g}"
    return f"{amount:,.0f}" if amount >= 1000 else f"{amount:,.2f}" if amount >= 0.1 else f"{amount:.2g}"


def _table(known: Sequence[tuple[Cost, Result]], currency: str) -> Table:
    title = f"{currency} to train once, by the score as measured"
    figures = ("minutes", "an hour", "to train", f"samples a\n{currency}")
    table = result_table(title, ("round, submitter, system", "accelerators"), figures)
    for cost, result in known:
        names = (result.name, result.hardware(result.family or UNKNOWN))
        minutes = UNKNOWN if result.minutes is None else f"{result.minutes:,.3f}"
        samples = UNKNOWN if cost.samples_per_unit is None else f"{cost.samples_per_unit:,.0f}"
        numbers = (minutes, money(cost.per_hour), money(cost.to_train), samples)
        table.add_row(*(Text(printable(name)) for name in names), *numbers)
    return table
