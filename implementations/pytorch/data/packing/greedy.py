"""Packing a histogram of lengths greedily, the longest sequences first.

Many sequences have the same length, so that whole groups of equal rows are filled at once: time and memory grow with
the number of kinds of rows, whatever the number of sequences. Source: the histogram packings of Krell, Kosec, Perez and
Fitzgibbon (Graphcore), arXiv 2107.02027.
"""

import numpy as np

from benchmarks.compiled import compiled
from implementations.pytorch.data.packing.packs import Packs, require_histogram


def longest_pack_first(histogram: np.ndarray, row_tokens: int, depth: int | None = None) -> Packs:
    """Best-fit decreasing: every sequence goes to the fullest row that it fits in, of at most `depth` sequences.

    `histogram` has the numbers of sequences of length 0, 1, 2, … Raises ValueError for one longer than a row.
    """
    return _pack(histogram, row_tokens, depth, fullest=True)


def shortest_pack_first(histogram: np.ndarray, row_tokens: int, depth: int | None = None) -> Packs:
    """Worst-fit decreasing: every sequence goes to the emptiest row that has been begun and that it fits in.

    Sequences of one length are placed together: all that fit in no row when their turn comes begin a row each.
    Arguments and errors as in `longest_pack_first`.
    """
    return _pack(histogram, row_tokens, depth, fullest=False)


def _pack(histogram: np.ndarray, row_tokens: int, depth: int | None, fullest: bool) -> Packs:
    lengths, sizes, counts = pack_kinds(histogram, row_tokens, depth, fullest)
    kinds = (tuple(kind.tolist()) for kind in np.split(lengths, np.cumsum(sizes)[:-1]))
    return Packs(row_tokens, dict(zip(kinds, counts.tolist(), strict=True)) if len(sizes) else {})


def pack_kinds(
    histogram: np.ndarray, row_tokens: int, depth: int | None = None, fullest: bool = True
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The kinds of rows of `longest_pack_first`, or of `shortest_pack_first`, each once.

    Lengths of all kinds end to end, the longest of each first, [k] sequences and [k] rows of each kind, all int64.
    """
    require_histogram(histogram, row_tokens)
    if depth is not None and depth < 1:
        raise ValueError("a row holds at least one sequence")
    return _packed_kinds(histogram.astype(np.int64), row_tokens, depth if depth is not None else row_tokens, fullest)


@compiled
def _packed_kinds(
    histogram: np.ndarray, row_tokens: int, depth: int, fullest: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows that have been begun are groups of one kind, in stacks by the room that they have left.

    Kinds are a tree: each is another one and one more sequence, none longer than those before it.
    """
    kinds = np.zeros((1024, 5), np.int64)  # the kind it extends, its last length, sequences, its last extension, rows
    last_kind = 0  # kind 0 has no sequence
    groups = np.zeros((1024, 3), np.int64)  # kind, rows, the group below in the stack
    last_group = 0
    top = np.zeros(row_tokens + 1, np.int64)  # by room, 0 for no group
    rooms = [row_tokens][:0]  # in the order in which they first had a group
    finished = [row_tokens][:0]  # kinds in the order in which they were first finished
    known = np.zeros(row_tokens + 1, np.bool_)
    for length in range(len(histogram) - 1, 0, -1):
        waiting = histogram[length]
        while waiting:
            room = length if fullest else row_tokens
            if fullest:
                while room <= row_tokens and not top[room]:
                    room += 1
            else:
                while room >= length and not top[room]:
                    room -= 1
            kind, rows = 0, waiting
            if length <= room <= row_tokens:
                kind, rows = groups[top[room], 0], groups[top[room], 1]
                top[room] = groups[top[room], 2]
            else:
                room = row_tokens
            times = min(room // length, depth - kinds[kind, 2]) if fullest else 1
            used = min(rows, waiting // times)
            if waiting < times:
                times, used = waiting, 1
            longer = kind
            for _ in range(times):
                child = kinds[longer, 3]
                if kinds[child, 1] != length:
                    last_kind += 1
                    if last_kind == len(kinds):
                        kinds = np.concatenate((kinds, np.zeros_like(kinds)))
                    child = kinds[longer, 3] = last_kind
                    kinds[child, 0], kinds[child, 1], kinds[child, 2] = longer, length, kinds[longer, 2] + 1
                longer = child
            left_over = rows - used if kind else 0
            for left, some, count in ((room - times * length, longer, used), (room, kind, left_over)):
                if count and (not left or kinds[some, 2] == depth):
                    if not kinds[some, 4]:
                        finished.append(some)
                    kinds[some, 4] += count
                elif count:
                    last_group += 1
                    if last_group == len(groups):
                        groups = np.concatenate((groups, np.zeros_like(groups)))
                    groups[last_group] = (some, count, top[left])
                    top[left] = last_group
                    if not known[left]:
                        known[left] = True
                        rooms.append(left)
            waiting -= used * times
    for room in rooms:
        stack = [0][:0]
        while top[room]:
            stack.append(top[room])
            top[room] = groups[top[room], 2]
        for group in stack[::-1]:
            some = groups[group, 0]
            if not kinds[some, 4]:
                finished.append(some)
            kinds[some, 4] += groups[group, 1]
    order = np.array(finished)
    sizes, counts = kinds[order, 2], kinds[order, 4]
    lengths = np.empty(sizes.sum(), np.int64)
    end = 0
    for some in order:
        end += kinds[some, 2]
        at = end
        while some:
            at -= 1
            lengths[at] = kinds[some, 1]
            some = kinds[some, 0]
    return lengths, sizes, counts
