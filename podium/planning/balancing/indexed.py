"""The strategy `indexed`: every rank computes the same assignment of the whole global batch from the length index.

A step takes as long as its busiest part. The objective is therefore the larger max/mean of two loads: tokens (memory,
and all work that is linear in tokens) and cost (tokens, pairs of tokens and sequences, as measured in a step).

Parts are columns of places with one sample in each. With free counts some places have an empty sample of length zero.
The room of a part is the longest sample that it could take without exceeding the mean of tokens or of cost. Samples are
first assigned row by row, the longest row first, each row's longest sample to the part with most room. Then, in
rounds, every part returns one sample, each round from another place, and the returned samples are assigned again in
the same way. If any reassignment keeps all parts within the means, this one does, apart from the rounding of room:
where a longer sample is in a part of less room than a shorter one, exchanging the two keeps both parts within. In
small batches such rounds have few choices, so the busiest part finally swaps samples with any other.
"""

from typing import NamedTuple

import numpy as np

from podium.core.jit import compiled
from podium.planning.balancing.interface import Assignment, AssignmentSpec, max_over_mean_lower_bound, offsets_of
from podium.planning.tensor_partition import owners

MAX_ROUNDS, MAX_ROUND_SAMPLES = 32, 2**17  # samples over all rounds: 4,096 take 0.1 ms
MAX_GREEDY_ROWS = 64  # last rows, assigned one by one by room; those before in a snake
MAX_SWAPS, MAX_SWAP_CHOICES = 64, 2**13  # swaps of two samples, and pairs of samples to choose one from
INSERTION_SORT_KEYS = 32  # at most: insertion is faster than counting for few keys
# About the cost of all samples as integers, whose sums do not depend on their order, so that all machines agree. 2**40
# leaves room in int64, and keeps the rounding of one sample's cost far below the differences that matter.
TOTAL_INTEGER_COST = 2**40
_U64 = np.uint64


class _Samples(NamedTuple):
    """Lengths and costs of the samples, as arguments of compiled functions."""

    lengths: np.ndarray  # [places · parts] int64, 0 for empty samples
    cost_of: np.ndarray  # [longest + 1] int64: integer cost of each length
    total_tokens: int
    total_cost: int
    unit: float  # integer cost of one token
    pair_cost: float
    sequence_cost: float


