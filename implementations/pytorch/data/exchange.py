"""Sample exchange: each rank reads the samples drawn for it and sends them to the ranks that train on them.

Source: Baidu's CPU-side exchange, arXiv 2208.08124. Samples are exchanged in pieces, the samples of `piece_steps`
steps. While one piece is trained on, a thread of each rank reads its part of the next piece and sends each sample to
the rank that the balancing strategy assigns it to, by one all-to-all on the CPUs in a separate gloo group. In the
published version every rank gathers the samples of all ranks. Here every rank knows all lengths, so that each sample is
sent to one rank only and message sizes are known in advance. Steps are bit for bit those of `StepReader`.
"""

import queue
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import islice
from time import perf_counter
from typing import Self

import numpy as np
import torch
import torch.distributed as dist

from benchmarks.bert.records import pack, record_lengths, unpack
from benchmarks.bert.samples import Samples, gather
from benchmarks.bert.shard import STORED_DTYPE
from benchmarks.bert.store import SampleStore
from benchmarks.bert.store_reader import BulkReader
from implementations.pytorch.data.batch import collate
from implementations.pytorch.data.reader import Step
from implementations.pytorch.distributed.process_group import cpu_group
from podium.core.errors import PodiumError, UsageError, WorkError
from podium.planning.balancing.interface import offsets_of
from podium.planning.batch_plan import GlobalBatch, TrainingOrder

GRACE_SECONDS = 2.0  # how long a failing rank waits for its thread, which may be blocked in a collective
# State of a rank before the exchange of a piece. Ordered, so that their maximum over ranks decides for all of them.
GO, STOP, FAILED = 0, 1, 2


@dataclass
class ExchangeStats:
    """Statistics of one rank's exchanges."""

    pieces: int = 0
    samples: int = 0  # received: samples that this rank trains on
    sent_bytes: int = 0  # to other ranks
    reading_seconds: float = 0.0
    sending_seconds: float = 0.0  # duration of the all-to-all, after all ranks have read their parts
    agreeing_seconds: float = 0.0  # wait for the slowest rank to read its part
    first_wait_seconds: float = 0.0  # wait of training for the first piece
    wait_seconds: float = 0.0  # wait of training for later pieces, after all steps of the piece before


