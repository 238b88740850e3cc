"""Packing a histogram of lengths greedily, the longest sequences first.

Many sequences have the same length, so that whole groups of equal rows are filled at once: time and memory grow with
the number of kinds of rows, whatever the number of sequences. Source: the histogram packings of Krell, Kosec, Perez and
Fitzgibbon (Graphcore), arXiv 2107.02027.
"""

import numpy as np

from implementations.pytorch.data.packing.packs import Kind, Packs, require_histogram


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
    require_histogram(histogram, row_tokens)
    if depth is not None and depth < 1:
        raise ValueError("a row holds at least one sequence")
    begun = _Begun(row_tokens, depth if depth is not None else row_tokens)
    for length in range(len(histogram) - 1, 0, -1):
        waiting = int(histogram[length])
        while waiting:
            room = begun.least_room(length) if fullest else begun.most_room(length)
            waiting -= begun.fill(room, length, waiting, as_often_as_it_fits=fullest)
    return Packs.of(row_tokens, begun.rows())


class _Begun:
    """Rows by the room that they have left, groups of one kind each; rows that can take no more are put away."""

    def __init__(self, row_tokens: int, depth: int) -> None:
        self.row_tokens, self.depth = row_tokens, depth
        self.groups: dict[int, list[tuple[Kind, int]]] = {}
        self.rooms = 0
        """Bit r is set where there are rows with room for r tokens."""
        self.full: list[tuple[Kind, int]] = []

    def least_room(self, length: int) -> int:
        """Of the fullest row with room for so many tokens; 0 for none."""
        fitting = self.rooms >> length << length
        return (fitting & -fitting).bit_length() - 1 if fitting else 0

    def most_room(self, length: int) -> int:
        """Of the emptiest row, if it has room for so many tokens; else 0."""
        most = self.rooms.bit_length() - 1
        return most if most >= length else 0

    def fill(self, room: int, length: int, waiting: int, as_often_as_it_fits: bool) -> int:
        """Put sequences of one length into rows of one kind with so much room, or into new ones for 0: how many.

        Once in each row, or as often as it fits: the row that has just taken one is the fullest then.
        """
        kind, rows = self._taken(room) if room else ((), waiting)
        room = room or self.row_tokens
        times = min(room // length, self.depth - len(kind)) if as_often_as_it_fits else 1
        if waiting < times:
            times, used = waiting, 1
        else:
            used = min(rows, waiting // times)
        self._put(room - times * length, (*kind, *[length] * times), used)
        if kind:
            self._put(room, kind, rows - used)
        return used * times

    def rows(self) -> list[tuple[Kind, int]]:
        return self.full + [group for groups in self.groups.values() for group in groups]

    def _taken(self, room: int) -> tuple[Kind, int]:
        groups = self.groups[room]
        group = groups.pop()
        if not groups:
            self.rooms &= ~(1 << room)
        return group

    def _put(self, room: int, kind: Kind, count: int) -> None:
        if not count:
            return
        if not room or len(kind) == self.depth:
            self.full.append((kind, count))
            return
        self.groups.setdefault(room, []).append((kind, count))
        self.rooms |= 1 << room
