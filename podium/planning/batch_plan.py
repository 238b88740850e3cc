"""The batch plan: which samples each rank takes in each step of a run, from the length index alone.

- Capacity: one shape for all micro-batches of a run, which a given share of the steps may exceed. A sequence that does
  not fit moves to another micro-batch with room, or else to the next step. No sequence is truncated or dropped.
- Shapes: every shape of a rank's batches is known before the run starts, so that the one-time work for a shape (capture
  of a CUDA graph, preparation of kernels by libraries) is done before the clock starts.
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
from podium.planning.balancing.interface import Assignment, AssignmentSpec, offsets_of
from podium.planning.balancing.strategies import STRATEGIES, assign
from podium.planning.samplers import Order, Phase, StratifiedSampler, build_order, first_samples, phase_of


@dataclass(frozen=True)
class Capacity:
    """Slots of a micro-batch. One token slot stays free: the offsets of absent sequences point to it."""

    tokens: int
    masked: int
    sequences: int

    @property
    def limits(self) -> np.ndarray:
        """Maximum tokens, masked tokens and sequences: [3]."""
        return np.array([self.tokens - 1, self.masked, self.sequences])


@dataclass(frozen=True)
class FitResult:
    """An assignment within a capacity, of all samples but those deferred to the next step."""

    assignment: Assignment
    deferred: np.ndarray  # positions of samples without room in any micro-batch, ascending
    moved: int  # sequences that moved to another micro-batch


def capacity_for(loads: np.ndarray, overflow: float, token_step: int) -> Capacity:
    """Return a capacity that a step's micro-batches exceed with a probability of at most about `overflow`, in (0, 1).

    `loads` [steps, 3]: tokens, masked tokens and sequences of the fullest micro-batch in each of some steps, taken as
    normally distributed. Tokens and masked tokens are assumed to exceed it together; where numbers of sequences vary
    too, each cause has half of the probability. Token slots are rounded up to `token_step`, masked slots to an eighth.
    """
    causes = 2 if loads[:, 2].std() > 0 else 1
    deviations = NormalDist().inv_cdf(1 - overflow / causes)
    tokens, masked, sequences = np.ceil(loads.mean(axis=0) + deviations * loads.std(axis=0)).astype(int).tolist()
    masked_step = max(1, token_step // 8)
    return Capacity(round_up(tokens + 1, token_step), round_up(masked, masked_step), sequences + 1)


def fit_to_capacity(assignment: Assignment, sizes: np.ndarray, carried_over: int, capacity: Capacity) -> FitResult:
    """Move samples between parts, or defer them, so that every part is within the capacity.

    `sizes` [3, samples] has the tokens, the masked tokens and a 1 for each sample; none alone exceeds the limits. The
    last `carried_over` samples are in no part yet: the step before has deferred them. A part that exceeds the capacity
    gives up its shortest sequence whose removal is sufficient, or else its longest, until it fits. Then the samples
    carried over, and after them those given up, the longest first, are each placed in the part with most room for
    tokens among those in which they fit.
    """
    limits = capacity.limits
    parts = [assignment.part(p).tolist() for p in range(assignment.parts)]
    loads = np.stack([assignment.loads(size[: len(assignment.order)]) for size in sizes])
    evicted: list[int] = []
    for p in np.flatnonzero((loads > limits[:, None]).any(axis=0)).tolist():
        while (excess := loads[:, p] - limits).max() > 0:
            sufficient = [position for position in parts[p] if (sizes[:, position] >= excess).all()]
            tokens = sizes[0]
            removed = (
                min(sufficient, key=lambda x: (tokens[x], x))
                if sufficient
                else max(parts[p], key=lambda x: (tokens[x], x))
            )
            parts[p].remove(removed)
            evicted.append(removed)
            loads[:, p] -= sizes[:, removed]
    first_carried_over = sizes.shape[1] - carried_over
    unplaced = [
        *range(first_carried_over, first_carried_over + carried_over),
        *sorted(evicted, key=lambda x: (-sizes[0][x], x)),
    ]
    deferred: list[int] = []
    for position in unplaced:
        fits = (loads + sizes[:, position, None] <= limits[:, None]).all(axis=0)
        if not fits.any():
            deferred.append(position)
            continue
        p = int(np.where(fits, limits[0] - loads[0], -1).argmax())
        parts[p].append(position)
        loads[:, p] += sizes[:, position]
    if not unplaced:
        return FitResult(assignment, np.empty(0, dtype=np.int64), 0)
    fitted = Assignment.from_parts([np.array(part, dtype=np.int64) for part in parts])
    return FitResult(fitted, np.array(sorted(deferred), dtype=np.int64), len(unplaced) - len(deferred))


class LengthIndex(Protocol):
    """Sizes of every sample, known without reading it."""

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
SHAPE_STEPS = {"cpu": SHAPE_STEP, "cuda": 512}  # token slots are rounded up to these, for few shapes
# Arguments of `collate`: slot width, token slots, masked slots, attention widths and sequence slots.
Layout = tuple[int | None, int, int, Sequence[int] | None, int | None]
SAMPLES_PER_DRAW = 4096  # in whole steps; a larger step is drawn alone
CAPACITY_STEPS = 200  # steps that a capacity is derived from


@dataclass(frozen=True)
class GlobalBatch:
    """One step's samples over all ranks. Every rank computes it without reading samples or communication.

    Samples are ordered by micro-batch, those of rank 0 first; micro-batches may be of unequal size.
    """

    first_sample: int
    indices: np.ndarray  # dataset indices [samples]
    lengths: np.ndarray  # tokens of each sample, int64 [samples]
    masked_counts: np.ndarray  # masked tokens of each sample, int64 [samples]
    starts: np.ndarray  # micro-batch a of rank r starts at starts[r · accumulation steps + a], int64 [… + 1]
    micro_batch_slots: np.ndarray  # token slots [ranks, accumulation steps], padding included
    moved: int = 0  # sequences moved since they did not fit in their micro-batch, of this step or the one before
    # Position of each sample in the order of drawing within the step, int64 [samples]; empty if they were not drawn.
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
        """Tokens of the busiest rank divided by the mean over ranks."""
        ranks, accumulation_steps = self.micro_batch_slots.shape
        ends = offsets_of(self.lengths)[self.starts[::accumulation_steps]]
        return float(np.diff(ends).max() * ranks / self.tokens)

    def micro_batches(self, rank: int) -> list[slice]:
        """Slices of the arrays above for a rank's micro-batches."""
        steps = self.micro_batch_slots.shape[1]
        bounds = self.starts[rank * steps : (rank + 1) * steps + 1].tolist()
        return [slice(first, last) for first, last in pairwise(bounds)]


