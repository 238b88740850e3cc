"""Table of MLPerf Training's benchmarks and rounds: runs of a result, quality targets, and what counts progress.

The facts and their sources are in benchmarks.yaml. A benchmark that is not in the table is read too: what only the
table could provide is None then.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from functools import cache
from types import MappingProxyType
from typing import Any, Literal, TypeVar

from pydantic import TypeAdapter

from podium.core.paths import package_file
from podium.core.yaml_files import read_yaml

TABLE = package_file("podium.mllog", "benchmarks.yaml")
ALIASES: Mapping[str, str] = MappingProxyType({"mask": "maskrcnn"})  # names of folders and logs of early rounds
MAX_FRACTION = 1.0


@dataclass(frozen=True)
class Target:
    """The value of a metric that a run must reach. A benchmark may have several metrics, which must all be reached."""

    metric: str
    # The metric's name in a log: `metric` in the metadata, or a key of the value. Empty where a log has one metric.
    name: str = ""
    at_least: float | None = None
    at_most: float | None = None
    more_than: float | None = None
    less_than: float | None = None
    from_batch: int = 0  # global batch size from which on this target replaces the one before it

    def reached(self, value: float) -> bool:
        """Whether the value reaches the target."""
        return (
            (self.at_least is None or value >= self.at_least)
            and (self.at_most is None or value <= self.at_most)
            and (self.more_than is None or value > self.more_than)
            and (self.less_than is None or value < self.less_than)
        )

    @property
    def value(self) -> float:
        """The value to reach."""
        bounds = (self.at_least, self.at_most) if self.at_most is not None else (self.at_least, self.more_than)
        return next(bound for bound in bounds[::-1] if bound is not None)

    @property
    def lower_is_better(self) -> bool:
        """Whether the metric is a loss, which falls in training."""
        return self.at_most is not None

    def is_beyond_bounds(self, value: float) -> bool:
        """Whether the value is better than the target, and not counted: beyond the other bound."""
        return (self.less_than is not None and value >= self.less_than) or (
            self.at_most is not None and self.more_than is not None and value <= self.more_than
        )

    @property
    def bounds(self) -> str:
        """Both bounds, such as 0 < log perplexity ≤ 3.3."""
        if self.at_most is not None:
            return f"{'' if self.more_than is None else f'{self.more_than:g} < '}{self}"
        return f"{self}{'' if self.less_than is None else f' and < {self.less_than:g}'}"

    def is_plausible(self, value: float) -> bool:
        """Whether the value can be one of this metric: from 0 to 1 for an accuracy, 0 or more for a loss."""
        return value >= 0 and (self.lower_is_better or value <= MAX_FRACTION)

    def __str__(self) -> str:
        bound = "≤" if self.at_most is not None else "≥" if self.at_least is not None else ">"
        return f"{self.metric} {bound} {self.value:g}"


@dataclass(frozen=True)
class Progress:
    """The metadata key of evaluations that counts how far a run has come."""

    key: Literal["samples_count", "epoch_num", "step_num"]
    samples: float | None  # in one unit of the key: the size of an epoch; None where it is not known


@dataclass(frozen=True)
class EvaluationInterval:
    """The evaluation schedule of the closed division: every number of samples, in whole batches, without the first."""

    samples: float
    # The number of evaluations that are left out at the start is the whole part of skip + skip_per_sample x batch size.
    skip: int = 0
    skip_per_sample: float = 0.0

    def interval(self, batch_size: float) -> float:
        """Samples between evaluations, rounded up to whole batches."""
        return math.ceil(self.samples / batch_size) * batch_size

    def first(self, batch_size: float) -> float:
        """Samples at the first evaluation."""
        return (1 + math.floor(self.skip + self.skip_per_sample * batch_size)) * self.interval(batch_size)


@dataclass(frozen=True)
class Benchmark:
    """A benchmark's rules and facts. A mapping by round has an entry for each round in which something changed."""

    name: str
    title: str
    sample: str  # what a sample is
    rounds: tuple[str, ...]
    runs: int  # of a result
    dropped: int  # runs that the score leaves out at each end, which is also the number of runs that may fail
    targets: Mapping[str, tuple[Target, ...]]
    progress: Mapping[str, Progress]
    sources: tuple[str, ...]  # explained in benchmarks.yaml
    # Only where the rules state it as a number; BERT's is in benchmarks.bert.rules.
    evaluation_interval: Mapping[str, EvaluationInterval] = field(default_factory=dict)
    # Whether the rules have checkpoints evaluated after the run: times of evaluations are then not of the run.
    offline_evaluation: bool = False
    flops_per_sample: float | None = None  # of the forward and backward pass; None where none is published

    def targets_in(self, round_name: str | None, batch_size: float | None = None) -> tuple[Target, ...]:
        """Return the targets of a round, by default of the newest, one for each metric; none where not known."""
        found: dict[str, Target] = {}
        for target in _at_round(self.targets, round_name) or ():
            if target.from_batch <= (batch_size or 0):
                found[target.metric] = target
        return tuple(found.values())

    def progress_in(self, round_name: str | None) -> Progress | None:
        """Return what counts progress in a round, by default in the newest."""
        return _at_round(self.progress, round_name)

    def evaluation_interval_in(self, round_name: str) -> EvaluationInterval | None:
        """Return the evaluation schedule of a round; None where it is not known."""
        known = [name for name in self.evaluation_interval if round_number(name) <= round_number(round_name)]
        return self.evaluation_interval[max(known, key=round_number)] if known else None


