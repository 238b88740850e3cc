"""Batches of one rank, in the run's order, read and laid out in the background while the device trains."""

import queue
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from benchmarks.bert.store import SampleStore
from benchmarks.errors import UsageError
from implementations.pytorch.data.balancing import STRATEGIES, assign
from implementations.pytorch.data.batch import SHAPE_STEP, RaggedBatch, collate
from implementations.pytorch.data.sampling import Sampler


class LengthIndex(Protocol):
    """What is known of every sample without reading it."""

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each sample."""

    @property
    def masked_counts(self) -> np.ndarray:
        """Masked tokens of each sample."""

    @property
    def max_sequence_length(self) -> int: ...

    def __len__(self) -> int: ...


@dataclass(frozen=True)
class GlobalBatch:
    """One step's samples over all ranks, as every rank knows them without reading or asking."""

    first_sample: int
    indices: np.ndarray
    """Dataset indices [ranks, accumulation steps, micro-batch]."""
    lengths: np.ndarray
    """Tokens of each sample, int64, of the same shape."""
    masked: int
    slots: int
    """Token slots over all ranks, padding included."""

    @property
    def samples(self) -> int:
        return self.indices.size

    @property
    def tokens(self) -> int:
        return int(self.lengths.sum())

    @property
    def max_over_mean_tokens(self) -> float:
        """Tokens of the busiest rank over the mean rank's."""
        by_rank = self.lengths.reshape(len(self.lengths), -1).sum(axis=1)
        return float(by_rank.max() / by_rank.mean())


@dataclass(frozen=True)
class Step:
    """What one rank trains on in one step: the micro-batches of gradient accumulation, and the global batch."""

    micro_batches: tuple[RaggedBatch, ...]
    whole: GlobalBatch


class TrainingOrder:
    """Which samples each rank takes in each step: sampling and balancing, from the length index alone."""

    def __init__(
        self,
        store: LengthIndex,
        *,
        seed: int,
        strategy: str,
        global_batch_size: int,
        ranks: int,
        accumulation_steps: int,
        shape_step: int = SHAPE_STEP,
        attention_widths: Sequence[int] | None = None,
    ) -> None:
        """Raises UsageError where the attention widths do not reach the longest sequence."""
        if attention_widths is not None and max(attention_widths) < store.max_sequence_length:
            raise UsageError(
                f"attention_widths: found up to {max(attention_widths)}, allowed is no less than the "
                f"{store.max_sequence_length} tokens of the longest sequence"
            )
        self.store, self.shape_step, self.attention_widths = store, shape_step, attention_widths
        self.sampler = Sampler(len(store), seed)
        self.strategy, self.global_batch_size = strategy, global_batch_size
        self.ranks, self.accumulation_steps = ranks, accumulation_steps
        self.slot_width = store.max_sequence_length if STRATEGIES[strategy].pads else None

    def global_batch(self, step: int) -> GlobalBatch:
        """The samples of a step, counted from 0, and who takes them."""
        first = step * self.global_batch_size
        drawn = self.sampler.samples(first, self.global_batch_size)
        positions = assign(self.strategy, self.store.lengths[drawn], self.ranks, self.accumulation_steps)
        indices = drawn[positions]
        return GlobalBatch(
            first_sample=first,
            indices=indices,
            lengths=self.store.lengths[indices].astype(np.int64),
            masked=int(self.store.masked_counts[indices].sum(dtype=np.int64)),
            slots=int(self.slots(indices).sum()),
        )

    def slots(self, indices: np.ndarray) -> np.ndarray:
        """Token slots […] of micro-batches of these samples […, micro-batch], padding included."""
        if self.slot_width is None:
            slots = self.store.lengths[indices].sum(axis=-1, dtype=np.int64)
        else:
            slots = np.full(indices.shape[:-1], indices.shape[-1] * self.slot_width, dtype=np.int64)
        rounded: np.ndarray = -(-slots // self.shape_step) * self.shape_step
        return rounded

    def read(self, step: int, rank: int, masked_slots: Mapping[int, int] | None = None) -> Step:
        """Read one rank's part of a step from the store.

        `masked_slots` gives batches of so many token slots so many masked positions; without it they are rounded up.
        """
        whole, store = self.global_batch(step), self.store
        assert isinstance(store, SampleStore), "a length index alone holds no samples"
        mine = whole.indices[rank]
        micro_batches = tuple(
            collate(
                [store.read(int(index)) for index in micro_batch],
                self.slot_width,
                self.shape_step,
                masked_slots[int(slots)] if masked_slots is not None else None,
                self.attention_widths,
            )
            for micro_batch, slots in zip(mine, self.slots(mine), strict=True)
        )
        return Step(micro_batches, whole)


class Prefetcher:
    """Reads steps ahead in a thread, at most `depth` of them; an error in it is raised where the steps are taken.

    Use as a context manager, or `close` it: the thread ends then.
    """

    def __init__(
        self,
        order: TrainingOrder,
        rank: int,
        steps: range,
        depth: int,
        masked_slots: Mapping[int, int] | None = None,
        pins: bool = False,
    ) -> None:
        """`pins` batches in memory that a GPU reads by itself; `masked_slots` is that of `TrainingOrder.read`."""
        self._order, self._rank, self._steps = order, rank, steps
        self._masked_slots, self._pins = masked_slots, pins
        self._queue: queue.Queue[Step | BaseException | None] = queue.Queue(maxsize=depth)
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._read_ahead, name="prefetch", daemon=True)

    def __enter__(self) -> "Prefetcher":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[Step]:
        while True:
            item = self._queue.get()
            if item is None:
                return
            if isinstance(item, BaseException):
                raise item
            yield item

    def close(self) -> None:
        self._closed.set()
        if self._thread.is_alive():
            self._thread.join()

    def _read_ahead(self) -> None:
        try:
            for step in self._steps:
                ahead = self._order.read(step, self._rank, self._masked_slots)
                if self._pins:
                    ahead = Step(tuple(batch.pinned() for batch in ahead.micro_batches), ahead.whole)
                if not self._put(ahead):
                    return
            self._put(None)
        except BaseException as error:  # noqa: BLE001 — handed over to the thread that takes the steps
            self._put(error)

    def _put(self, item: Step | BaseException | None) -> bool:
        while not self._closed.is_set():
            try:
                self._queue.put(item, timeout=0.1)
                return True
            except queue.Full:
                continue
        return False
