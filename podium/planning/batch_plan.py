"""The batch plan: which samples each rank takes in each step of a run, from the length index alone.

- Capacity: one shape for all micro-batches of a run, which a given share of the steps may exceed. What does not fit
  goes to another micro-batch that has room, and where none has, to the next step. No sequence is cut off or left out.
- Shapes: every shape that a rank's batches take, known before the run starts, so that what a shape costs once (a CUDA
  graph is captured, libraries prepare their kernels) is done before the clock starts.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from statistics import NormalDist
from typing import Protocol

import numpy as np

from benchmarks.bert.length_index import Counts
from podium.core.errors import UsageError
from podium.planning.balancing.interface import Assignment, Deal, offsets_of
from podium.planning.balancing.strategies import STRATEGIES, assign
from podium.planning.samplers import Order, Phase, StratifiedSampler, drawing_order, first_samples, phase_of


@dataclass(frozen=True)
class Capacity:
    """Slots of a micro-batch. One token slot stays free: sequences that are not there begin in it."""

    tokens: int
    masked: int
    sequences: int

    @property
    def limits(self) -> np.ndarray:
        """[3] most tokens, masked tokens and sequences."""
        return np.array([self.tokens - 1, self.masked, self.sequences])


@dataclass(frozen=True)
class Fitted:
    """An assignment within a capacity, of all samples but those that are left for the next step."""

    assignment: Assignment
    left: np.ndarray  # positions that no micro-batch has room for, in ascending order
    moved: int  # sequences that another micro-batch has taken


def capacity_for(loads: np.ndarray, overflow: float, token_step: int) -> Capacity:
    """A capacity that some micro-batch of a step exceeds with a probability of about `overflow`, in (0, 1), at most.

    `loads` [steps, 3]: tokens, masked tokens and sequences of the fullest micro-batch of some steps, each taken as
    normally distributed. Tokens and masked tokens exceed it together; where numbers of sequences vary too, either has
    half of the probability. Token slots are rounded up to `token_step`, masked slots to an eighth of it.
    """
    causes = 2 if loads[:, 2].std() > 0 else 1
    deviations = NormalDist().inv_cdf(1 - overflow / causes)
    tokens, masked, sequences = np.ceil(loads.mean(axis=0) + deviations * loads.std(axis=0)).astype(int).tolist()
    masked_step = max(1, token_step // 8)
    return Capacity(round_up(tokens + 1, token_step), round_up(masked, masked_step), sequences + 1)


def fit_in(assignment: Assignment, sizes: np.ndarray, late: int, capacity: Capacity) -> Fitted:
    """Keep every part within the capacity.

    `sizes` [3, samples] are tokens, masked tokens and 1 of each sample, none beyond the limits itself. The last `late`
    samples are in no part yet: those that the step before has left. A part that exceeds the capacity gives up its
    shortest sequence that makes it fit, or else its longest, and so on. Those and the late ones, the late ones first
    and then the longest, go to the part that has most room for tokens among those that have room at all.
    """
    limits = capacity.limits
    parts = [assignment.part(p).tolist() for p in range(assignment.parts)]
    loads = np.stack([assignment.loads(size[: len(assignment.order)]) for size in sizes])
    given_up: list[int] = []
    for p in np.flatnonzero((loads > limits[:, None]).any(axis=0)).tolist():
        while (excess := loads[:, p] - limits).max() > 0:
            enough = [position for position in parts[p] if (sizes[:, position] >= excess).all()]
            tokens = sizes[0]
            gone = min(enough, key=lambda x: (tokens[x], x)) if enough else max(parts[p], key=lambda x: (tokens[x], x))
            parts[p].remove(gone)
            given_up.append(gone)
            loads[:, p] -= sizes[:, gone]
    first_late = sizes.shape[1] - late
    homeless = [*range(first_late, first_late + late), *sorted(given_up, key=lambda x: (-sizes[0][x], x))]
    left: list[int] = []
    for position in homeless:
        fits = (loads + sizes[:, position, None] <= limits[:, None]).all(axis=0)
        if not fits.any():
            left.append(position)
            continue
        p = int(np.where(fits, limits[0] - loads[0], -1).argmax())
        parts[p].append(position)
        loads[:, p] += sizes[:, position]
    if not homeless:
        return Fitted(assignment, np.empty(0, dtype=np.int64), 0)
    fitted = Assignment.joined([np.array(part, dtype=np.int64) for part in parts])
    return Fitted(fitted, np.array(sorted(left), dtype=np.int64), len(homeless) - len(left))


class LengthIndex(Protocol):
    """What is known of every sample without reading it."""

    @property
    def lengths(self) -> Counts:
        """Tokens of each sample."""

    @property
    def masked_counts(self) -> Counts:
        """Masked tokens of each sample."""

    @property
    def max_sequence_length(self) -> int: ...

    def __len__(self) -> int: ...


SHAPE_STEP = 64
SHAPE_STEPS = {"cpu": SHAPE_STEP, "cuda": 512}  # token slots are rounded up to these: few shapes cost less
# `collate`'s slot width, token slots, masked slots, attention widths and sequence slots.
Layout = tuple[int | None, int, int, Sequence[int] | None, int | None]
DRAWN_SAMPLES = 4096  # samples that are drawn at once, if they are not a single step's
CAPACITY_STEPS = 200  # steps that a capacity is derived from


@dataclass(frozen=True)
class GlobalBatch:
    """One step's samples over all ranks, as every rank knows them without reading or asking.

    Samples lie micro-batch by micro-batch, those of rank 0 first; micro-batches may be of unequal size.
    """

    first_sample: int
    indices: np.ndarray  # dataset indices [samples]
    lengths: np.ndarray  # tokens of each sample, int64 [samples]
    masked_counts: np.ndarray  # masked tokens of each sample, int64 [samples]
    starts: np.ndarray  # micro-batch a of rank r starts at starts[r · accumulation steps + a], int64 [… + 1]
    micro_batch_slots: np.ndarray  # token slots [ranks, accumulation steps], padding included
    moved: int = 0  # sequences that did not fit where they were dealt to, in this step or the one before
    # The place of each sample in the order in which the step's samples were drawn, int64 [samples]; empty where they
    # were not drawn.
    positions: np.ndarray = field(default_factory=lambda: np.empty(0, dtype=np.int64))

    @property
    def samples(self) -> int:
        return len(self.indices)

    @cached_property
    def tokens(self) -> int:
        return int(self.lengths.sum())

    @cached_property
    def token_pairs(self) -> int:
        """Pairs of tokens within a sequence, over all sequences."""
        return int(self.lengths @ self.lengths)

    @cached_property
    def masked(self) -> int:
        return int(self.masked_counts.sum())

    @property
    def slots(self) -> int:
        """Token slots over all ranks, padding included."""
        return int(self.micro_batch_slots.sum())

    @cached_property
    def max_over_mean_tokens(self) -> float:
        """Tokens of the busiest rank over the mean rank's."""
        ranks, accumulation_steps = self.micro_batch_slots.shape
        ends = offsets_of(self.lengths)[self.starts[::accumulation_steps]]
        return float(np.diff(ends).max() * ranks / self.tokens)

    def micro_batches(self, rank: int) -> list[slice]:
        """Where each of a rank's micro-batches lies in the arrays above."""
        steps = self.micro_batch_slots.shape[1]
        bounds = self.starts[rank * steps : (rank + 1) * steps + 1].tolist()
        return [slice(first, last) for first, last in pairwise(bounds)]


