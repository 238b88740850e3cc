"""The strategy `packed`: rows of several sequences, packed within each global batch, without a packed dataset."""

import numpy as np

from podium.core.jit import compiled
from podium.planning.balancing.indexed import indexed
from podium.planning.balancing.interface import Assignment, AssignmentSpec, offsets_of
from podium.planning.balancing.published import snake
from podium.planning.packing import pack_kinds

MAX_ROW_COST = 2**15  # of a row, as an integer


def packed(lengths: np.ndarray, spec: AssignmentSpec) -> Assignment:
    """Pack the global batch into rows of `row_tokens` tokens, and give every part the same number of rows.

    Sequences are assigned to rows best-fit decreasing, and rows to parts by cost as in `indexed`, since rows with the
    same number of tokens differ in pairs of tokens. Some parts may have an empty row. Numbers of sequences differ
    between parts; each has `min_samples` or more. Raises ValueError for too few samples, or one longer than a row.

    Source: Graphcore, arXiv 2107.02027, which packs the whole dataset ahead of time; here each global batch is packed,
    and its samples stay the same. Attention does not cross sequences, so that neighbours in a row do not matter.
    """
    parts, least = spec.parts, spec.min_samples
    wanted = parts * least
    if len(lengths) < wanted:
        raise ValueError(f"{len(lengths)} samples cannot be packed into rows for {parts} parts of {least} or more")
    rows = _split_rows(pack_batch(lengths, spec.row_tokens), wanted)
    slots = -(-rows.parts // parts) * parts
    costs = np.zeros(slots, dtype=np.int64)
    exact = rows.loads(spec.costs(lengths))
    # `indexed` sorts integers in linear time.
    costs[: rows.parts] = np.rint(exact * (MAX_ROW_COST / exact.max()))
    rows_by_part = indexed(costs, AssignmentSpec(parts, parts))
    if (by_part := _expand_rows(rows, rows_by_part)).counts.min() < least:
        # A part with one costly row and empty ones. In a snake each part has a row of every round.
        by_part = _expand_rows(rows, Assignment.from_rows(snake(costs, parts)))
    return by_part


def pack_batch(lengths: np.ndarray, row_tokens: int) -> Assignment:
    """Pack samples of these lengths [G] best-fit decreasing; the rows are the parts of the result."""
    kind_lengths, kind_sizes, rows = pack_kinds(np.bincount(lengths), row_tokens)
    sizes = np.repeat(kind_sizes, rows)
    starts = offsets_of(sizes)
    kind_starts = np.repeat(np.cumsum(kind_sizes) - kind_sizes, rows)
    row_lengths = kind_lengths[np.repeat(kind_starts - starts[:-1], sizes) + np.arange(len(lengths))]
    return Assignment(_match_samples(row_lengths, lengths, offsets_of(np.bincount(lengths))), starts)


@compiled
def _match_samples(places: np.ndarray, lengths: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """Return a sample [G] of the right length for each place; among equal lengths in the order of the samples.

    `places` [G] has the length of each place. `starts` [longest + 2] has the offset of each length among the samples
    sorted by length (a counting sort).
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


def _split_rows(rows: Assignment, wanted: int) -> Assignment:
    """Split rows until there are `wanted`: the last sequences that share a row each get a separate one."""
    if rows.parts >= wanted:
        return rows
    inner = np.setdiff1d(np.arange(1, len(rows.order)), rows.starts)
    return Assignment(rows.order, np.union1d(rows.starts, inner[len(inner) - (wanted - rows.parts) :]))


def _expand_rows(rows: Assignment, rows_by_part: Assignment) -> Assignment:
    """Replace the rows of each part by their sequences; rows with a number beyond the last are empty."""
    sizes = np.zeros(len(rows_by_part.order), dtype=np.int64)
    sizes[: rows.parts] = rows.counts
    taken = sizes[rows_by_part.order]
    firsts = rows.starts[np.minimum(rows_by_part.order, rows.parts)]
    starts = offsets_of(taken)
    order = rows.order[np.repeat(firsts - starts[:-1], taken) + np.arange(len(rows.order))]
    return Assignment(order, starts[rows_by_part.starts])
