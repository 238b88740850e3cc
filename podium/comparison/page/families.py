"""Families of results that share a chart series: by accelerator, best first, and the position of each result."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from podium.comparison.result import Result

UNKNOWN = "unknown accelerator"
CPUS = "CPUs only, by nodes"
MOST = 16  # families that have a line of their own in a chart
OTHERS = "all others"
# Minutes and sequences/s that are drawn: what is beyond is an error of its log, and leaves no room for the others.
LEAST, GREATEST = 1e-6, 1e9


def family_of(result: Result) -> str:
    """The accelerator's usual name; what the results without accelerators are called."""
    if result.accelerators == 0:
        return CPUS
    return result.family or UNKNOWN


def size_of(result: Result) -> int | None:
    """Accelerators, or nodes of a system without; None where it is not known."""
    return (result.nodes or None) if result.accelerators == 0 else result.accelerators


@dataclass(frozen=True)
class Families:
    """BERT-large results with a time, by family."""

    results: tuple[Result, ...]

    @cached_property
    def by_name(self) -> Mapping[str, tuple[Result, ...]]:
        """Those with most results first; from the number MOST on they are one."""
        counted = Counter(family_of(result) for result in self.results)
        names = sorted(counted, key=lambda name: (-counted[name], name))
        own = names if len(names) <= MOST else names[: MOST - 1]
        found: dict[str, list[Result]] = {name: [] for name in own}
        for result in self.results:
            name = family_of(result)
            found.setdefault(name if name in own else OTHERS, []).append(result)
        return {name: tuple(results) for name, results in found.items()}

    @property
    def published(self) -> Mapping[str, tuple[Result, ...]]:
        """Every family without one's own results: those of the closed division, or all where it has none."""
        found: dict[str, list[Result]] = {}
        for result in [one for results in self.by_name.values() for one in results if not one.own]:
            found.setdefault(family_of(result), []).append(result)
        return {
            name: tuple([result for result in results if result.division != "open"] or results)
            for name, results in found.items()
        }

    @cached_property
    def series(self) -> Mapping[str, int]:
        """The number of each family's colour and marker."""
        return {name: number for number, name in enumerate(self.by_name)}

    def series_of(self, result: Result) -> int:
        return self.series.get(family_of(result), len(self.series) - 1)


def families_of(results: Sequence[Result]) -> Families:
    """Of those that trained BERT-large in a time, on a number of accelerators, that is known and can be."""
    timed = [result for result in results if result.full_size and result.minutes is not None and size_of(result)]
    return Families(tuple(result for result in timed if can_be_drawn(result.counted_minutes())))


def can_be_drawn(number: float) -> bool:
    return LEAST <= number <= GREATEST


def rate_of(result: Result) -> float | None:
    """Sequences/s of an accelerator, or of a node of a system without; None for a number that none can have."""
    whole = result.sequences_per_second
    rate = result.per_node(whole) if result.accelerators == 0 else result.per_accelerator(whole)
    return rate if rate is not None and can_be_drawn(rate) else None


def best_at_each_size(results: Sequence[Result]) -> list[Result]:
    """The fastest published result at each size, by size, without the open division, which may train another model."""
    best: dict[int, Result] = {}
    for result in results:
        size = size_of(result)
        if size is None or result.own or result.division == "open":
            continue
        if size not in best or result.counted_minutes() < best[size].counted_minutes():
            best[size] = result
    return [best[size] for size in sorted(best)]


def best_of_each(families: Families) -> list[Result]:
    """Of each family its fastest published result, in the families' order, of the closed division where it has one."""
    return [min(results, key=lambda one: (one.counted_minutes(), one.name)) for results in families.published.values()]