class TrainingOrder:
    """Which samples each rank takes in each step: sampling and balancing, from the length index alone."""

    def __init__(
        self,
        store: LengthIndex,
        *,
        seed: int,
        strategy: str,
        global_batch_size: int,
        deal: Deal,
        accumulation_steps: int,
        shape_step: int = SHAPE_STEP,
        attention_widths: Sequence[int] | None = None,
        capacity_overflow: float | None = None,
        shards: str = "shared",
        phases: Sequence[Phase] = (),
        strata_counts: Sequence[int] | None = None,
    ) -> None:
        """With `capacity_overflow` all micro-batches have one shape, which this share of the steps exceeds.

        `shards` and `phases` are those of `drawing_order`, and a phase's `accumulation_steps` replace the run's;
        `strata_counts` are slots of a micro-batch for each stratum
        of a stratified strategy, which has neither shards nor phases.

        Raises UsageError where the attention widths do not reach the longest sequence, and for data that shards, phases
        or strata do not go with.
        """
        if attention_widths is not None and max(attention_widths) < store.max_sequence_length:
            raise UsageError(
                f"attention_widths: found up to {max(attention_widths)}, allowed is no less than the "
                f"{store.max_sequence_length} tokens of the longest sequence"
            )
        self.store, self.shape_step, self.attention_widths = store, shape_step, attention_widths
        self.strategy, self.global_batch_size = strategy, global_batch_size
        self.deal, self.accumulation_steps = deal, accumulation_steps
        self.pads = STRATEGIES[strategy].pads  # every sequence to the greatest length of its phase
        self.phases = [*phases] or [Phase(store.max_sequence_length, None)]
        self._phase_firsts = first_samples(self.phases, global_batch_size)
        local_batch = global_batch_size // deal.parts
        self.sampler: Order
        if STRATEGIES[strategy].strata:
            assert shards == "shared" and not phases, "strata are drawn from the whole dataset"
            self.sampler = StratifiedSampler(
                store.lengths,
                batch=local_batch // accumulation_steps,
                seed=seed,
                max_length=store.max_sequence_length,
                counts=strata_counts,
            )
        else:
            self.sampler = drawing_order(
                len(store), seed=seed, ranks=deal.parts, local_batch=local_batch, shards=shards, phases=phases
            )
        self._block: tuple[int, np.ndarray] = (-1, np.empty((0, 0), dtype=np.int64))
        self.capacity: Capacity | None = None
        self._late = [np.empty(0, dtype=np.int64)]  # dataset indices that come into each step, as far as they are known
        if capacity_overflow is not None:
            fullest = [self._fullest(self.global_batch(step)) for step in range(CAPACITY_STEPS)]
            self.capacity = capacity_for(np.array(fullest), capacity_overflow, shape_step)

    @property
    def ranks(self) -> int:
        return self.deal.parts

    def global_batch(self, step: int) -> GlobalBatch:
        """The samples of a step, counted from 0, and who takes them."""
        first = step * self.global_batch_size
        drawn = self._drawn(step)
        # of the samples in the order in which they were drawn: looked up once, as they lie all over the index
        lengths, masked_counts = self._counts_of(drawn)
        accumulation_steps = self._phase(first).accumulation_steps or self.accumulation_steps
        assignment = assign(self.strategy, lengths, self.deal, accumulation_steps)
        moved = 0
        if self.capacity is not None:
            late = self._late_into(step)
            drawn = np.concatenate([drawn, late])
            lengths, masked_counts = self._counts_of(drawn)
            sizes = np.stack([lengths, masked_counts, np.ones_like(drawn)])
            fitted = fit_in(assignment, sizes, len(late), self.capacity)
            assignment, moved = fitted.assignment, fitted.moved
            if step == len(self._late) - 1:
                self._late.append(drawn[fitted.left])
        slots = self._slots(first, lengths, assignment)
        order = assignment.order
        return GlobalBatch(
            first_sample=first,
            indices=drawn[order],
            lengths=lengths[order],
            masked_counts=masked_counts[order],
            starts=assignment.starts,
            micro_batch_slots=slots.reshape(self.ranks, accumulation_steps),
            moved=moved,
            positions=order,
        )

    def _counts_of(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Tokens and masked tokens of samples, int64 of the shape of their dataset indices."""
        lengths, masked_counts = self.store.lengths[indices], self.store.masked_counts[indices]
        return lengths.astype(np.int64), masked_counts.astype(np.int64)

    def _drawn(self, step: int) -> np.ndarray:
        """Dataset indices of a step's own samples. Many steps are drawn at once, since a draw costs little beside its
        call, and the last ones are kept."""
        steps = max(1, DRAWN_SAMPLES // self.global_batch_size)
        number, samples = self._block
        if number != step // steps:
            number, size = step // steps, steps * self.global_batch_size
            samples = self.sampler.samples(number * size, size).reshape(steps, -1)
            self._block = number, samples
        drawn: np.ndarray = samples[step - number * steps]
        return drawn

    def _late_into(self, step: int) -> np.ndarray:
        """Dataset indices that the step before has left.

        It depends on all steps before, which are dealt out once; a run that begins at a later step does so first.
        """
        for before in range(len(self._late) - 1, step):
            self.global_batch(before)
        return self._late[step]

    def _fullest(self, whole: GlobalBatch) -> tuple[int, int, int]:
        """Most tokens, masked tokens and sequences of a micro-batch."""
        sums = (offsets_of(values) for values in (whole.lengths, whole.masked_counts))
        tokens, masked = (int(np.diff(each[whole.starts]).max()) for each in sums)
        return tokens, masked, int(np.diff(whole.starts).max())

    def first_steps(self) -> list[int]:
        """The step that each phase begins with."""
        return [first // self.global_batch_size for first in self._phase_firsts]

    def _phase(self, first_sample: int) -> Phase:
        """The phase of the step that begins with this sample."""
        return self.phases[phase_of(self._phase_firsts, first_sample)]

    def width_at(self, first_sample: int) -> int | None:
        """Slot width of every sequence of the step that begins with this sample, if its strategy pads."""
        return self._phase(first_sample).max_sequence_length if self.pads else None

    def _slots(self, first_sample: int, lengths: np.ndarray, assignment: Assignment) -> np.ndarray:
        """Token slots [parts] of an assignment of samples of these lengths, padding included."""
        if self.capacity is not None:
            return np.full(assignment.parts, self.capacity.tokens)
        longest = self.width_at(first_sample) or self.store.max_sequence_length
        slots = STRATEGIES[self.strategy].slots(lengths, assignment, self.deal, longest)
        rounded: np.ndarray = -(-slots // self.shape_step) * self.shape_step
        return rounded

    def layouts(
        self, whole: GlobalBatch, rank: int, masked_slots: Mapping[int, int] | None = None
    ) -> Iterator[tuple[slice, Layout]]:
        """Where each of a rank's micro-batches lies in the global batch, and the arguments of `collate` beside samples.

        `masked_slots` gives batches of so many token slots so many masked positions; without it they are rounded up.
        """
        width, sequences = self.width_at(whole.first_sample), None
        if self.capacity is not None:
            masked_slots = {self.capacity.tokens: self.capacity.masked}
            sequences = self.capacity.sequences
        for part, slots in zip(whole.micro_batches(rank), whole.micro_batch_slots[rank].tolist(), strict=True):
            masked = int(whole.masked_counts[part].sum())
            masked = round_up(masked, self.shape_step) if masked_slots is None else masked_slots[slots]
            yield part, (width, slots, masked, self.attention_widths, sequences)


def round_up(number: int, step: int) -> int:
    """The least multiple of `step` that is not below `number`."""
    return -(-number // step) * step


@dataclass(frozen=True)
class RunShapes:
    """Token slots of a batch → how many masked positions batches of so many have at most, and the step of that one of
    them that has the fewest tokens: with it an attention launch is recorded whose room is enough for all."""

    masked_slots: Mapping[int, int]
    examples: Mapping[int, int]


def run_shapes(order: TrainingOrder, rank: int, steps: int) -> RunShapes:
    """The shapes of a rank's micro-batches in the first `steps` steps.

    Masked positions are rounded up to eighths of the order's shape step.
    """
    masked_slots: dict[int, int] = {}
    fewest: dict[int, tuple[int, int]] = {}
    rounding = max(1, order.shape_step // 8)
    for step in range(steps):
        whole = order.global_batch(step)
        for slots, part in zip(whole.micro_batch_slots[rank].tolist(), whole.micro_batches(rank), strict=True):
            found = (int(whole.lengths[part].sum()), step)
            fewest[slots] = min(found, fewest.get(slots, found))
            needed = round_up(int(whole.masked_counts[part].sum()), rounding)
            masked_slots[slots] = max(needed, masked_slots.get(slots, 0))
    if order.capacity is not None:
        masked_slots = {order.capacity.tokens: order.capacity.masked}
    return RunShapes(masked_slots, {slots: step for slots, (_, step) in fewest.items()})
