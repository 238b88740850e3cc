"""Packing of sequences into rows: kinds of rows with their counts, greedily or by non-negative least squares.

Source of both: the histogram packings of Krell, Kosec, Perez and Fitzgibbon (Graphcore), arXiv 2107.02027.

Greedy, the longest sequences first: whole groups of equal rows are filled at once, so that time and memory grow with
the number of kinds of rows, not with the number of sequences.

Least squares: how often to use each way of filling a row exactly. There are 22,102 ways in which up to three
sequences fill 512 tokens. Their numbers x ≥ 0 are to use up the histogram b: minimise ‖A·x − b‖², where A has the
lengths of each way as a column. The problem is solved by projected gradients with momentum (Beck and Teboulle, SIAM
J. Imaging Sciences 2009; restarts by O'Donoghue and Candès, 2015), without storing a matrix.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from podium.core.jit import compiled

Kind = tuple[int, ...]  # the lengths of a row's sequences, in tokens, the longest first


@dataclass(frozen=True)
class Packs:
    """Rows of `row_tokens` tokens each, so many of each kind."""

    row_tokens: int
    counts: Counter[Kind]

    @property
    def rows(self) -> int:
        return self.counts.total()

    @property
    def sequences(self) -> int:
        return sum(len(kind) * count for kind, count in self.counts.items())

    @property
    def tokens(self) -> int:
        return sum(sum(kind) * count for kind, count in self.counts.items())

    @property
    def efficiency(self) -> float:
        """Share of the rows' tokens that are no padding; 1 for no rows."""
        return self.tokens / (self.rows * self.row_tokens) if self.rows else 1.0

    def histogram(self) -> np.ndarray:
        """[row_tokens + 1] int64 sequences of length 0, 1, 2, …"""
        histogram = np.zeros(self.row_tokens + 1, dtype=np.int64)
        for kind, count in self.counts.items():
            for length in kind:
                histogram[length] += count
        return histogram


def require_histogram(histogram: np.ndarray, row_tokens: int) -> None:
    """Raises ValueError unless these are numbers of sequences of length 0, 1, 2, …, none of 0 or longer than a row."""
    if histogram.ndim != 1 or (histogram < 0).any() or histogram[0] or histogram[row_tokens + 1 :].any():
        raise ValueError(f"a histogram has the numbers of sequences of length 0 to {row_tokens}, none of length 0")


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
    return Packs(row_tokens, Counter(dict(zip(kinds, counts.tolist(), strict=True)) if len(sizes) else {}))


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


DEPTH = 3  # sequences of a row, at most
CHECKED_EVERY, LEAST_GAIN, MOST_ITERATIONS = 100, 1e-4, 2000  # of the solver: ends where the error falls by less


def least_squares_packs(histogram: np.ndarray, row_tokens: int) -> Packs:
    """Pack all of a histogram (numbers of sequences of length 0, 1, 2, …), at most three to a row.

    The solution is rounded down. Where it uses a length more often than there are sequences, rows have an empty place
    instead; what it leaves over is packed best-fit decreasing, at most three to a row too. Raises ValueError for a
    sequence longer than a row.
    """
    require_histogram(histogram, row_tokens)
    wanted = np.zeros(row_tokens + 1, dtype=np.int64)
    wanted[: len(histogram[: row_tokens + 1])] = histogram[: row_tokens + 1]
    if not wanted.any():
        return Packs(row_tokens, Counter())
    ways = full_rows(row_tokens)
    times = np.floor(non_negative_least_squares(ways, wanted)).astype(np.int64)
    kinds = (tuple(n for n in way if n) for way in ways.tolist())
    packs = _without_excess(Packs(row_tokens, +Counter(dict(zip(kinds, times.tolist(), strict=True)))), wanted)
    left_over = longest_pack_first(wanted - packs.histogram(), row_tokens, DEPTH)
    return Packs(row_tokens, packs.counts + left_over.counts)


def full_rows(row_tokens: int) -> np.ndarray:
    """[ways, 3] int64: every multiset of at most three lengths that sum to `row_tokens`, longest first, 0 for none."""
    shortest = np.arange(row_tokens // 3 + 1)
    ways = [
        np.stack([row_tokens - least - (middle := np.arange(least, (row_tokens - least) // 2 + 1)), middle], axis=1)
        for least in shortest
    ]
    leasts = np.repeat(shortest, [len(way) for way in ways])
    return np.concatenate([np.concatenate(ways), leasts[:, None]], axis=1)


def non_negative_least_squares(ways: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """[ways] float64 x ≥ 0 of least ‖A·x − wanted‖, where A·x counts the lengths in x rows of each way but length 0.

    `wanted` has 0 of length 0.
    """

    def product(x: np.ndarray) -> np.ndarray:
        """A·x."""
        lengths: np.ndarray = np.bincount(ways.reshape(-1), np.repeat(x, ways.shape[1]), minlength=len(wanted))
        lengths[0] = 0.0
        return lengths

    rate = 1.0 / _greatest_eigenvalue(ways, product)
    x = ahead = np.zeros(len(ways))
    momentum, last = 1.0, np.inf
    for iteration in range(1, MOST_ITERATIONS + 1):
        gradient = (product(ahead) - wanted)[ways].sum(axis=1)  # Aᵀ of by how much each length is used too often
        following = np.maximum(ahead - rate * gradient, 0.0)
        if (ahead - following) @ (following - x) > 0:
            momentum = 1.0
        grown = (1 + np.sqrt(1 + 4 * momentum * momentum)) / 2
        ahead = following + (momentum - 1) / grown * (following - x)
        x, momentum = following, float(grown)
        if iteration % CHECKED_EVERY == 0:
            error = float(np.linalg.norm(product(x) - wanted))
            if error > last * (1 - LEAST_GAIN):
                break
            last = error
    return x


def _greatest_eigenvalue(ways: np.ndarray, product: Callable[[np.ndarray], np.ndarray]) -> float:
    """Of AᵀA, by power iteration; a little more, to be on the safe side."""
    x, value = np.ones(len(ways)), 0.0
    for _ in range(50):
        x = product(x)[ways].sum(axis=1)
        value = float(np.linalg.norm(x))
        x /= value
    return 1.01 * value


def _without_excess(packs: Packs, wanted: np.ndarray) -> Packs:
    """Empty places where a length is used more often than there are sequences, in the kinds that use it most."""
    counts = packs.counts.copy()
    excess = packs.histogram() - wanted
    for length in np.flatnonzero(excess > 0).tolist():
        too_many = int(excess[length])
        for kind in sorted((kind for kind in counts if length in kind), key=lambda kind: (-counts[kind], kind)):
            changed = min(counts[kind], too_many)
            shorter = list(kind)
            shorter.remove(length)
            counts[kind] -= changed
            counts[tuple(shorter)] += changed
            too_many -= changed
            if not too_many:
                break
        if too_many:  # from kinds that have it twice or more, of which each round takes one
            return _without_excess(Packs(packs.row_tokens, +counts), wanted)
    del counts[()]
    return Packs(packs.row_tokens, +counts)
