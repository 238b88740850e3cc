"""Parts as columns of places, with a sample in each, and rounds in which parts exchange samples.

Room is what makes two measures, tokens and cost, one: the longest sample that a part could still take without exceeding
the mean part in either. Samples are first dealt out row by row, the longest row first, each row's longest sample to the
part with most room. Then every part hands one sample in, from another place each round, and the samples handed in are
dealt out again in the same way. If any way of giving them back keeps all parts within the means, this one does, but for
room being rounded: where a longer sample goes to a part of less room than a shorter one, exchanging the two keeps both
within. In small batches, where such rounds have little to choose from, the busiest part then swaps samples with any
other.

Parts of unequal counts are parts of equal ones in which some places are empty: they hold a sample of no length.
"""

import numpy as np

from implementations.pytorch.data.balancing.assignment import Assignment, Deal
from implementations.pytorch.data.balancing.bounds import bound_of_sorted

ROUNDS, ROUND_SAMPLES = 32, 2**17
"""Times that samples are handed in and dealt out again, at most, and how many samples in all: 0.1 ms for 4,096."""
ROWS = 64
"""Rows that are dealt out one by one, at most."""
SWAPS, SWAP_CHOICES = 64, 2**13
"""Swaps of two samples at the end, at most, and among how many one is still chosen."""
WHOLE = 2**40
"""Of whole-number costs: about what all samples cost together."""


