"""The strategies by name, and the assignment of a global batch to ranks and accumulation steps.

A strategy's `communication` and `bytes_per_step` are those of the system that it was published with, in which each rank
stores other shards and ranks exchange samples. Here every rank computes the assignment from the length index and reads
its samples from the store, so that no strategy sends anything.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from benchmarks.bert.lengths import reference_masked_counts
from podium.planning.balancing.indexed import indexed
from podium.planning.balancing.interface import Assignment, AssignmentSpec
from podium.planning.balancing.packed import packed
from podium.planning.balancing.published import exchanged, in_order, presorted

Assign = Callable[[np.ndarray, AssignmentSpec], Assignment]
COMMUNICATION = {"none": "none", "node": "samples of a node", "all": "samples of all ranks"}


@dataclass(frozen=True)
class Strategy:
    """How a strategy assigns samples, the slots that they take, and the communication of its published system."""

    assign: Assign  # lengths [G] in the run's order, specification → assignment
    pads: bool = False  # every sequence takes a slot of the longest length
    strata: bool = False  # drawn by StratifiedSampler: every local batch has fixed counts of each stratum
    rows: bool = False  # tokens lie in rows of `row_tokens`; all parts have capacity for the same number of rows
    counts: Literal["equal", "free", "configured"] = "equal"  # samples of a part; `configured`: as in the specification
    exchange: Literal["none", "node", "all"] = "none"  # ranks among which samples are exchanged
    # Whether samples are assigned to ranks first, and then within each rank to its micro-batches. Ranks wait for each
    # other once a step and not after each micro-batch, so that balance between ranks matters most.
    nested: bool = False

    @property
    def communication(self) -> str:
        """Description of what ranks exchange each step, for a table."""
        return COMMUNICATION[self.exchange]

    def has_equal_counts(self, spec: AssignmentSpec) -> bool:
        """Whether every part has the same number of samples."""
        return (spec.counts if self.counts == "configured" else self.counts) == "equal"

    def slots(self, lengths: np.ndarray, assignment: Assignment, spec: AssignmentSpec, longest: int) -> np.ndarray:
        """Token slots [parts] int64 of each part, padding included, before any rounding of shapes.

        `lengths` [G] in the run's order; a padded sequence takes `longest` tokens.
        """
        if self.pads:
            return assignment.counts * longest
        loads = assignment.loads(lengths.astype(np.int64))
        if self.rows:
            return np.full_like(loads, -(-int(loads.max()) // spec.row_tokens) * spec.row_tokens)
        return loads

    def bytes_per_step(self, lengths: np.ndarray, spec: AssignmentSpec) -> float:
        """Mean bytes that a rank sends to exchange the samples of a global batch of these lengths [G].

        An all-gather among the ranks that exchange: each rank's samples are sent to every other rank once, as 2 bytes
        for a token, 4 for a masked token and 3 for a sequence, without padding.
        """
        peers = {"none": 1, "node": spec.parts_per_node, "all": spec.parts}[self.exchange]
        if peers == 1:
            return 0.0
        samples = np.bincount(lengths)
        kinds = np.arange(len(samples))
        return int((2 * kinds + 4 * reference_masked_counts(kinds) + 3) @ samples) / spec.parts * (peers - 1)


STRATEGIES: dict[str, Strategy] = {
    "padded": Strategy(in_order, pads=True),
    "random": Strategy(in_order),
    "exchanged": Strategy(exchanged, exchange="all", nested=True),
    "stratified": Strategy(in_order, strata=True),
    "presorted": Strategy(presorted, strata=True, exchange="node", nested=True),
    "packed": Strategy(packed, rows=True, counts="free"),
    "indexed": Strategy(indexed, counts="configured", nested=True),
}


def assign(strategy: str, lengths: np.ndarray, spec: AssignmentSpec, accumulation_steps: int = 1) -> Assignment:
    """Assign a global batch of these lengths [G] to ranks (the specification's parts) and their micro-batches.

    Part r · accumulation_steps + a of the result is micro-batch a of rank r. Raises ValueError where the batch cannot
    be split evenly or, with free counts, into parts of at least `min_samples` samples, and for a length below 1.
    """
    chosen, count, ranks = STRATEGIES[strategy], len(lengths), spec.parts
    parts = ranks * accumulation_steps
    even = chosen.has_equal_counts(spec)
    if count < parts * (1 if even else spec.min_samples) or (even and count % parts):
        raise ValueError(
            f"a global batch of {count} cannot be split {'evenly ' if even else ''}over "
            f"{ranks} ranks × {accumulation_steps} accumulation steps"
        )
    if lengths.min() < 1:
        raise ValueError(f"a sample must have at least one token; found a length of {lengths.min()}")
    if accumulation_steps == 1:
        return chosen.assign(lengths, spec)
    if not chosen.nested:
        per_node = spec.parts_per_node * accumulation_steps
        return chosen.assign(lengths, replace(spec, parts=parts, parts_per_node=per_node))
    by_rank = chosen.assign(lengths, replace(spec, min_samples=spec.min_samples * accumulation_steps))
    return _split_micro_batches(by_rank, lengths, accumulation_steps)


def _split_micro_batches(by_rank: Assignment, lengths: np.ndarray, steps: int) -> Assignment:
    """Split each part's samples, sorted by length, in a snake into `steps` micro-batches: parts [parts · steps]."""
    ranks = np.repeat(np.arange(by_rank.parts), by_rank.counts)
    order = by_rank.order[np.lexsort((-lengths[by_rank.order].astype(np.int64), ranks))]
    round_of, place = np.divmod(np.arange(len(order)) - by_rank.starts[ranks], steps)
    step = np.where(round_of % 2, steps - 1 - place, place)
    part = ranks * steps + step
    grouped = Assignment.from_part_ids(part, by_rank.parts * steps)
    return Assignment(order[grouped.order], grouped.starts)
