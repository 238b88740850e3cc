"""What machines cost an hour, as the user says: a YAML file of entries, of which the first that fits counts.

docs/prices.yaml is an example.
"""

import re
from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints, ValidationError

from benchmarks.bert.accelerators import LONGEST_NAME
from benchmarks.errors import UsageError
from podium.comparison.result import Result
from podium.config.errors import Origins, explain
from podium.config.yaml_files import read_yaml

MOST_ENTRIES = 1_000
UNITS: Mapping[str, str] = MappingProxyType(
    {"accelerator-hour": "accelerators", "node-hour": "nodes", "system-hour": "system"}
)
"""Units of prices, and what there is of them in a system."""

Pattern = Annotated[str, StringConstraints(min_length=1, max_length=LONGEST_NAME)]


class Entry(BaseModel):
    """A price, and which results it is of: those that fit all of its patterns."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    per: Literal["accelerator-hour", "node-hour", "system-hour"]
    price: Annotated[float, Field(gt=0, le=1e9, allow_inf_nan=False)]
    accelerator: Pattern | None = None
    """Of the description's name or the usual one."""
    system: Pattern | None = None
    submitter: Pattern | None = None
    round: Pattern | None = None
    """Such as v2.1; `own` for one's own results."""

    def fits(self, result: Result) -> bool:
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
    initialisation: bool = False
    """Whether the time from the first init_start to run_start is paid for."""
    billing_seconds: Annotated[float, Field(gt=0, le=86_400, allow_inf_nan=False)] | None = None
    """Each run is rounded up to a multiple of it; None: not."""
    minimum_minutes: Annotated[float, Field(ge=0, le=10_080, allow_inf_nan=False)] = 0.0
    """That each run is billed for at least."""

    def entry_for(self, result: Result) -> int | None:
        """The place of the first entry that fits, from 0."""
        return next((place for place, entry in enumerate(self.prices) if entry.fits(result)), None)


def read_prices(path: Path) -> Prices:
    """UsageError, which names the key, for whatever is wrong with the file."""
    document = read_yaml(path, all_text=True)  # as text, since YAML's own 2:50 is the number 170
    try:
        return Prices.model_validate(document)
    except ValidationError as error:
        lines = explain(error, Prices, Origins(path)).splitlines()
        rest = [f"and {len(lines) - MOST_TOLD:,} more of the kind"] if len(lines) > MOST_TOLD else []
        raise UsageError("\n".join([*lines[:MOST_TOLD], *rest])) from None


MOST_TOLD = 10
"""Lines of what is wrong with a file."""


def _fits(pattern: str, name: str) -> bool:
    return fnmatchcase(name[:LONGEST_NAME].casefold(), pattern.casefold())


def plain(prices: Prices) -> dict[str, Any]:
    """As the file has it, for programs."""
    return prices.model_dump(mode="json", exclude_none=True)
