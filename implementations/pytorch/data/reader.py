"""Reads one rank's part of step after step, with read-ahead for the samples of coming steps.

The order of a run is a function of its seed and the length index, so the samples of coming steps are known. They are
prefetched for many steps at a time, in disk order and with neighbours merged: advice to the system that changes no bit
of any batch.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import numpy as np

from benchmarks.bert.store import SampleStore
from benchmarks.bert.store_reader import BulkReader
from implementations.pytorch.data.batch import RaggedBatch, collate
from podium.planning.batch_plan import GlobalBatch, TrainingOrder

WINDOW = 32  # steps that are known ahead of the one that is read; they are asked for half as many at a time
PLANS_PER_STEP = (
    2  # steps planned for each one read, until WINDOW are known: the first step waits for its own plan alone
)


@dataclass(frozen=True)
class Step:
    """What one rank trains on in one step: the micro-batches of gradient accumulation, and the global batch."""

    micro_batches: tuple[RaggedBatch, ...]
    whole: GlobalBatch


class StepReader(AbstractContextManager["StepReader"]):
    """One rank's parts of steps. Use as a context manager, or `close` it: it keeps files of shards open.

    Making one reads metadata alone. It holds the plans of `window` global batches at most, which is some tens of bytes
    for each of their samples, and the samples of one step; what was asked for lies in the system's page cache.
    """

    def __init__(
        self, order: TrainingOrder, rank: int, masked_slots: Mapping[int, int] | None = None, window: int = WINDOW
    ) -> None:
        """`masked_slots` is that of `TrainingOrder.layouts`. A window of 0 asks for nothing."""
        assert isinstance(order.store, SampleStore), "a length index alone holds no samples"
        self._order, self._rank, self._masked_slots, self._window = order, rank, masked_slots, window
        self.samples = BulkReader(order.store)

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.samples.close()

    def steps(self, numbers: Iterable[int]) -> Iterator[Step]:
        """These steps, counted from 0, one after the other: each as if read sample by sample, bit for bit."""
        coming = iter(numbers)
        planned: deque[GlobalBatch] = deque()
        not_prefetched = 0
        while True:
            for _, number in zip(range(PLANS_PER_STEP if self._window else 1), coming, strict=False):
                planned.append(self._order.global_batch(number))
                not_prefetched += 1
                if len(planned) >= self._window:
                    break
            if not planned:
                return
            if self._window and (not_prefetched == len(planned) or 2 * not_prefetched >= self._window):
                self._prefetch(list(planned)[-not_prefetched:])
                not_prefetched = 0
            yield self.read(planned.popleft())

    def read(self, whole: GlobalBatch) -> Step:
        """This rank's part of a global batch."""
        layouts = self._order.layouts(whole, self._rank, self._masked_slots)
        batches = (collate(self.samples.gather(whole.indices[part]), *layout) for part, layout in layouts)
        return Step(tuple(batches), whole)

    def _prefetch(self, global_batches: Sequence[GlobalBatch]) -> None:
        rank = self._rank
        self.samples.will_need(
            np.concatenate([whole.indices[part] for whole in global_batches for part in whole.micro_batches(rank)])
        )
