"""Readers that each read the samples drawn for their own rank and send them to the ranks that train on them.

Source: the CPU-side exchange of Baidu, arXiv 2208.08124. While one piece, the samples of many steps, is trained on, a
thread of every rank reads its part of the next and sends every sample to the rank that the balancing strategy assigns
it to: one all-to-all among the CPUs, in a separate gloo group. In the published version ranks gather the samples of
all others; here every rank knows the lengths, so that a sample is sent to one rank alone and the sizes of what
arrives are known in advance. Steps are bit for bit those of `StepReader`.
"""

import queue
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import islice
from time import perf_counter

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

GRACE_SECONDS = 2.0  # how long a rank that fails waits for its thread, which may wait for ranks that wait for this one
GO, STOP, FAILED = 0, 1, 2


@dataclass
class ExchangeStats:
    """What passing samples on took a rank."""

    pieces: int = 0
    samples: int = 0  # that this rank trains on
    sent_bytes: int = 0  # to other ranks
    reading_seconds: float = 0.0
    sending_seconds: float = 0.0  # sending and receiving, once all ranks have read their parts
    agreeing_seconds: float = 0.0  # until all ranks have read their parts
    first_wait_seconds: float = 0.0  # until the first piece was there: nothing is trained on meanwhile
    wait_seconds: float = 0.0  # until each further piece was there, when all steps of the one before had been laid out


