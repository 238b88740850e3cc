"""The strategies by name, and the assignment of a global batch by one of them to ranks and accumulation steps.

A strategy's `communication` and `bytes_per_step` are those of the systems that it was published with, whose ranks
have shards of their own and exchange samples. Here every rank computes the assignment from the length index and
reads its own samples from the store, so that none of the strategies sends anything.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from benchmarks.bert.lengths import reference_masked_counts
from podium.planning.balancing.indexed import indexed
from podium.planning.balancing.interface import Assignment, Deal
from podium.planning.balancing.packed import packed
from podium.planning.balancing.published import exchanged, in_order, presorted

Assign = Callable[[np.ndarray, Deal], Assignment]
PASSED_ON = {"none": "none", "node": "samples of a node", "all": "samples of all ranks"}


@dataclass(frozen=True)
class Strategy:
    """How samples are dealt out, what room they then take, and what dealing them out sends."""

    assign: Assign  # lengths [G] in the run's order → an assignment
    pads: bool = False  # every sequence takes a slot of the longest length
    strata: bool = False  # drawn by StratifiedSampler: every local batch has fixed counts per stratum
    rows: bool = False  # tokens lie in rows of deal.row_tokens, of which all parts have capacity for equally many
    counts: Literal["equal", "free", "deal"] = "equal"  # of samples per part; `deal`: as the deal says
    exchange: Literal["none", "node", "all"] = "none"  # among which ranks samples are passed on
    # Whether a rank's samples are dealt out to its micro-batches after those of the global batch to the ranks: what
    # ranks take is then balanced best, since they wait for each other once a step, and not after each micro-batch.
    nested: bool = False

    @property
    def communication(self) -> str:
        """What is sent each step, for a table."""
        return PASSED_ON[self.exchange]

    def has_equal_counts(self, deal: Deal) -> bool:
        return (deal.counts if self.counts == "deal" else self.counts) == "equal"

    def slots(self, lengths: np.ndarray, assignment: Assignment, deal: Deal, longest: int) -> np.ndarray:
        """[parts] int64 token slots of each part, padding included, before any rounding of shapes.

        `lengths` [G] in the run's order; a padded sequence takes `longest` tokens.
        """
        if self.pads:
            return assignment.counts * longest
        loads = assignment.loads(lengths.astype(np.int64))
        if self.rows:
            return np.full_like(loads, -(-int(loads.max()) // deal.row_tokens) * deal.row_tokens)
        return loads

    def bytes_per_step(self, lengths: np.ndarray, deal: Deal) -> float:
        """Bytes that a rank sends on average to pass on the samples of a global batch of these lengths [G].

        Counted as an all-gather among the ranks that exchange: each rank's samples go to every other rank once, as 2
        bytes a token, 4 a masked token and 3 a sequence, without padding.
        """
        peers = {"none": 1, "node": deal.parts_per_node, "all": deal.parts}[self.exchange]
        if peers == 1:
            return 0.0
        samples = np.bincount(lengths)
        kinds = np.arange(len(samples))
        return int((2 * kinds + 4 * reference_masked_counts(kinds) + 3) @ samples) / deal.parts * (peers - 1)


STRATEGIES: dict[str, Strategy] = {
    "padded": Strategy(in_order, pads=True),
    "random": Strategy(in_order),
    "exchanged": Strategy(exchanged, exchange="all", nested=True),
    "stratified": Strategy(in_order, strata=True),
    "presorted": Strategy(presorted, strata=True, exchange="node", nested=True),
    "packed": Strategy(packed, rows=True, counts="free"),
    "indexed": Strategy(indexed, counts="deal", nested=True),
}


def assign(strategy: str, lengths: np.ndarray, deal: Deal, accumulation_steps: int = 1) -> Assignment:
    """A global batch of these lengths [G] dealt out by a named strategy to ranks (the deal's parts) and their
    micro-batches: part r · accumulation_steps + a is micro-batch a of rank r.

    Raises ValueError where the batch cannot be split: evenly, or where counts are free, into parts of a sample or more.
    """
    chosen, count, parts = STRATEGIES[strategy], len(lengths), deal.parts * accumulation_steps
    even = chosen.has_equal_counts(deal)
    if count < parts * (1 if even else deal.least) or (even and count % parts):
        raise ValueError(
            f"a global batch of {count} cannot be split {'evenly ' if even else ''}over "
            f"{deal.parts} ranks × {accumulation_steps} steps"
        )
    if lengths.min() < 1:
        raise ValueError("a sample has at least one token")
    if accumulation_steps == 1:
        return chosen.assign(lengths, deal)
    if not chosen.nested:
        per_node = deal.parts_per_node * accumulation_steps
        return chosen.assign(lengths, replace(deal, parts=parts, parts_per_node=per_node))
    by_rank = chosen.assign(lengths, replace(deal, least=deal.least * accumulation_steps))
    return _micro_batches(by_rank, lengths, accumulation_steps)


def _micro_batches(by_rank: Assignment, lengths: np.ndarray, steps: int) -> Assignment:
    """Each part's samples, sorted by length, dealt out in a snake to so many micro-batches, [parts · steps]."""
    ranks = np.repeat(np.arange(by_rank.parts), by_rank.counts)
    order = by_rank.order[np.lexsort((-lengths[by_rank.order].astype(np.int64), ranks))]
    round_of, place = np.divmod(np.arange(len(order)) - by_rank.starts[ranks], steps)
    step = np.where(round_of % 2, steps - 1 - place, place)
    part = ranks * steps + step
    grouped = Assignment.grouped(part, by_rank.parts * steps)
    return Assignment(order[grouped.order], grouped.starts)