class Columns:
    """Placement of samples in columns, one column for each part, and the loads [parts] of the columns.

    `placement` [places · parts] has the sample of each place, row by row.
    """

    def __init__(self, lengths: np.ndarray, spec: AssignmentSpec, places: int, start: Assignment | None = None) -> None:
        """Place samples of these lengths [G] row by row, or as in `start`."""
        self.spec, self.parts, self.places = spec, spec.parts, places
        self.lengths = np.zeros(places * spec.parts, dtype=np.int64)
        self.lengths[: len(lengths)] = lengths
        self.descending = _argsort_lengths(self.lengths)[::-1]
        self.total_tokens = int(self.lengths.sum())
        pairs = int(self.lengths @ self.lengths)
        unit = TOTAL_INTEGER_COST / (self.total_tokens + spec.pair_cost * pairs + spec.sequence_cost * len(lengths))
        self.cost_of = np.rint(unit * spec.costs(np.arange(int(lengths.max()) + 1))).astype(np.int64)
        self.cost_of[0] = 0
        self.total_cost = int(self.cost_of[self.lengths].sum())
        costs = float(spec.pair_cost), float(spec.sequence_cost)
        self._samples = _Samples(self.lengths, self.cost_of, self.total_tokens, self.total_cost, unit, *costs)
        if start is None:
            self._assign_rows()
        else:
            self._apply(self._initial_placement(start))

    @property
    def score(self) -> float:
        """The larger max/mean of tokens and of cost."""
        return _score(self.tokens, self.costs, self._samples)

    def bound(self, count: int) -> float:
        """Lower bound on the score of any assignment of the first `count` samples; the others are empty."""
        longest_first = self.lengths[self.descending[:count]]
        return max(max_over_mean_lower_bound(v, self.spec) for v in (longest_first, self.cost_of[longest_first]))

    def refine(self, enough: float) -> None:
        """Improve the placement in rounds of reassignment, then by swaps, until the score is at most `enough`."""
        rounds = min(MAX_ROUNDS, MAX_ROUND_SAMPLES // self.parts) if self.parts > 1 else 0
        _rounds(self.placement, self.tokens, self.costs, self._samples, self.places, rounds, enough)
        if self.parts > 1 and self.places * self.placement.size <= MAX_SWAP_CHOICES:
            self._swap(enough)

    def assignment(self, count: int) -> Assignment:
        """Return the assignment of the first `count` samples; the others are empty and left out."""
        by_part = self.placement.reshape(self.places, self.parts).T
        if count == by_part.size:
            return Assignment.from_rows(by_part)
        real = by_part < count
        return Assignment(by_part[real], offsets_of(real.sum(axis=1)))

    def _initial_placement(self, start: Assignment) -> np.ndarray:
        """Placement of an assignment's samples in the columns of its parts; the other places get empty samples."""
        placement = np.full((self.places, self.parts), -1, dtype=np.int64)
        parts = np.repeat(np.arange(self.parts), start.counts)
        placement[np.arange(len(parts)) - start.starts[parts], parts] = start.order
        placement[placement < 0] = np.arange(len(parts), placement.size)
        return placement.reshape(-1)

    def _assign_rows(self) -> None:
        """Place row by row, the longest samples first, each row's longest in the part with most room.

        Of more than `MAX_GREEDY_ROWS` rows the first ones are placed in a snake.
        """
        rows = self.descending.reshape(self.places, self.parts).copy()
        first = max(0, self.places - MAX_GREEDY_ROWS)
        rows[1:first:2] = rows[1:first:2, ::-1]
        self.tokens, self.costs = _fill_rows(rows, first, self._samples)
        self.placement = rows.reshape(-1)

    def _swap(self, enough: float) -> None:
        """Swap the best pair of a sample of the busiest part and one of another, as long as the score improves."""
        scale = np.array([self.parts / self.total_tokens, self.parts / self.total_cost])[:, None, None]
        for _ in range(MAX_SWAPS):
            loads = np.stack([self.tokens, self.costs]) * scale[:, 0]
            busy = loads.max(axis=0)
            worst = int(busy.argmax())
            if busy[worst] <= enough:
                return
            lengths = self.lengths[self.placement]
            sizes = np.stack([lengths, self.cost_of[lengths]])
            shed = (sizes[:, worst :: self.parts, None] - sizes[:, None]) * scale
            left = (loads[:, worst, None, None] - shed).max(axis=0)
            right = (np.tile(loads, self.places)[:, None] + shed).max(axis=0)
            after = np.maximum(left, right)
            own, other = np.unravel_index(after.argmin(), after.shape)
            if after[own, other] >= busy[worst]:
                return
            at = np.array([own * self.parts + worst, other])
            self.placement[at] = self.placement[at[::-1]]
            self._apply(self.placement)

    def _apply(self, placement: np.ndarray) -> None:
        """Set the placement, and compute its loads."""
        self.placement = placement
        lengths = self.lengths[placement].reshape(self.places, self.parts)
        self.tokens, self.costs = lengths.sum(axis=0), self.cost_of[lengths].sum(axis=0)


@compiled
def _fill_rows(rows: np.ndarray, first: int, samples: _Samples) -> tuple[np.ndarray, np.ndarray]:
    """Reorder each of the rows [places, parts] from `first` on: the longest sample to the part with most room.

    Returns the tokens and the costs [parts] of the columns.
    """
    parts = rows.shape[1]
    tokens, costs = np.zeros(parts, np.int64), np.zeros(parts, np.int64)
    for number, row in enumerate(rows):
        if number >= first:
            ascending = row[::-1].copy()
            for place, part in enumerate(_argsort_room(tokens, costs, samples)):
                row[part] = ascending[place]
        for part in range(parts):
            length = samples.lengths[row[part]]
            tokens[part] += length
            costs[part] += samples.cost_of[length]
    return tokens, costs


@compiled
def _rounds(
    placement: np.ndarray,
    tokens: np.ndarray,
    costs: np.ndarray,
    samples: _Samples,
    places: int,
    rounds: int,
    enough: float,
) -> None:
    """Reassign one sample of every part in each round, until the score is at most `enough`.

    Leaves the best placement of all rounds in `placement`, `tokens` and `costs`.
    """
    parts = len(tokens)
    best = score = _score(tokens, costs, samples)
    done = done_at_best = 0
    place = _pseudo_random(parts, 0) % places
    lengths = np.empty(parts, np.int64)
    # History of the rounds: the place from which each part returned a sample, and that sample.
    at, returned = np.empty((rounds, parts), np.int64), np.empty((rounds, parts), np.int64)
    while done < rounds and best > enough:
        if done % places == 0:
            place = (place + _pseudo_random(parts, done)) % places
        for part in range(parts):
            at[done, part] = place[part] * parts + part
            returned[done, part] = placement[at[done, part]]
            lengths[part] = samples.lengths[returned[done, part]]
            tokens[part] -= lengths[part]
            costs[part] -= samples.cost_of[lengths[part]]
            place[part] = place[part] + 1 if place[part] + 1 < places else 0
        longest_last = _argsort_lengths(lengths)
        for rank, part in enumerate(_argsort_room(tokens, costs, samples)):
            sample = longest_last[rank]
            placement[at[done, part]] = returned[done, sample]
            tokens[part] += lengths[sample]
            costs[part] += samples.cost_of[lengths[sample]]
        done += 1
        score = _score(tokens, costs, samples)
        if score < best:
            best, done_at_best = score, done
    if score <= best:
        return
    # Undo the rounds after the best one, the last first: cheaper than a copy of the placement in each round.
    for undone in range(done - 1, done_at_best - 1, -1):
        for part in range(parts):
            assigned = samples.lengths[placement[at[undone, part]]]
            placement[at[undone, part]] = returned[undone, part]
            before = samples.lengths[returned[undone, part]]
            tokens[part] += before - assigned
            costs[part] += samples.cost_of[before] - samples.cost_of[assigned]


@compiled
def _score(tokens: np.ndarray, costs: np.ndarray, samples: _Samples) -> float:
    parts = len(tokens)
    return float(max(tokens.max() * parts / samples.total_tokens, costs.max() * parts / samples.total_cost))


@compiled
def _argsort_room(tokens: np.ndarray, costs: np.ndarray, samples: _Samples) -> np.ndarray:
    """Parts [parts] in ascending order of room: the longest sample that keeps a part within both means.

    Room is negative where a part already exceeds a mean.
    """
    parts = len(tokens)
    room = np.empty(parts)
    mean_tokens, mean_cost = samples.total_tokens / parts, samples.total_cost / parts
    for part in range(parts):
        in_tokens = mean_tokens - tokens[part]
        x = (mean_cost - costs[part]) / samples.unit - samples.sequence_cost
        # Solves n + pair_cost · n² = x as 2x / (1 + √(1 + 4·pair_cost·x)): without a division by pair_cost, which may
        # be 0. The maximum keeps the root real for very negative x, where the result is linear.
        in_cost = 2 * x / (1 + np.sqrt(max(1 + 4 * samples.pair_cost * x, 0.0)))
        room[part] = min(in_tokens, in_cost)
    least, most = room.min(), room.max()
    if most == least:
        return np.arange(parts)
    return _stable_argsort(((room - least) * (65535 / (most - least))).astype(np.uint16))


@compiled
def _argsort_lengths(lengths: np.ndarray) -> np.ndarray:
    """Stable argsort [n] of integers; a range of more than 16 bits is rounded to 65,536 keys."""
    least, most = lengths.min(), lengths.max()
    if most - least < 2**16:
        return _stable_argsort((lengths - least).astype(np.uint16))
    return _stable_argsort(((lengths - least) * (65535 / (most - least))).astype(np.uint16))


@compiled
def _stable_argsort(keys: np.ndarray) -> np.ndarray:
    """Stable argsort of keys [n] uint16: few by insertion, small ones by counting, others by radix with two bytes."""
    count = len(keys)
    order = np.empty(count, np.int64)
    if count <= INSERTION_SORT_KEYS:
        for place in range(count):
            before = place
            while before > 0 and keys[order[before - 1]] > keys[place]:
                order[before] = order[before - 1]
                before -= 1
            order[before] = place
        return order
    most = keys.max()
    if most < count:
        low = np.zeros(most + 2, np.int64)
        for key in keys:
            low[key + 1] += 1
        for key in range(1, most + 1):
            low[key] += low[key - 1]
        for place in range(count):
            order[low[keys[place]]] = place
            low[keys[place]] += 1
        return order
    spare, low, high = np.empty(count, np.int64), np.zeros(257, np.int64), np.zeros(257, np.int64)
    for key in keys:
        low[(key & 255) + 1] += 1
        high[(key >> 8) + 1] += 1
    for number in range(1, 256):
        low[number] += low[number - 1]
        high[number] += high[number - 1]
    for place in range(count):
        byte = int(keys[place]) & 255
        spare[low[byte]] = place
        low[byte] += 1
    for by_low in spare:
        byte = keys[by_low] >> 8
        order[high[byte]] = by_low
        high[byte] += 1
    return order


@compiled
def _pseudo_random(count: int, salt: int) -> np.ndarray:
    """Non-negative pseudo-random numbers [count] int64: a multiplicative hash (Knuth, TAOCP 3, 6.4)."""
    numbers = np.empty(count, np.int64)
    for i in range(count):
        mixed = (_U64(i + 1) + _U64(salt << 32)) * _U64(0x9E3779B97F4A7C15)
        mixed = (mixed ^ (mixed >> _U64(29))) * _U64(0xBF58476D1CE4E5B9)
        numbers[i] = mixed >> _U64(40)
    return numbers


STOP_GAP = 0.0005  # distance to the lower bound at which the search stops
# Distance to the lower bound above which free counts are tried again from the LPT assignment, whose parts may have any
# number of samples. The first attempt gives a part at most one more than the mean.
RESTART_GAP = 0.01


def indexed(lengths: np.ndarray, spec: AssignmentSpec) -> Assignment:
    """Assign samples of these lengths [G] to minimise the larger max/mean of tokens and of cost over the parts.

    Counts are equal, or free with at least `min_samples` in a part. The global batch keeps its samples. Only integers,
    correctly rounded operations and stable sorts are used, so that every machine computes the same assignment. Time:
    1.5 ms for 1,024 × 16 samples and 4.5 ms for 4,096 × 4 on one core of an AMD EPYC (Zen 5). Raises ValueError where
    the batch cannot be split.
    """
    count, parts, counts = len(lengths), spec.parts, spec.counts
    free = counts == "free"
    if count < parts * (spec.min_samples if free else 1) or (count % parts and not free):
        raise ValueError(f"{count} samples cannot be assigned to {parts} parts with {counts} counts")
    if parts == 1:
        return Assignment.from_rows(np.arange(count)[None])
    places = -(-count // parts) + free  # with free counts one more, which may stay empty
    columns = Columns(lengths, spec, places)
    bound = columns.bound(count)
    columns.refine(bound + STOP_GAP)
    if free and columns.score > bound + RESTART_GAP:
        start = lpt(lengths, spec)
        other = Columns(lengths, spec, int(start.counts.max()) + 1, start)
        other.refine(bound + STOP_GAP)
        columns = min(columns, other, key=lambda found: found.score)
    assignment = columns.assignment(count)
    return _enforce_min_samples(assignment, lengths, spec.min_samples) if free else assignment


def lpt(lengths: np.ndarray, spec: AssignmentSpec) -> Assignment:
    """Assign each sample, the costliest first, to the part with the least cost so far; counts are free.

    Source: Graham's longest-processing-time rule (see `owners`).
    """
    return Assignment.from_part_ids(np.array(owners(spec.costs(lengths).tolist(), spec.parts)), spec.parts)


def _enforce_min_samples(assignment: Assignment, lengths: np.ndarray, least: int) -> Assignment:
    """Move the shortest sample of the part with most samples to each part that has fewer than `least`."""
    if assignment.counts.min() >= least:
        return assignment
    positions = [assignment.part(p).tolist() for p in range(assignment.parts)]
    for part in positions:
        while len(part) < least:
            donor = max(positions, key=len)
            part.append(donor.pop(min(range(len(donor)), key=lambda place: int(lengths[donor[place]]))))
    return Assignment.from_parts([np.array(part, dtype=np.int64) for part in positions])