@dataclass(frozen=True)
class Plan:
    """What a rank reads of a piece, to whom it sends it, and what it gets."""

    global_batches: Sequence[GlobalBatch]
    read: np.ndarray  # dataset indices [n] of what this rank reads, by the rank that it goes to
    read_counts: np.ndarray  # samples for each rank [W]
    arriving: np.ndarray  # dataset indices [m] of what arrives, by the rank that it comes from
    arriving_counts: np.ndarray  # samples from each rank [W]
    places: np.ndarray  # where in what arrives this rank's samples lie [m], step by step

    @classmethod
    def of(cls, global_batches: Sequence[GlobalBatch], rank: int, ranks: int) -> "Plan":
        """The plan of a piece: a sample is read by the rank in whose local batch it was drawn."""
        mine, home, read, owner = [], [], [], []  # dataset indices of each step, and the ranks at the other end
        for whole in global_batches:
            local, starts = whole.samples // ranks, whole.starts[:: whole.micro_batch_slots.shape[1]]
            own = slice(starts[rank], starts[rank + 1])
            mine.append(whole.indices[own])
            home.append(whole.positions[own] // local)
            places = np.flatnonzero((whole.positions >= rank * local) & (whole.positions < (rank + 1) * local))
            read.append(whole.indices[places])
            owner.append(np.searchsorted(starts, places, side="right") - 1)
        homes, owners = np.concatenate(home), np.concatenate(owner)
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


Piece = tuple[Plan, Samples]  # of some steps, and this rank's samples as they arrived


class ExchangeReader(AbstractContextManager["ExchangeReader"]):
    """One rank's parts of steps, of samples that the ranks' readers pass on to each other.

    All ranks make one together and take equally many steps, or else leave it by an error. Use as a context manager, or
    `close` it: that returns when all ranks have closed theirs, or soon if this rank `fails`. Holds two pieces.
    """

    def __init__(
        self, order: TrainingOrder, rank: int, masked_slots: Mapping[int, int] | None, piece_steps: int
    ) -> None:
        """`masked_slots` is that of `TrainingOrder.layouts`. Raises UsageError outside of a run's processes."""
        if not dist.is_initialized():
            raise UsageError(
                "loader: found exchange, which passes samples on among the processes of a run; use loader=own here"
            )
        assert isinstance(order.store, SampleStore), "a length index alone holds no samples"
        assert order.capacity is None, "a sample that comes late was drawn in the step before"
        self.measured = ExchangeStats()
        self._order, self._rank, self._masked_slots, self._piece_steps = order, rank, masked_slots, piece_steps
        self._store, self.samples = order.store, BulkReader(order.store)
        self._group = cpu_group()  # a GPU's backend is another, and the threads' calls interleave
        self._pieces: queue.Queue[Piece | BaseException | None] = queue.Queue()
        self._room = threading.Semaphore(1)
        self._closed = threading.Event()
        self._aborted, self._taken = False, 0
        self._thread: threading.Thread | None = None

    def __exit__(self, *_: object) -> None:
        self.close()

    def abort(self) -> None:
        """This rank ends by an error, and others may not: nobody is waited for any longer."""
        self._aborted = True
        self._closed.set()
        self._pieces.put(None)  # for whoever waits for a piece that may never come

    def close(self) -> None:
        self._closed.set()
        self._room.release()
        if self._thread is not None:
            while self._thread.is_alive() and not self._aborted:
                self._thread.join(0.1)
            self._thread.join(GRACE_SECONDS)
            if self._thread.is_alive():
                return  # it ends with the process, and so do its files
        self.samples.close()

    def steps(self, numbers: Iterable[int]) -> Iterator[Step]:
        """These steps, counted from 0, one after the other: each as if read sample by sample, bit for bit."""
        assert self._thread is None, "steps are taken once"
        self._thread = threading.Thread(target=self._exchange, args=[iter(numbers)], name="exchange", daemon=True)
        self._thread.start()
        while (piece := self._next_piece()) is not None:
            first = 0
            for whole in piece[0].global_batches:
                yield self.lay_out(piece, whole, first)
                first += sum(part.stop - part.start for part in whole.micro_batches(self._rank))

    def _next_piece(self) -> Piece | None:
        """Take the next piece, and have the one after it exchanged; None at the end."""
        began = perf_counter()
        piece = self._pieces.get()
        waited = perf_counter() - began
        if isinstance(piece, BaseException):
            raise piece
        self._room.release()
        if self._taken == 0:
            self.measured.first_wait_seconds = waited
        else:
            self.measured.wait_seconds += waited
        self._taken += 1
        return piece

    def lay_out(self, piece: Piece, whole: GlobalBatch, first: int) -> Step:
        """This rank's part of a global batch, which begins with its sample number `first` in the piece."""
        (plan, samples), batches = piece, []
        for part, layout in self._order.layouts(whole, self._rank, self._masked_slots):
            count = part.stop - part.start
            batches.append(collate(gather(samples, plan.places[first : first + count]), *layout))
            first += count
        return Step(tuple(batches), whole)

    # In the thread

    def _exchange(self, numbers: Iterator[int]) -> None:
        """Exchange piece after piece, one ahead of the one that is taken, until all ranks stop at the same one."""
        try:
            while global_batches := [self._order.global_batch(number) for number in islice(numbers, self._piece_steps)]:
                plan = self.plan(global_batches)
                self.samples.will_need(plan.read)
                self._room.acquire()
                samples = self._read(plan)
                if samples is None:
                    break
                self._pieces.put((plan, self.pass_on(plan, samples)))
            self._pieces.put(None)
        except BaseException as error:  # noqa: BLE001 — handed over to the thread that takes the steps
            self._pieces.put(error)

    def plan(self, global_batches: Sequence[GlobalBatch]) -> Plan:
        """What this rank reads, sends and gets of a piece."""
        return Plan.of(global_batches, self._rank, self._order.ranks)

    def _read(self, plan: Plan) -> Samples | None:
        """What this rank reads of a piece, when all ranks have read theirs; None if any of them stops before.

        Raises what went wrong here, and on all other ranks WorkError with the same sentence.
        """
        samples, failure = None, None
        began = perf_counter()
        if not self._closed.is_set():
            try:
                samples = self.samples.gather(plan.read)
            except Exception as error:  # noqa: BLE001 — raised again, when all ranks know
                failure = error
        read = perf_counter()
        state = torch.tensor(FAILED if failure else STOP if samples is None else GO)
        dist.all_reduce(state, op=dist.ReduceOp.MAX, group=self._group)
        if int(state) == FAILED:
            sentence = self._first_error_message(failure)
            if isinstance(failure, PodiumError):
                raise failure
            raise WorkError(sentence) from failure
        if int(state) == STOP:
            return None
        self.measured.reading_seconds += read - began
        self.measured.agreeing_seconds += perf_counter() - read
        return samples

    def _first_error_message(self, failure: Exception | None) -> str:
        """What went wrong on the first rank that failed, as all ranks then know it."""
        own = "" if failure is None else f"rank {self._rank} could not read its samples: {failure}"
        sentences = [""] * self._order.ranks
        dist.all_gather_object(sentences, own, group=self._group)
        return next(filter(None, sentences))

    def pass_on(self, plan: Plan, samples: Samples) -> Samples:
        """Send each sample that was read to its rank; this rank's samples, as they arrive."""
        began = perf_counter()
        lengths, masked_counts = self._store.lengths[plan.arriving], self._store.masked_counts[plan.arriving]
        own = record_lengths(np.diff(samples.sample_offsets), np.diff(samples.masked_offsets))
        sent = _record_bytes(own, plan.read_counts)
        arriving = _record_bytes(record_lengths(lengths, masked_counts), plan.arriving_counts)
        records = np.empty(int(arriving.sum()) // STORED_DTYPE.itemsize, dtype=STORED_DTYPE)
        dist.all_to_all_single(
            torch.from_numpy(records.view(np.uint8)),
            torch.from_numpy(pack(samples).view(np.uint8)),
            arriving.tolist(),
            sent.tolist(),
            group=self._group,
        )
        self.measured.sent_bytes += int(sent.sum() - sent[self._rank])
        self.measured.pieces += 1
        self.measured.samples += len(plan.arriving)
        self.measured.sending_seconds += perf_counter() - began
        return unpack(records, lengths, masked_counts)


def _record_bytes(numbers: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Bytes [W] of runs of so many records [W], of so many numbers each [n]."""
    found: np.ndarray = np.diff(offsets_of(numbers)[offsets_of(counts)]) * STORED_DTYPE.itemsize
    return found
