"""Reader of one rank's part of each step, with read-ahead for the samples of later steps.

The order of samples is a function of the seed and the length index, so the samples of later steps are known. The kernel
is advised (posix_fadvise) to read those of many steps at a time, in disk order and with neighbouring ranges merged.
This does not change any batch.
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

WINDOW = 32  # steps planned ahead of the one that is read; their samples are prefetched for half a window at a time
# Steps planned for each one that is read, until a window is planned. Planning the whole window at once would delay the
# first step.
PLANS_PER_STEP = 2


@dataclass(frozen=True)
class Step:
    """One rank's data of one training step: its micro-batches (gradient accumulation), and the whole global batch."""

    micro_batches: tuple[RaggedBatch, ...]
    global_batch: GlobalBatch


class StepReader(AbstractContextManager["StepReader"]):
    """Reader of one rank's part of each step. It keeps shard files open: use as a context manager or call `close`.

    The constructor reads only metadata. In memory are the plans of at most `window` global batches, some tens of bytes
    per sample, and the samples of one step; prefetched samples are in the kernel's page cache.
    """

    def __init__(
        self, order: TrainingOrder, rank: int, masked_slots: Mapping[int, int] | None = None, window: int = WINDOW
    ) -> None:
        """`masked_slots` is passed to `TrainingOrder.layouts`. A window of 0 disables prefetching."""
        assert isinstance(order.store, SampleStore), "a length index alone holds no samples"
        self._order, self._rank, self._masked_slots, self._window = order, rank, masked_slots, window
        self.samples = BulkReader(order.store)

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.samples.close()

    def steps(self, numbers: Iterable[int]) -> Iterator[Step]:
        """Yield the steps with these numbers, counted from 0; each is identical to reading its samples one by one."""
        coming = iter(numbers)
        planned: deque[GlobalBatch] = deque()
        not_prefetched = 0
        while True:
            # The plans of a step are made in order, since with a capacity a step depends on those before it.
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

    def read(self, global_batch: GlobalBatch) -> Step:
        """Read and collate this rank's part of a global batch. Raises WorkError if a shard cannot be read."""
        layouts = self._order.layouts(global_batch, self._rank, self._masked_slots)
        batches = (collate(self.samples.gather(global_batch.indices[part]), *layout) for part, layout in layouts)
        return Step(tuple(batches), global_batch)

    def _prefetch(self, global_batches: Sequence[GlobalBatch]) -> None:
        rank = self._rank
        self.samples.prefetch(
            np.concatenate(
                [
                    global_batch.indices[part]
                    for global_batch in global_batches
                    for part in global_batch.micro_batches(rank)
                ]
            )
        )
