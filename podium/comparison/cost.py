"""The cost of training once at the user's prices, as a table and as JSON.

Prices are machine costs per hour in a YAML file of entries, of which the first that matches is used; docs/prices.yaml
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
from podium.core.console import UNKNOWN, print_figures, print_line, result_table
from podium.core.errors import UsageError
from podium.core.text import printable
from podium.core.yaml_files import read_yaml
from podium.mllog.run import Run
from podium.planning.accelerators import MAX_NAME_LENGTH

MAX_ENTRIES = 1_000
# Units of prices, and the quantity of a system that each is multiplied with.
UNITS: Mapping[str, str] = MappingProxyType(
    {"accelerator-hour": "accelerators", "node-hour": "nodes", "system-hour": "system"}
)

NamePattern = Annotated[str, StringConstraints(min_length=1, max_length=MAX_NAME_LENGTH)]


class PricedSystem(Protocol):
    """The properties that entries of prices are matched with: of a result, or of a predicted system."""

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
    """A price, and the patterns that a result must all match for this price."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    per: Literal["accelerator-hour", "node-hour", "system-hour"]
    price: Annotated[float, Field(gt=0, le=1e9, allow_inf_nan=False)]
    accelerator: NamePattern | None = None  # matches the description's name or the usual one
    system: NamePattern | None = None
    submitter: NamePattern | None = None
    round: NamePattern | None = None  # such as v2.1; `own` for local results

    def matches(self, result: PricedSystem) -> bool:
        """Whether the result matches all patterns of this entry, ignoring case."""
        return all(
            pattern is None or any(_matches(pattern, name) for name in names if name)
            for pattern, names in (
                (self.accelerator, (result.accelerator, result.family)),
                (self.system, (result.system,)),
                (self.submitter, (result.submitter,)),
                (self.round, (result.round or "own",)),
            )
        )


def _validate_currency(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z€$£¥₩₹]{1,8}", text):
        raise ValueError(f"found {text[:40]!r}; allowed are up to eight letters, or a sign such as €")
    return text


def _validate_entry_count(entries: Any) -> Any:
    if isinstance(entries, list) and not 1 <= len(entries) <= MAX_ENTRIES:
        raise ValueError(f"found {len(entries):,} entries; allowed are 1 to {MAX_ENTRIES:,}")
    return entries


class Prices(BaseModel):
    """A file of prices. All amounts are in `currency`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    currency: Annotated[str, AfterValidator(_validate_currency)]
    prices: Annotated[tuple[Entry, ...], BeforeValidator(_validate_entry_count)]
    initialisation: bool = False  # whether the time from the first init_start to run_start is billed
    # Each run's time is rounded up to a multiple of this; None: no rounding.
    billing_seconds: Annotated[float, Field(gt=0, le=86_400, allow_inf_nan=False)] | None = None
    # The least time that each run is billed for.
    minimum_minutes: Annotated[float, Field(ge=0, le=10_080, allow_inf_nan=False)] = 0.0

    def entry_for(self, result: PricedSystem) -> int | None:
        """Return the index of the first entry that matches; None if there is none."""
        return next((index for index, entry in enumerate(self.prices) if entry.matches(result)), None)


def read_prices(path: Path) -> Prices:
    """Read a file of prices. Raises UsageError, which names the key, if the file is invalid."""
    document = read_yaml(path, all_text=True)  # as text, since YAML 1.1 reads 2:50 as the number 170
    try:
        return Prices.model_validate(document)
    except ValidationError as error:
        lines = format_validation_error(error, Prices, Origins(path)).splitlines()
        rest = [f"and {len(lines) - MAX_ERROR_LINES:,} more errors"] if len(lines) > MAX_ERROR_LINES else []
        raise UsageError("\n".join([*lines[:MAX_ERROR_LINES], *rest])) from None


MAX_ERROR_LINES = 10


def _matches(pattern: str, name: str) -> bool:
    # The name is cut, since fnmatch may backtrack and submitters choose names.
    return fnmatchcase(name[:MAX_NAME_LENGTH].casefold(), pattern.casefold())


MAX_NAMED_FAMILIES = 6  # kinds of accelerators that a note lists


@dataclass(frozen=True)
class Cost:
    """The cost of one result, in the prices' currency."""

    per_hour: float  # of the whole system
    # Mean cost of one run over the runs that count for the score, as measured (not scaled) and billed. Without a score,
    # over the runs that converged, as for `Result.minutes`.
    to_train: float
    # Samples that are trained on for one unit of the currency; None if they are unknown.
    samples_per_unit: float | None


@dataclass(frozen=True)
class Costs:
    """The costs of a list of results."""

    currency: str
    costs: tuple[Cost | None, ...]  # one for each result, in their order; None if it is unknown
    notes: tuple[str, ...]  # sentence fragments: why some are unknown, and entries of prices that are not used


def costs(results: Sequence[Result], prices: Prices, path: Path) -> Costs:
    """Compute the cost of each result. `path` is the file of the prices, for the notes."""
    found: list[Cost | None] = []
    unpriced: list[Result] = []
    reasons: dict[str, list[Result]] = {}
    used: set[int] = set()
    for result in results:
        index = prices.entry_for(result)
        if index is None:
            unpriced.append(result)
            found.append(None)
            continue
        used.add(index)
        cost = _cost(result, prices, index)
        if isinstance(cost, str):
            reasons.setdefault(cost, []).append(result)
        found.append(None if isinstance(cost, str) else cost)
    notes = [f"no price for {_describe_results(unpriced)}; add entries to {path}"] if unpriced else []
    unscored = [one for one, cost in zip(results, found, strict=True) if cost is not None and one.score_minutes is None]
    if unscored:
        notes.append(f"no score for {_describe_results(unscored)}; the cost is of the runs that reached the target")
    notes += [f"no cost for {_describe_results(without)}: {reason}" for reason, without in reasons.items()]
    unused = [str(index) for index in range(len(prices.prices)) if index not in used]
    if unused and results:
        entries = f"prices.{', prices.'.join(unused)}"
        notes.append(f"{path}: {entries}: not used; they match none of these results, or an earlier entry does")
    return Costs(prices.currency, tuple(found), tuple(notes))


