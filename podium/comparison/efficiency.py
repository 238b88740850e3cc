"""How well a submitter's systems scale: the throughput of an accelerator among many against that among few."""

from collections.abc import Sequence
from dataclasses import dataclass

from podium.comparison.result import Result


@dataclass(frozen=True)
class Scaled:
    """One size of a family of systems."""

    result: Result
    """Of several results of this size the one with the greatest throughput."""
    throughput: float
    """Sequences/s of an accelerator, by that of the family's smallest size: 1 where nothing is lost."""
    time: float
    """Accelerator-minutes of the smallest size by those of this one: also what larger batches cost in samples."""


def families(results: Sequence[Result]) -> list[list[Scaled]]:
    """The results of one round, submitter, division and kind of accelerator in two sizes or more, smallest first.

    Results of other sizes of model, without accelerators or without a time are left out.
    """
    groups: dict[tuple[str | None, ...], dict[int, Result]] = {}
    for result in results:
        rate = result.per_accelerator(result.sequences_per_second)
        if rate is None or result.minutes is None or not result.full_size or not result.accelerators:
            continue
        key = (result.round, result.submitter, result.division, result.family)
        sizes = groups.setdefault(key, {})
        best = sizes.get(result.accelerators)
        if best is None or rate > (best.per_accelerator(best.sequences_per_second) or 0):
            sizes[result.accelerators] = result
    return [_family([sizes[size] for size in sorted(sizes)]) for sizes in groups.values() if len(sizes) > 1]


def _family(sizes: Sequence[Result]) -> list[Scaled]:
    rates, costs = [], []
    for result in sizes:
        rate = result.per_accelerator(result.sequences_per_second)
        assert rate is not None and result.minutes is not None and result.accelerators is not None
        rates.append(rate)
        costs.append(result.minutes * result.accelerators)
    return [
        Scaled(result, rate / rates[0], costs[0] / cost) for result, rate, cost in zip(sizes, rates, costs, strict=True)
    ]