class TrainingOrder:
    """Sampling and balancing of a run: the samples of each rank in each step, from the length index alone."""

    def __init__(
        self,
        store: LengthIndex,
        *,
        seed: int,
        strategy: str,
        global_batch_size: int,
        spec: AssignmentSpec,
        accumulation_steps: int,
        shape_step: int = SHAPE_STEP,
        attention_widths: Sequence[int] | None = None,
        capacity_overflow: float | None = None,
        shards: str = "shared",
        phases: Sequence[Phase] = (),
        strata_counts: Sequence[int] | None = None,
    ) -> None:
        """With `capacity_overflow` all micro-batches have one shape, which this share of the steps exceeds.

        `shards` and `phases` are as in `build_order`; a phase's `accumulation_steps` replace the run's. `strata_counts`
        are the slots of each stratum in a micro-batch, for a stratified strategy, which supports neither shards nor
        phases. Raises UsageError where the attention widths do not cover the longest sequence, and where the dataset
        does not fit the shards, phases or strata.
        """
        if attention_widths is not None and max(attention_widths) < store.max_sequence_length:
            raise UsageError(
                f"attention_widths: found up to {max(attention_widths)}, but the longest sequence has "
                f"{store.max_sequence_length} tokens; the largest width must not be less"
            )
        self.store, self.shape_step, self.attention_widths = store, shape_step, attention_widths
        self.strategy, self.global_batch_size = strategy, global_batch_size
        self.spec, self.accumulation_steps = spec, accumulation_steps
        self.pads = STRATEGIES[strategy].pads  # every sequence to the maximum length of its phase
        self.phases = [*phases] or [Phase(store.max_sequence_length, None)]
        self._phase_firsts = first_samples(self.phases, global_batch_size)
        local_batch = global_batch_size // spec.parts
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
            self.sampler = build_order(
                len(store), seed=seed, ranks=spec.parts, local_batch=local_batch, shards=shards, phases=phases
            )
        self._block: tuple[int, np.ndarray] = (-1, np.empty((0, 0), dtype=np.int64))
        self.capacity: Capacity | None = None
        self._deferred = [np.empty(0, dtype=np.int64)]  # dataset indices deferred into each step so far
        if capacity_overflow is not None:
            fullest = [self._max_loads(self.global_batch(step)) for step in range(CAPACITY_STEPS)]
            self.capacity = capacity_for(np.array(fullest), capacity_overflow, shape_step)

    @property
    def ranks(self) -> int:
        return self.spec.parts

    @property
    def micro_batch_size(self) -> int:
        """Mean number of samples of a rank's micro-batch, a whole number.

        Balancing may give micro-batches unequal numbers of samples; the mean is the same for all strategies. As the
        logged gradient_accumulation_steps, it leaves out the accumulation steps that a phase has instead of the run's.
        """
        return self.global_batch_size // (self.ranks * self.accumulation_steps)

    def global_batch(self, step: int) -> GlobalBatch:
        """Return the samples of step number `step`, from 0, and their assignment to ranks and micro-batches."""
        first = step * self.global_batch_size
        drawn = self._draw_step(step)
        # Looked up in the order of drawing, and once: the entries are at random places of a memory-mapped index.
        lengths, masked_counts = self._look_up_counts(drawn)
        accumulation_steps = self._phase(first).accumulation_steps or self.accumulation_steps
        assignment = assign(self.strategy, lengths, self.spec, accumulation_steps)
        moved = 0
        if self.capacity is not None:
            carried_over = self._deferred_into(step)
            drawn = np.concatenate([drawn, carried_over])
            lengths, masked_counts = self._look_up_counts(drawn)
            sizes = np.stack([lengths, masked_counts, np.ones_like(drawn)])
            fitted = fit_to_capacity(assignment, sizes, len(carried_over), self.capacity)
            assignment, moved = fitted.assignment, fitted.moved
            if step == len(self._deferred) - 1:
                self._deferred.append(drawn[fitted.deferred])
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

    def _look_up_counts(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Tokens and masked tokens of samples, int64 of the shape of their dataset indices."""
        lengths, masked_counts = self.store.lengths[indices], self.store.masked_counts[indices]
        return lengths.astype(np.int64), masked_counts.astype(np.int64)

    def _draw_step(self, step: int) -> np.ndarray:
        """Dataset indices of a step's samples, without deferred ones.

        Several steps are drawn at once, since a call costs more than its samples; the last block is cached.
        """
        steps = max(1, SAMPLES_PER_DRAW // self.global_batch_size)
        number, samples = self._block
        if number != step // steps:
            number, size = step // steps, steps * self.global_batch_size
            samples = self.sampler.samples(number * size, size).reshape(steps, -1)
            self._block = number, samples
        drawn: np.ndarray = samples[step - number * steps]
        return drawn

    def _deferred_into(self, step: int) -> np.ndarray:
        """Dataset indices that the step before has deferred.

        They depend on all earlier steps, each of which is assigned once; a resumed run first does so for all of them.
        """
        for before in range(len(self._deferred) - 1, step):
            self.global_batch(before)
        return self._deferred[step]

    def _max_loads(self, batch: GlobalBatch) -> tuple[int, int, int]:
        """Maximum tokens, masked tokens and sequences of a micro-batch."""
        sums = (offsets_of(values) for values in (batch.lengths, batch.masked_counts))
        tokens, masked = (int(np.diff(each[batch.starts]).max()) for each in sums)
        return tokens, masked, int(np.diff(batch.starts).max())

    def first_steps(self) -> list[int]:
        """First step of each phase."""
        return [first // self.global_batch_size for first in self._phase_firsts]

    def _phase(self, first_sample: int) -> Phase:
        """Phase of the step that begins with this sample number."""
        return self.phases[phase_of(self._phase_firsts, first_sample)]

    def width_at(self, first_sample: int) -> int | None:
        """Slot width of every sequence in the step that begins with this sample number; None without padding."""
        return self._phase(first_sample).max_sequence_length if self.pads else None

    def _slots(self, first_sample: int, lengths: np.ndarray, assignment: Assignment) -> np.ndarray:
        """Token slots [parts] of an assignment of samples of these lengths, padding included."""
        if self.capacity is not None:
            return np.full(assignment.parts, self.capacity.tokens)
        longest = self.width_at(first_sample) or self.store.max_sequence_length
        slots = STRATEGIES[self.strategy].slots(lengths, assignment, self.spec, longest)
        rounded: np.ndarray = -(-slots // self.shape_step) * self.shape_step
        return rounded

    def layouts(
        self, batch: GlobalBatch, rank: int, masked_slots: Mapping[int, int] | None = None
    ) -> Iterator[tuple[slice, Layout]]:
        """Yield for each of a rank's micro-batches its slice of the global batch and its arguments of `collate`.

        `masked_slots` maps token slots of a batch to its masked slots; without it masked tokens are rounded up.
        """
        width, sequences = self.width_at(batch.first_sample), None
        if self.capacity is not None:
            masked_slots = {self.capacity.tokens: self.capacity.masked}
            sequences = self.capacity.sequences
        for part, slots in zip(batch.micro_batches(rank), batch.micro_batch_slots[rank].tolist(), strict=True):
            masked = int(batch.masked_counts[part].sum())
            masked = round_up(masked, self.shape_step) if masked_slots is None else masked_slots[slots]
            yield part, (width, slots, masked, self.attention_widths, sequences)


def round_up(number: int, step: int) -> int:
    """Round up to a multiple of `step`."""
    return -(-number // step) * step


@dataclass(frozen=True)
class RunShapes:
    """Shapes of all ranks' micro-batches by token slots, the largest first; the same on every rank."""

    masked_slots: Mapping[int, int]  # token slots → maximum masked positions of the batches with that shape
    # Token slots → the step and the rank with the fewest tokens in a batch of that shape. An attention launch recorded
    # with that batch has enough work space for all others.
    examples: Mapping[int, tuple[int, int]]


def run_shapes(order: TrainingOrder, steps: int) -> RunShapes:
    """Collect the shapes of all ranks' micro-batches in the first `steps` steps, without communication.

    Of all ranks, since capturing a CUDA graph of a step is collective: NCCL registers the buffers of an all-reduce when
    it is captured. Masked positions are rounded up to an eighth of the order's shape step.
    """
    masked_slots: dict[int, int] = {}
    fewest: dict[int, tuple[int, int, int]] = {}  # tokens, step, rank
    rounding = max(1, order.shape_step // 8)
    for step in range(steps):
        batch = order.global_batch(step)
        slots = batch.micro_batch_slots.ravel()  # of each micro-batch, as the following two
        tokens, masked = (np.diff(offsets_of(counts)[batch.starts]) for counts in (batch.lengths, batch.masked_counts))
        for found in np.unique(slots).tolist():
            of_shape = np.flatnonzero(slots == found)
            least = int(of_shape[tokens[of_shape].argmin()])
            candidate = (int(tokens[least]), step, least // batch.micro_batch_slots.shape[1])
            fewest[found] = min(candidate, fewest.get(found, candidate))
            needed = round_up(int(masked[of_shape].max()), rounding)
            masked_slots[found] = max(needed, masked_slots.get(found, 0))
    if order.capacity is not None:
        masked_slots = {order.capacity.tokens: order.capacity.masked}
    largest_first = sorted(masked_slots, reverse=True)
    return RunShapes(
        {slots: masked_slots[slots] for slots in largest_first}, {slots: fewest[slots][1:] for slots in largest_first}
    )
