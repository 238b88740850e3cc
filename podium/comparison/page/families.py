"""Families of results: groups by kind of accelerator, each of which is a series of the charts."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from podium.comparison.result import Result

UNKNOWN = "unknown accelerator"
CPUS = "CPUs only, by nodes"
MAX_FAMILIES = 16  # series of a chart; with more families the last one is OTHERS
OTHERS = "all others"
# Range of minutes and samples/s that are drawn. Values beyond it are errors of a log, and would stretch the axis so
# far that the other results could not be distinguished.
MIN_DRAWN, MAX_DRAWN = 1e-6, 1e9


# Sold with two sizes of memory, which train with different batches: not one scaling curve.
_WITH_MEMORY_VARIANTS = ("NVIDIA A100", "NVIDIA V100")
_GIGABYTES = re.compile(r"\b(\d{1,3}) ?G(?:i?B)?\b")


def family_of(result: Result) -> str:
    """Return the accelerator's usual name, with its memory where it has variants; CPUS without accelerators."""
    if result.accelerators == 0:
        return CPUS
    if result.family is None:
        return UNKNOWN
    if not result.family.startswith(_WITH_MEMORY_VARIANTS):
        return result.family
    # The name first: descriptions of 40 GB accelerators that were copied from those of 80 GB have a wrong capacity.
    capacity = _GIGABYTES.search(result.description.get("accelerator_memory_capacity", "")[:200])
    size = result.memory_gb or (int(capacity[1]) if capacity else None)
    return f"{result.family}, {f'{size} GB' if size else 'memory unknown'}"


def size_of(result: Result) -> int | None:
    """Return the number of accelerators, or of nodes of a system without accelerators; None if it is unknown."""
    return (result.nodes or None) if result.accelerators == 0 else result.accelerators


@dataclass(frozen=True)
class Families:
    """Results of one benchmark with a time, by family."""

    results: tuple[Result, ...]

    @cached_property
    def by_name(self) -> Mapping[str, tuple[Result, ...]]:
        """Results by family, the families with the most results first; those beyond MAX_FAMILIES are merged."""
        counted = Counter(family_of(result) for result in self.results)
        names = sorted(counted, key=lambda name: (-counted[name], name))
        own = names if len(names) <= MAX_FAMILIES else names[: MAX_FAMILIES - 1]
        found: dict[str, list[Result]] = {name: [] for name in own}
        for result in self.results:
            name = family_of(result)
            found.setdefault(name if name in own else OTHERS, []).append(result)
        return {name: tuple(results) for name, results in found.items()}

    @property
    def kinds(self) -> frozenset[str]:
        """Names of the families of one kind of accelerator: all but OTHERS."""
        return frozenset(self.by_name) - {OTHERS}

    @property
    def published(self) -> Mapping[str, tuple[Result, ...]]:
        """Published results of every family: those of the closed division, or all if it has none of these."""
        found: dict[str, list[Result]] = {}
        for result in [one for results in self.by_name.values() for one in results if not one.own]:
            found.setdefault(family_of(result), []).append(result)
        return {
            name: tuple([result for result in results if result.division != "open"] or results)
            for name, results in found.items()
        }

    @cached_property
    def series(self) -> Mapping[str, int]:
        """Index of each family's colour and marker."""
        return {name: number for number, name in enumerate(self.by_name)}

    def series_of(self, result: Result) -> int:
        """Return the index of the series that a result belongs to."""
        return self.series.get(family_of(result), len(self.series) - 1)


def group_by_family(results: Sequence[Result]) -> Families:
    """Return the families of the results of one benchmark whose time and size are known and can be drawn.

    Runs of BERT that did not train BERT-large are left out.
    """
    timed = [result for result in results if result.comparable and result.minutes is not None and size_of(result)]
    return Families(tuple(result for result in timed if can_be_drawn(result.ranking_minutes())))


def can_be_drawn(number: float) -> bool:
    return MIN_DRAWN <= number <= MAX_DRAWN


def rate_of(result: Result) -> float | None:
    """Return samples/s per accelerator, or per node of a system without accelerators; None if it cannot be drawn."""
    total = result.samples_per_second
    rate = result.per_node(total) if result.accelerators == 0 else result.per_accelerator(total)
    return rate if rate is not None and can_be_drawn(rate) else None


def fastest_of_each_family(families: Families) -> list[Result]:
    """Return the fastest published result of each family, of the closed division if it has one, in their order."""
    return [min(results, key=lambda one: (one.ranking_minutes(), one.name)) for results in families.published.values()]
