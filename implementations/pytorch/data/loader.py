"""Batches of one rank, in the run's order, read and laid out in the background while the device trains."""

import queue
import threading
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from benchmarks.bert.store import SampleStore
from implementations.pytorch.data.balancing import STRATEGIES, assign
from implementations.pytorch.data.batch import SHAPE_STEP, RaggedBatch, collate, round_up
from implementations.pytorch.data.sampling import Sampler


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
        store: SampleStore,
        *,
        seed: int,
        strategy: str,
        global_batch_size: int,
        ranks: int,
        accumulation_steps: int,
    ) -> None:
        self.store = store
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
        lengths = self.store.lengths[indices].astype(np.int64)
        widths = lengths if self.slot_width is None else np.full_like(lengths, self.slot_width)
        return GlobalBatch(
            first_sample=first,
            indices=indices,
            lengths=lengths,
            masked=int(self.store.masked_counts[indices].sum(dtype=np.int64)),
            slots=sum(round_up(int(slots), SHAPE_STEP) for slots in widths.sum(axis=-1).flat),
        )

    def read(self, step: int, rank: int) -> Step:
        """Read one rank's part of a step from the store."""
        whole = self.global_batch(step)
        micro_batches = tuple(
            collate([self.store.read(int(index)) for index in micro_batch], self.slot_width, SHAPE_STEP)
            for micro_batch in whole.indices[rank]
        )
        return Step(micro_batches, whole)


class Prefetcher:
    """Reads steps ahead in a thread, at most `depth` of them; an error in it is raised where the steps are taken.

    Use as a context manager, or `close` it: the thread ends then.
    """

    def __init__(self, order: TrainingOrder, rank: int, steps: range, depth: int) -> None:
        self._order, self._rank, self._steps = order, rank, steps
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
                if not self._put(self._order.read(step, self._rank)):
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