def _cost(result: Result, prices: Prices, index: int) -> Cost | str:
    """Return the cost of a result, or the reason why it is unknown as a sentence fragment."""
    per_hour = hourly_price(result, prices, index)
    if isinstance(per_hour, str):
        return per_hour
    if result.other_targets:
        return "its runs were not trained to MLPerf's target"
    scored = result.scored_runs
    if not scored:
        return "no run reached the target"
    times = [_billed_run_seconds(run, prices) for run in scored]
    seconds = [time for time in times if time is not None]
    if len(seconds) < len(times):
        return "a log has no start of initialisation"
    to_train = per_hour * mean(seconds) / 3600
    samples = [run.samples for run in scored if run.samples is not None]
    known = len(samples) == len(scored) and to_train > 0
    samples_per_unit = mean(samples) / to_train if known else None
    if not math.isfinite(to_train) or (samples_per_unit is not None and not math.isfinite(samples_per_unit)):
        return "its times are too large or too small to compute with"
    return Cost(per_hour, to_train, samples_per_unit)


def hourly_price(system: PricedSystem, prices: Prices, index: int) -> float | str:
    """Return the system's price per hour by the entry `index`, or as a sentence fragment why it is unknown."""
    entry = prices.prices[index]
    number = {"accelerators": system.accelerators, "nodes": system.nodes, "system": 1}[UNITS[entry.per]]
    if number:
        return entry.price * number
    what = UNITS[entry.per]
    missing = f"has no {what}" if number == 0 else f"does not state its number of {what}"
    return f"prices.{index} is per {entry.per}, and the description {missing}"


def _billed_run_seconds(run: Run, prices: Prices) -> float | None:
    """Return the billed seconds of a run; None if initialisation is billed and was not logged."""
    assert run.seconds is not None
    seconds = run.seconds
    if prices.initialisation:
        if run.init_seconds is None:
            return None
        seconds += run.init_seconds
    return billed_seconds(seconds, prices)


def billed_seconds(seconds: float, prices: Prices) -> float:
    """Return the seconds that are billed for a run of this length: the minimum and rounding up are applied."""
    seconds = max(seconds, 60 * prices.minimum_minutes)
    if prices.billing_seconds is None:
        return seconds
    steps = seconds / prices.billing_seconds
    return prices.billing_seconds * (math.ceil(steps) if math.isfinite(steps) else steps)


def _describe_results(results: Sequence[Result]) -> str:
    """Format the number of results and their accelerators, such as `3 results: NVIDIA T4 (2), TPU-v4 (1)`."""
    families = Counter(result.family or "no accelerator" for result in results).most_common()
    named = ", ".join(f"{family} ({count:,})" for family, count in families[:MAX_NAMED_FAMILIES])
    rest = sum(count for _, count in families[MAX_NAMED_FAMILIES:])
    return f"{len(results):,} result{'s' * (len(results) != 1)}: {named}{f' and {rest:,} others' if rest else ''}"


def cost_json(cost: Cost | None, currency: str) -> dict[str, Any]:
    """Return the fields that are added to a result's JSON object; null for an unknown cost."""
    return {
        "currency": currency,
        "cost_to_train": None if cost is None else cost.to_train,
        "cost_per_hour": None if cost is None else cost.per_hour,
        "samples_per_currency_unit": None if cost is None else cost.samples_per_unit,
    }


def print_costs(console: Console, results: Sequence[Result], costs: Costs) -> None:
    """Print a table of the results with a known cost, the least cost first, and then the notes."""
    known = [(cost, result) for result, cost in zip(results, costs.costs, strict=True) if cost is not None]
    if known:
        print_figures(console, _table(sorted(known, key=lambda pair: pair[0].to_train), costs.currency))
    for note in costs.notes:
        print_line(console, note)


def format_money(amount: float) -> str:
    """Format an amount: with two decimals below 1,000, in full above, and two significant digits below 0.1."""
    if amount >= 1e12:
        return f"{amount:.3g}"
    return f"{amount:,.0f}" if amount >= 1000 else f"{amount:,.2f}" if amount >= 0.1 else f"{amount:.2g}"


def _table(known: Sequence[tuple[Cost, Result]], currency: str) -> Table:
    title = f"{currency} to train once, by the score as measured"
    numeric_headings = ("minutes", "per hour", "to train", f"samples\nper {currency}")
    table = result_table(title, ("round, submitter, system", "accelerators"), numeric_headings)
    for cost, result in known:
        names = (result.name, result.hardware(result.family or UNKNOWN))
        minutes = UNKNOWN if result.minutes is None else f"{result.minutes:,.3f}"
        samples = UNKNOWN if cost.samples_per_unit is None else f"{cost.samples_per_unit:,.0f}"
        numbers = (minutes, format_money(cost.per_hour), format_money(cost.to_train), samples)
        table.add_row(*(Text(printable(name)) for name in names), *numbers)
    return table