T = TypeVar("T")


def _at_round(entries: Mapping[str, T], round_name: str | None) -> T | None:
    """Return the entry of the last change up to a round; the first entry for an earlier round."""
    names = sorted(entries, key=round_number)
    if not names:
        return None
    upto = [name for name in names if round_name is None or round_number(name) <= round_number(round_name)]
    return entries[upto[-1] if upto else names[0]]


def round_number(name: str) -> tuple[int, ...]:
    """Return a round's name, such as v5.1, as a sort key."""
    return tuple(int(part) for part in name.removeprefix("v").split("."))


def round_of(ruleset: str) -> str:
    """Return the round of a ruleset: v5.1 of 5.1.0."""
    return f"v{'.'.join(ruleset.split('.')[:2])}"


@cache
def _document() -> Mapping[str, Any]:
    document: Mapping[str, Any] = read_yaml(TABLE)
    return document


@cache
def benchmarks() -> Mapping[str, Benchmark]:
    """Return the table, by name."""
    entries = {name: {"name": name, **entry} for name, entry in _document()["benchmarks"].items()}
    return MappingProxyType(TypeAdapter(dict[str, Benchmark]).validate_python(entries))


@cache
def rounds() -> Mapping[str, date | None]:
    """Return the rounds' publication dates, oldest first; None where a date is not known."""
    return MappingProxyType(TypeAdapter(dict[str, date | None]).validate_python(_document()["rounds"]))


def find_benchmark(name: str | None) -> Benchmark | None:
    """Return the benchmark of that name; None for a name that is not in the table."""
    return None if name is None else benchmarks().get(ALIASES.get(name, name))


def published_ms(round_name: str) -> float | None:
    """Return the publication date of a round in ms since 1970; None where it is not known."""
    day = rounds().get(round_name)
    return None if day is None else datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp() * 1e3


def round_at(time_ms: float | None) -> str | None:
    """Return the round that a run at this time (ms since 1970) was made for: the first one published after it.

    After the last known publication this is the next round; None for None.
    """
    if time_ms is None:
        return None
    for name in rounds():
        published = published_ms(name)
        if published is None or time_ms < published:
            return name
    return None


def names(found: Iterable[Benchmark]) -> str:
    """Return the benchmarks' names, sorted, for a message."""
    return ", ".join(sorted(one.name for one in found))