class Columns:
    """Places [places · parts], row by row, each with a sample or an empty one, and the loads [parts] of the columns."""

    def __init__(self, lengths: np.ndarray, deal: Deal, places: int, start: Assignment | None = None) -> None:
        """Of samples of these lengths [G], dealt out row by row, or as in `start`."""
        self.deal, self.parts, self.places = deal, deal.parts, places
        size = places * deal.parts
        self.lengths = np.zeros(size, dtype=np.int64)
        self.lengths[: len(lengths)] = lengths
        self.descending = _ascending(self.lengths)[::-1]
        self.whole_tokens = int(self.lengths.sum())
        pairs = int(self.lengths @ self.lengths)
        self.unit = WHOLE / (self.whole_tokens + deal.pair_cost * pairs + deal.sequence_cost * len(lengths))
        self.cost_of = np.rint(self.unit * deal.costs(np.arange(int(lengths.max()) + 1))).astype(np.int64)
        self.cost_of[0] = 0
        self.whole_cost = int(self.cost_of[self.lengths].sum())
        self._take(self._rows() if start is None else self._placed(start))

    @property
    def score(self) -> float:
        """The greater max/mean of tokens and cost."""
        return max(
            int(self.tokens.max()) * self.parts / self.whole_tokens,
            int(self.costs.max()) * self.parts / self.whole_cost,
        )

    def bound(self, count: int) -> float:
        """What no assignment of the first `count` samples can beat: the others are empty."""
        longest_first = self.lengths[self.descending[:count]]
        return max(bound_of_sorted(longest_first, self.deal), bound_of_sorted(self.cost_of[longest_first], self.deal))

    def refine(self, enough: float) -> None:
        """Rounds of handing in and dealing out again, until the score is `enough`; the best of all columns stays."""
        best, kept, score = self.score, self.held.copy(), 0.0
        parts = np.arange(self.parts)
        place = _scattered(self.parts) % self.places
        for done in range(min(ROUNDS, ROUND_SAMPLES // self.parts) if self.parts > 1 else 0):
            if best <= enough:
                break
            if done % self.places == 0:
                place = (place + _scattered(self.parts, done)) % self.places
            self._exchange(place * self.parts + parts)
            place += 1
            place[place == self.places] = 0
            score = self.score
            if score < best:
                best, kept = score, self.held.copy()
        if score > best:
            self._take(kept)
        if self.parts > 1 and self.places * self.held.size <= SWAP_CHOICES:
            self._swap(enough)

    def assignment(self, count: int) -> Assignment:
        """Of the first `count` samples: the others are empty."""
        by_part = self.held.reshape(self.places, self.parts).T
        if count == by_part.size:
            return Assignment.even(by_part)
        real = by_part < count
        starts = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(real.sum(axis=1), dtype=np.int64)])
        return Assignment(by_part[real], starts)

    def _placed(self, start: Assignment) -> np.ndarray:
        """Samples by place, as they are in the parts of an assignment; the other places are empty."""
        held = np.full((self.places, self.parts), -1, dtype=np.int64)
        parts = np.repeat(np.arange(self.parts), start.counts)
        held[np.arange(len(parts)) - start.starts[parts], parts] = start.order
        held[held < 0] = np.arange(len(parts), held.size)
        return held.reshape(-1)

    def _rows(self) -> np.ndarray:
        """Row by row, the longest samples first, each row's longest to the part with most room.

        Of more than `ROWS` rows the first ones are dealt out in a snake.
        """
        rows = self.descending.reshape(self.places, self.parts).copy()
        first = max(0, self.places - ROWS)
        rows[1:first:2] = rows[1:first:2, ::-1]
        lengths = self.lengths[rows[:first]]
        self.tokens, self.costs = lengths.sum(axis=0), self.cost_of[lengths].sum(axis=0)
        for row in rows[first:]:
            row[_ascending(self._room())] = row[::-1].copy()
            self._add(self.lengths[row])
        return rows.reshape(-1)

    def _exchange(self, at: np.ndarray) -> None:
        """The samples of these places, one a part, are handed in; the longest goes to the part with most room …"""
        samples = self.held[at]
        lengths = self.lengths[samples]
        self.tokens -= lengths
        self.costs -= self.cost_of[lengths]
        roomiest_last, longest_last = _ascending(self._room()), _ascending(lengths)
        given = np.empty_like(samples)
        given[roomiest_last] = samples[longest_last]
        self.held[at] = given
        self._add(self.lengths[given])

    def _swap(self, enough: float) -> None:
        """As long as it helps, the busiest part swaps one sample for another part's: the best of all such swaps."""
        scale = np.array([self.parts / self.whole_tokens, self.parts / self.whole_cost])[:, None, None]
        for _ in range(SWAPS):
            loads = np.stack([self.tokens, self.costs]) * scale[:, 0]
            busy = loads.max(axis=0)
            worst = int(busy.argmax())
            if busy[worst] <= enough:
                return
            lengths = self.lengths[self.held]
            sizes = np.stack([lengths, self.cost_of[lengths]])
            shed = (sizes[:, worst :: self.parts, None] - sizes[:, None]) * scale
            left = (loads[:, worst, None, None] - shed).max(axis=0)
            right = (np.tile(loads, self.places)[:, None] + shed).max(axis=0)
            after = np.maximum(left, right)
            own, other = np.unravel_index(after.argmin(), after.shape)
            if after[own, other] >= busy[worst]:
                return
            at = np.array([own * self.parts + worst, other])
            self.held[at] = self.held[at[::-1]]
            self._take(self.held)

    def _add(self, lengths: np.ndarray) -> None:
        self.tokens += lengths
        self.costs += self.cost_of[lengths]

    def _take(self, held: np.ndarray) -> None:
        """Hold these samples, by place."""
        self.held = held
        lengths = self.lengths[held].reshape(self.places, self.parts)
        self.tokens, self.costs = lengths.sum(axis=0), self.cost_of[lengths].sum(axis=0)

    def _room(self) -> np.ndarray:
        """[parts] length of the longest sample that keeps a part within the mean in tokens and in cost.

        Less than 0 where a part exceeds the mean already. n + pair_cost · n² = x is solved by the form of the quadratic
        formula that holds without pairs too, and goes on below 0 as a straight line.
        """
        deal = self.deal
        in_tokens = self.whole_tokens / self.parts - self.tokens
        x = (self.whole_cost / self.parts - self.costs) / self.unit - deal.sequence_cost
        in_cost = 2 * x / (1 + np.sqrt(np.maximum(1 + 4 * deal.pair_cost * x, 0)))
        room: np.ndarray = np.minimum(in_tokens, in_cost)
        return room


def _ascending(values: np.ndarray) -> np.ndarray:
    """A stable order [n] of values to one part in 65,535 of their range, which a radix sort finds in linear time."""
    least, most = values.min(), values.max()
    if most == least:
        return np.arange(len(values))
    if values.dtype.kind == "i" and most - least < 2**16:
        keys = (values - least).astype(np.uint16)
    else:
        keys = ((values - least) * (65535 / float(most - least))).astype(np.uint16)
    order: np.ndarray = np.argsort(keys, kind="stable")
    return order


def _scattered(count: int, salt: int = 0) -> np.ndarray:
    """[count] int64 numbers from 0 on without pattern: a multiplicative hash (Knuth, TAOCP 3, 6.4)."""
    mixed = (np.arange(1, count + 1, dtype=np.uint64) + np.uint64(salt << 32)) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
    numbers: np.ndarray = (mixed >> np.uint64(40)).astype(np.int64)
    return numbers
