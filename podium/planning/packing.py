"""Packing of sequences into rows, greedily or by non-negative least squares.

Source of both: the histogram packings of Krell, Kosec, Perez and Fitzgibbon (Graphcore), arXiv 2107.02027.

A kind is the multiset of sequence lengths in a row; a packing has a number of rows for each kind.

Greedy, the longest sequences first: groups of equal rows are filled at once, so that time and memory grow with the
number of kinds, not with the number of sequences.

Least squares: how often to use each way of filling a row exactly. There are 22,102 ways in which up to three
sequences fill 512 tokens. Their numbers x ≥ 0 should use up the histogram b: minimise ‖A·x − b‖², where column w of A
has the numbers of sequences of each length in way w. The problem is solved by projected gradients with momentum (Beck
and Teboulle, SIAM J. Imaging Sciences 2009; restarts by O'Donoghue and Candès, 2015), without storing a matrix.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from podium.core.jit import compiled

Kind = tuple[int, ...]  # the lengths of a row's sequences, in tokens, the longest first


@dataclass(frozen=True)
class Packs:
    """A packing: numbers of rows of `row_tokens` tokens by kind."""

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
        """Share of the rows' tokens that are not padding; 1 for no rows."""
        return self.tokens / (self.rows * self.row_tokens) if self.rows else 1.0

    def histogram(self) -> np.ndarray:
        """Numbers of sequences of length 0, 1, 2, …: [row_tokens + 1] int64."""
        histogram = np.zeros(self.row_tokens + 1, dtype=np.int64)
        for kind, count in self.counts.items():
            for length in kind:
                histogram[length] += count
        return histogram


def require_histogram(histogram: np.ndarray, row_tokens: int) -> None:
    """Raise ValueError unless `histogram` [n] has numbers of sequences of length 0, 1, 2, …, none of length 0 or longer
    than a row."""
    if histogram.ndim != 1 or (histogram < 0).any() or histogram[0] or histogram[row_tokens + 1 :].any():
        raise ValueError(
            f"a histogram must have the numbers of sequences of length 0 to {row_tokens}, none of length 0"
        )


def longest_pack_first(histogram: np.ndarray, row_tokens: int, depth: int | None = None) -> Packs:
    """Pack best-fit decreasing: every sequence goes to the fullest row that it fits in, of at most `depth` sequences.

    `histogram` [n] has the numbers of sequences of length 0, 1, 2, … Raises ValueError for one longer than a row.
    """
    return _pack(histogram, row_tokens, depth, fullest=True)


def shortest_pack_first(histogram: np.ndarray, row_tokens: int, depth: int | None = None) -> Packs:
    """Pack worst-fit decreasing: every sequence goes to the emptiest row that is not empty and that it fits in.

    Sequences of one length are placed together: those that fit in no row each begin one.
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
    """Return the kinds of `longest_pack_first` (`fullest`) or `shortest_pack_first`, each once.

    Lengths of all kinds end to end, the longest of each first; sequences [k] and rows [k] of each kind; all int64.
    """
    require_histogram(histogram, row_tokens)
    if depth is not None and depth < 1:
        raise ValueError(f"depth: found {depth}, a row must have at least one sequence")
    return _pack_kinds(histogram.astype(np.int64), row_tokens, depth if depth is not None else row_tokens, fullest)


@compiled
def _pack_kinds(
    histogram: np.ndarray, row_tokens: int, depth: int, fullest: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Compiled part of `pack_kinds`: rows with room are groups of one kind, in stacks by their remaining tokens."""
    # Kinds are nodes of a tree: each adds one sequence to its parent, none longer than those before it. All tables grow
    # by doubling, since numba has no cheap growing array of rows.
    kinds = np.zeros((1024, 5), np.int64)  # parent kind, last length, sequences, latest child, rows
    last_kind = 0  # kind 0 is the root, without sequences
    groups = np.zeros((1024, 3), np.int64)  # kind, rows, the group below in the stack
    last_group = 0
    top = np.zeros(row_tokens + 1, np.int64)  # top of the stack of each room, 0 for no group
    rooms = [row_tokens][:0]  # in the order of their first group; sliced so that numba infers the type of an empty list
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
            for left, node, count in ((room - times * length, longer, used), (room, kind, left_over)):
                if count and (not left or kinds[node, 2] == depth):
                    if not kinds[node, 4]:
                        finished.append(node)
                    kinds[node, 4] += count
                elif count:
                    last_group += 1
                    if last_group == len(groups):
                        groups = np.concatenate((groups, np.zeros_like(groups)))
                    groups[last_group] = (node, count, top[left])
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
            node = groups[group, 0]
            if not kinds[node, 4]:
                finished.append(node)
            kinds[node, 4] += groups[group, 1]
    order = np.array(finished)
    sizes, counts = kinds[order, 2], kinds[order, 4]
    lengths = np.empty(sizes.sum(), np.int64)
    end = 0
    for node in order:
        end += kinds[node, 2]
        at = end
        while node:
            at -= 1
            lengths[at] = kinds[node, 1]
            node = kinds[node, 0]
    return lengths, sizes, counts


