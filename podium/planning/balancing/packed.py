"""Rows of several sequences, packed inside each global batch: no packed copy of the dataset is needed."""

import numpy as np

from podium.core.jit import compiled
from podium.planning.balancing.indexed import indexed
from podium.planning.balancing.interface import Assignment, Deal, offsets_of
from podium.planning.balancing.published import snake
from podium.planning.packing import pack_kinds

COSTLIEST = 2**15  # greatest whole-number cost of a row


def packed(lengths: np.ndarray, deal: Deal) -> Assignment:
    """Pack the global batch into rows of `deal.row_tokens` tokens, and give every part equally many rows.

    Sequences go to rows best-fit decreasing; rows go to parts by cost as in `indexed`, since rows of equally many
    tokens differ in pairs of tokens. Some parts may have an empty row, and parts have unequal numbers of sequences,
    `deal.least` or more. Raises ValueError for too few samples, or one that is longer than a row.

    Source: Graphcore, arXiv 2107.02027, there of the whole dataset ahead of time, here of each batch. A global batch
    has the same samples as without; which of them share a row is no matter, as none sees another.
    """
    parts, wanted = deal.parts, deal.parts * deal.least
    if len(lengths) < wanted:
        raise ValueError(f"{len(lengths)} samples cannot be packed into rows for {parts} parts of {deal.least} or more")
    rows = _split(pack_batch(lengths, deal.row_tokens), wanted)
    slots = -(-rows.parts // parts) * parts
    costs = np.zeros(slots, dtype=np.int64)
    exact = rows.loads(deal.costs(lengths))
    costs[: rows.parts] = np.rint(exact * (COSTLIEST / exact.max()))
    dealt = indexed(costs, Deal(parts, parts))
    if (by_part := _sequences(rows, dealt)).counts.min() < deal.least:
        by_part = _sequences(rows, Assignment.even(snake(costs, parts)))
    return by_part


def pack_batch(lengths: np.ndarray, row_tokens: int) -> Assignment:
    """The rows, as parts of an assignment, that best-fit decreasing makes of samples of these lengths [G]."""
    kind_lengths, kind_sizes, rows = pack_kinds(np.bincount(lengths), row_tokens)
    sizes = np.repeat(kind_sizes, rows)
    starts = offsets_of(sizes)
    kind_starts = np.repeat(np.cumsum(kind_sizes) - kind_sizes, rows)
    row_lengths = kind_lengths[np.repeat(kind_starts - starts[:-1], sizes) + np.arange(len(lengths))]
    return Assignment(_samples_of(row_lengths, lengths, offsets_of(np.bincount(lengths))), starts)


@compiled
def _samples_of(places: np.ndarray, lengths: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """[G] samples of these lengths for places of as many tokens, the first of each length for the first place of it.

    `starts` [longest + 2] are those of each length among the samples in ascending order.
    """
    ascending, order = np.empty(len(lengths), np.int64), np.empty(len(lengths), np.int64)
    taken = starts.copy()
    for sample, length in enumerate(lengths):
        ascending[taken[length]] = sample
        taken[length] += 1
    taken = starts.copy()
    for place, length in enumerate(places):
        order[place] = ascending[taken[length]]
        taken[length] += 1
    return order


def _split(rows: Assignment, wanted: int) -> Assignment:
    """At least so many rows: where there are fewer, the last sequences that share a row get rows of their own."""
    if rows.parts >= wanted:
        return rows
    inner = np.setdiff1d(np.arange(1, len(rows.order)), rows.starts)
    return Assignment(rows.order, np.union1d(rows.starts, inner[len(inner) - (wanted - rows.parts) :]))


def _sequences(rows: Assignment, dealt: Assignment) -> Assignment:
    """The sequences of the rows that each part was dealt; rows beyond the last are empty."""
    sizes = np.zeros(len(dealt.order), dtype=np.int64)
    sizes[: rows.parts] = rows.counts
    taken = sizes[dealt.order]
    firsts = rows.starts[np.minimum(dealt.order, rows.parts)]
    starts = offsets_of(taken)
    order = rows.order[np.repeat(firsts - starts[:-1], taken) + np.arange(len(rows.order))]
    return Assignment(order, starts[dealt.starts])