@dataclass(frozen=True)
class ExchangePlan:
    """Which samples of a piece one rank reads, sends and receives; W is the world size. All arrays are int64."""

    global_batches: Sequence[GlobalBatch]
    read: np.ndarray  # dataset indices [n] of the samples to read, ordered by destination rank
    read_counts: np.ndarray  # [W] samples to send to each rank
    arriving: np.ndarray  # dataset indices [m] of the samples to receive, ordered by source rank
    arriving_counts: np.ndarray  # [W] samples to receive from each rank
    places: np.ndarray  # [m] positions among the received samples, in the order of steps and local batches

    @classmethod
    def of(cls, global_batches: Sequence[GlobalBatch], rank: int, ranks: int) -> Self:
        """Compute the plan of a piece. Each sample is read by the rank in whose local batch it was drawn.

        Every rank computes its plan from the shared order without communication.
        """
        # Per step: indices to receive and their source ranks (home), indices to read and their destinations (owner).
        mine, home, read, owner = [], [], [], []
        for global_batch in global_batches:
            local, starts = (
                global_batch.samples // ranks,
                global_batch.starts[:: global_batch.micro_batch_slots.shape[1]],
            )
            own = slice(starts[rank], starts[rank + 1])
            mine.append(global_batch.indices[own])
            home.append(global_batch.positions[own] // local)
            places = np.flatnonzero(
                (global_batch.positions >= rank * local) & (global_batch.positions < (rank + 1) * local)
            )
            read.append(global_batch.indices[places])
            owner.append(np.searchsorted(starts, places, side="right") - 1)
        homes, owners = np.concatenate(home), np.concatenate(owner)
        # Stable sorts: sender and receiver both order the samples between two ranks by step and position, so that no
        # indices have to be sent along.
        by_owner, by_home = np.argsort(owners, kind="stable"), np.argsort(homes, kind="stable")
        arrived = np.empty(len(by_home), dtype=np.int64)
        arrived[by_home] = np.arange(len(by_home))
        return cls(
            global_batches,
            np.concatenate(read)[by_owner],
            np.bincount(owners, minlength=ranks),
            np.concatenate(mine)[by_home],
            np.bincount(homes, minlength=ranks),
            arrived,
        )


Piece = tuple[ExchangePlan, Samples]  # the plan of some steps, and this rank's samples in the order of their arrival


class ExchangeReader(AbstractContextManager["ExchangeReader"]):
    """Reader of one rank's part of each step, with samples exchanged between ranks. Keeps two pieces in memory.

    The constructor is a collective operation, and all ranks must take the same number of steps unless one fails. Use as
    a context manager or call `close`, which returns when all ranks have closed theirs, or soon after `abort`.
    """

    def __init__(
        self, order: TrainingOrder, rank: int, masked_slots: Mapping[int, int] | None, piece_steps: int
    ) -> None:
        """`masked_slots` is passed to `TrainingOrder.layouts`. Raises UsageError without a process group."""
        if not dist.is_initialized():
            raise UsageError(
                "loader: found exchange, which exchanges samples between the processes of a run; use loader=own here"
            )
        assert isinstance(order.store, SampleStore), "a length index alone holds no samples"
        assert order.capacity is None, "with a capacity, samples of a step may have been drawn in the step before"
        self.stats = ExchangeStats()
        self._order, self._rank, self._masked_slots, self._piece_steps = order, rank, masked_slots, piece_steps
        self._store, self.samples = order.store, BulkReader(order.store)
        # A separate group: training may use NCCL, and the collectives of two threads in one group would interleave.
        self._group = cpu_group()
        self._pieces: queue.Queue[Piece | BaseException | None] = queue.Queue()
        self._room = threading.Semaphore(1)  # one piece may be exchanged ahead of the one that is trained on
        self._closed = threading.Event()
        self._aborted, self._taken = False, 0
        self._thread: threading.Thread | None = None

    def __exit__(self, *_: object) -> None:
        self.close()

    def abort(self) -> None:
        """Stop without waiting for the other ranks, because this rank ends with an error and they may not."""
        self._aborted = True
        self._closed.set()
        self._pieces.put(None)  # wakes up a consumer that waits for a piece that may never arrive

    def close(self) -> None:
        """End the thread together with those of all other ranks, and close the shard files."""
        self._closed.set()
        self._room.release()
        if self._thread is not None:
            while self._thread.is_alive() and not self._aborted:
                self._thread.join(0.1)
            self._thread.join(GRACE_SECONDS)
            if self._thread.is_alive():
                return  # blocked in a collective: the daemon thread and its open files end with the process
        self.samples.close()

    def steps(self, numbers: Iterable[int]) -> Iterator[Step]:
        """Yield the steps with these numbers, counted from 0; each is identical to `StepReader`'s. Call it once."""
        assert self._thread is None, "steps may be called only once"
        self._thread = threading.Thread(target=self._exchange, args=[iter(numbers)], name="exchange", daemon=True)
        self._thread.start()
        while (piece := self._next_piece()) is not None:
            first = 0
            for global_batch in piece[0].global_batches:
                yield self.lay_out(piece, global_batch, first)
                first += sum(part.stop - part.start for part in global_batch.micro_batches(self._rank))

    def _next_piece(self) -> Piece | None:
        """Wait for the next piece and start the exchange of the one after it; None at the end."""
        began = perf_counter()
        piece = self._pieces.get()
        waited = perf_counter() - began
        if isinstance(piece, BaseException):
            raise piece
        self._room.release()
        if self._taken == 0:
            self.stats.first_wait_seconds = waited
        else:
            self.stats.wait_seconds += waited
        self._taken += 1
        return piece

    def lay_out(self, piece: Piece, global_batch: GlobalBatch, first: int) -> Step:
        """Collate this rank's part of a global batch, whose samples begin at number `first` of the piece's."""
        (plan, samples), batches = piece, []
        for part, layout in self._order.layouts(global_batch, self._rank, self._masked_slots):
            count = part.stop - part.start
            batches.append(collate(gather(samples, plan.places[first : first + count]), *layout))
            first += count
        return Step(tuple(batches), global_batch)

    # The methods below run in the thread.

    def _exchange(self, numbers: Iterator[int]) -> None:
        """Exchange the pieces in order, one ahead of training, until all ranks agree to stop."""
        try:
            while global_batches := [self._order.global_batch(number) for number in islice(numbers, self._piece_steps)]:
                plan = self.plan(global_batches)
                self.samples.prefetch(plan.read)
                self._room.acquire()
                samples = self._read(plan)
                if samples is None:
                    break
                self._pieces.put((plan, self.exchange_samples(plan, samples)))
            self._pieces.put(None)
        except BaseException as error:  # noqa: BLE001 — raised in the thread that takes the steps
            self._pieces.put(error)

    def plan(self, global_batches: Sequence[GlobalBatch]) -> ExchangePlan:
        """Return the plan of a piece for this rank."""
        return ExchangePlan.of(global_batches, self._rank, self._order.ranks)

    def _read(self, plan: ExchangePlan) -> Samples | None:
        """Read this rank's part of a piece and wait until all ranks have read theirs; None if any rank has closed.

        If a rank fails, it raises its PodiumError (or a WorkError), and all others raise a WorkError that quotes it.
        """
        samples, failure = None, None
        began = perf_counter()
        if not self._closed.is_set():
            try:
                samples = self.samples.gather(plan.read)
            except Exception as error:  # noqa: BLE001 — raised below, after all ranks have been informed
                failure = error
        read = perf_counter()
        # All ranks must take the same decision, since the all-to-all below would block if one of them were missing.
        state = torch.tensor(FAILED if failure else STOP if samples is None else GO)
        dist.all_reduce(state, op=dist.ReduceOp.MAX, group=self._group)
        if int(state) == FAILED:
            message = self._first_error_message(failure)
            if isinstance(failure, PodiumError):
                raise failure
            raise WorkError(message) from failure
        if int(state) == STOP:
            return None
        self.stats.reading_seconds += read - began
        self.stats.agreeing_seconds += perf_counter() - read
        return samples

    def _first_error_message(self, failure: Exception | None) -> str:
        """Return the message of the lowest rank that failed, on all ranks. A collective operation."""
        own = "" if failure is None else f"rank {self._rank} could not read its samples: {failure}"
        messages = [""] * self._order.ranks
        dist.all_gather_object(messages, own, group=self._group)
        return next(filter(None, messages))

    def exchange_samples(self, plan: ExchangePlan, samples: Samples) -> Samples:
        """Send each sample to the rank that trains on it; return the received samples, in the order of the plan."""
        began = perf_counter()
        lengths, masked_counts = self._store.lengths[plan.arriving], self._store.masked_counts[plan.arriving]
        own = record_lengths(np.diff(samples.sample_offsets), np.diff(samples.masked_offsets))
        sent = _record_bytes(own, plan.read_counts)
        arriving = _record_bytes(record_lengths(lengths, masked_counts), plan.arriving_counts)
        # The store knows the lengths of all samples, so receive sizes need no communication.
        records = np.empty(int(arriving.sum()) // STORED_DTYPE.itemsize, dtype=STORED_DTYPE)
        dist.all_to_all_single(
            torch.from_numpy(records.view(np.uint8)),
            torch.from_numpy(pack(samples).view(np.uint8)),
            arriving.tolist(),
            sent.tolist(),
            group=self._group,
        )
        self.stats.sent_bytes += int(sent.sum() - sent[self._rank])
        self.stats.pieces += 1
        self.stats.samples += len(plan.arriving)
        self.stats.sending_seconds += perf_counter() - began
        return unpack(records, lengths, masked_counts)


def _record_bytes(numbers: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Return the bytes [W] per rank: rank r has the next counts[r] records, of numbers[i] elements each."""
    sizes: np.ndarray = np.diff(offsets_of(numbers)[offsets_of(counts)]) * STORED_DTYPE.itemsize
    return sizes