LEAST_SQUARES_DEPTH = 3  # maximum sequences in a row
# Of the solver: it ends when the error falls by a smaller share between two checks.
CHECK_INTERVAL, MIN_GAIN, MAX_ITERATIONS = 100, 1e-4, 2000


def least_squares_packs(histogram: np.ndarray, row_tokens: int) -> Packs:
    """Pack a histogram [n] (numbers of sequences of length 0, 1, 2, …) by least squares, at most three in a row.

    The solution is rounded down. Where it uses a length more often than there are sequences, rows have an empty place
    instead; the remaining sequences are packed best-fit decreasing, also at most three in a row. Raises ValueError for
    a sequence longer than a row.
    """
    require_histogram(histogram, row_tokens)
    wanted = np.zeros(row_tokens + 1, dtype=np.int64)
    wanted[: len(histogram[: row_tokens + 1])] = histogram[: row_tokens + 1]
    if not wanted.any():
        return Packs(row_tokens, Counter())
    ways = full_rows(row_tokens)
    times = np.floor(non_negative_least_squares(ways, wanted)).astype(np.int64)
    kinds = (tuple(n for n in way if n) for way in ways.tolist())
    packs = _remove_excess(Packs(row_tokens, +Counter(dict(zip(kinds, times.tolist(), strict=True)))), wanted)
    left_over = longest_pack_first(wanted - packs.histogram(), row_tokens, LEAST_SQUARES_DEPTH)
    return Packs(row_tokens, packs.counts + left_over.counts)


def full_rows(row_tokens: int) -> np.ndarray:
    """Every multiset of at most three lengths that sum to `row_tokens`: [ways, 3] int64, longest first, 0 for none."""
    shortest = np.arange(row_tokens // 3 + 1)
    ways = [
        np.stack([row_tokens - least - (middle := np.arange(least, (row_tokens - least) // 2 + 1)), middle], axis=1)
        for least in shortest
    ]
    leasts = np.repeat(shortest, [len(way) for way in ways])
    return np.concatenate([np.concatenate(ways), leasts[:, None]], axis=1)


def non_negative_least_squares(ways: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Return x ≥ 0 [ways] float64 that minimises ‖A·x − wanted‖.

    A·x has the numbers of sequences of each length in x rows of each way, with 0 for length 0, as in `wanted`.
    """

    def product(x: np.ndarray) -> np.ndarray:
        """A·x."""
        lengths: np.ndarray = np.bincount(ways.reshape(-1), np.repeat(x, ways.shape[1]), minlength=len(wanted))
        lengths[0] = 0.0
        return lengths

    rate = 1.0 / _largest_eigenvalue(ways, product)
    x = lookahead = np.zeros(len(ways))
    momentum, last = 1.0, np.inf
    for iteration in range(1, MAX_ITERATIONS + 1):
        gradient = (product(lookahead) - wanted)[ways].sum(axis=1)  # Aᵀ · residual
        next_x = np.maximum(lookahead - rate * gradient, 0.0)
        # Restart the momentum where it points uphill (O'Donoghue and Candès).
        if (lookahead - next_x) @ (next_x - x) > 0:
            momentum = 1.0
        next_momentum = (1 + np.sqrt(1 + 4 * momentum * momentum)) / 2
        lookahead = next_x + (momentum - 1) / next_momentum * (next_x - x)
        x, momentum = next_x, float(next_momentum)
        if iteration % CHECK_INTERVAL == 0:
            error = float(np.linalg.norm(product(x) - wanted))
            if error > last * (1 - MIN_GAIN):
                break
            last = error
    return x


def _largest_eigenvalue(ways: np.ndarray, product: Callable[[np.ndarray], np.ndarray]) -> float:
    """Largest eigenvalue of AᵀA, by power iteration."""
    x, value = np.ones(len(ways)), 0.0
    for _ in range(50):
        x = product(x)[ways].sum(axis=1)
        value = float(np.linalg.norm(x))
        x /= value
    return 1.01 * value  # the iteration converges from below, and too small a value lets the descent diverge


def _remove_excess(packs: Packs, wanted: np.ndarray) -> Packs:
    """Replace sequences by empty places where a length is used too often, in the most frequent kinds with it."""
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
        if too_many:  # left in kinds that have the length twice or more: each round removes one
            return _remove_excess(Packs(packs.row_tokens, +counts), wanted)
    del counts[()]
    return Packs(packs.row_tokens, +counts)
