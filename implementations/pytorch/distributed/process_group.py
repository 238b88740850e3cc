"""The process group of a run: the processes that torchrun started, and the rendezvous of each attempt.

One store serves all attempts of a run, and restarted ranks would find the addresses of those that died. torchrun's
restart count does not distinguish attempts on several nodes, as each node counts separately. So the first rank chooses
a key prefix that no earlier attempt has used, and every other rank recognises the answer to its request of this attempt
by its own nonce in it.
"""

import ctypes
import gc
import json
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from podium.config.schema import RunConfig
from podium.core.errors import UsageError, WorkError
from podium.launch.launch import STORE

POLL_SECONDS = 0.02


def run_store(timeout: timedelta) -> Any:
    """A connection to the store of the run's ranks; None where they were not started by torchrun.

    On a single node it is a file in a folder that no other user can enter, on several torchrun's TCPStore.
    """
    if path := os.environ.get(STORE):
        store = dist.FileStore(path)  # type: ignore[attr-defined]
        store.set_timeout(timeout)
        return store
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return None
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    return dist.TCPStore(host, port, is_master=False, timeout=timeout)  # type: ignore[attr-defined]


def meeting_place(store: Any, rank: int, ranks: int, timeout: timedelta) -> str:
    """A prefix of keys that is new in this attempt and the same on all ranks. WorkError if not all come in time."""
    deadline = time.monotonic() + timeout.total_seconds()
    word = secrets.token_hex(8)
    store.set(_word_of(rank), word)
    if rank > 0:
        while True:
            if store.check(["podium/answer"]):
                place, *words = store.get("podium/answer").decode().split()
                if words[rank : rank + 1] == [word]:
                    store.set(f"{place}/here/{rank}", word)
                    return str(place)
            _wait(deadline, "rank 0")
    place = f"podium/{word}"
    everyone, here = [_word_of(r) for r in range(ranks)], [f"{place}/here/{r}" for r in range(1, ranks)]
    while here and not store.check(here):
        if store.check(everyone):
            store.set("podium/answer", " ".join([place, *(each.decode() for each in store.multi_get(everyone))]))
        _wait(deadline, "some rank")
    return place


def _word_of(rank: int) -> str:
    return f"podium/word/{rank}"


def _wait(deadline: float, whom: str) -> None:
    if time.monotonic() > deadline:
        raise WorkError(f"{whom} has not come within launch.timeout_seconds; see what it printed, and the network")
    time.sleep(POLL_SECONDS)


NAMING_SECONDS = 60.0  # a collective waits so much longer than allowed, while the stalled rank is named


@dataclass(frozen=True)
class Processes:
    """This process's place among all of them, and its device."""

    rank: int
    ranks: int
    device: torch.device
    place: str = ""  # where in the run's store they have met; what else they leave for each other goes there too

    @property
    def first(self) -> bool:
        """Whether this process writes logs."""
        return self.rank == 0

    def total(self, values: list[float]) -> list[float]:
        """Sums over all ranks, in double precision."""
        tensor = torch.tensor(values, dtype=torch.float64, device=self.device)
        dist.all_reduce(tensor)
        return [float(x) for x in tensor.tolist()]

    def begin_total(self, tensor: torch.Tensor, group: dist.ProcessGroup | None = None) -> dist.Work:
        """Begin to add up a tensor over all ranks, in place."""
        work: dist.Work | None = dist.all_reduce(tensor, group=group, async_op=True)
        assert work is not None
        return work

    def most(self, number: int) -> int:
        """The greatest of all ranks' numbers."""
        tensor = torch.tensor(number, dtype=torch.int64, device=self.device)
        dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
        return int(tensor)

    def gather(self, value: Any) -> list[Any]:
        """Every rank's value, which JSON can hold, by rank; for a few hundred bytes, as all ranks get all of them."""
        content = json.dumps(value).encode("ascii")
        longest = self.most(len(content))
        everyone = torch.empty((self.ranks, longest), dtype=torch.uint8, device=self.device)
        dist.all_gather(list(everyone), self._bytes(content.ljust(longest)))
        return [json.loads(bytes(row)) for row in everyone.cpu().numpy()]

    def broadcast(self, value: Any, source: int) -> Any:
        """The value of one rank, which JSON can hold, on all ranks; the others' values have no part in it."""
        content = json.dumps(value).encode("ascii") if self.rank == source else b""
        tensor = self._bytes(content.ljust(self.most(len(content))))
        dist.broadcast(tensor, src=source)
        return json.loads(bytes(tensor.cpu().numpy()))

    def _bytes(self, content: bytes) -> torch.Tensor:
        return torch.tensor(bytearray(content), dtype=torch.uint8, device=self.device)

    def barrier(self) -> None:
        dist.barrier()


def cpu_group() -> dist.ProcessGroup:
    """One more group of all ranks, for threads that communicate beside training, among the CPUs."""
    group: dist.ProcessGroup = dist.new_group(backend="fake" if dist.get_backend() == "fake" else "gloo")
    return group


@contextmanager
def rehearsed(rank: int, ranks: int) -> Iterator["RehearsedProcesses"]:
    """A process group of so many ranks of which this process alone exists, on the CPU: nothing is sent."""
    from torch.testing._internal.distributed.fake_pg import FakeStore  # here: no run imports it

    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=ranks)
    try:
        yield RehearsedProcesses(rank, ranks, torch.device("cpu"))
    finally:
        _leave()


class RehearsedProcesses(Processes):
    """The place of the only process among all ranks: every other rank has what this one has."""

    def total(self, values: list[float]) -> list[float]:
        return [value * self.ranks for value in values]

    def begin_total(self, tensor: torch.Tensor, group: dist.ProcessGroup | None = None) -> dist.Work:
        tensor.mul_(self.ranks)
        return super().begin_total(tensor, group)  # which leaves the tensor as it is

    def most(self, number: int) -> int:
        return number

    def gather(self, value: Any) -> list[Any]:
        return [value] * self.ranks

    def broadcast(self, value: Any, source: int) -> Any:
        return value


@contextmanager
def joined(config: RunConfig) -> Iterator[Processes]:
    """Join the process group that torchrun's environment describes, with its share of the machine's cores."""
    timeout = timedelta(seconds=config.launch.timeout_seconds + NAMING_SECONDS)
    if config.launch.device == "cuda" and not torch.cuda.is_available():
        raise UsageError("launch.device: found cuda, but torch sees no GPU here; allowed is cpu")
    place, met = "", dict[str, Any]()
    store: Any = run_store(timeout)
    if store is not None:
        rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        place = meeting_place(store, rank, ranks, timeout)
        store = dist.PrefixStore(place, store)  # type: ignore[attr-defined]
        met = {"store": store, "rank": rank, "world_size": ranks}
    if config.launch.device == "cuda":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
        _leave_default_stream(device)
        dist.init_process_group("nccl", device_id=device, timeout=timeout, **met)
    else:
        device = torch.device("cpu")
        torch.set_num_threads(_threads(config))
        keep_freed_memory()
        dist.init_process_group("gloo", timeout=timeout, **met)
    try:
        yield Processes(dist.get_rank(), dist.get_world_size(), device, place)
    finally:
        _leave()


def _threads(config: RunConfig) -> int:
    """As the launcher counted them: a process that is bound sees its own cores alone and cannot share them out."""
    given = os.environ.get("OMP_NUM_THREADS", "")
    return int(given) if given.isdigit() else config.launch.threads


@contextmanager
def alone(device: torch.device) -> Iterator[Processes]:
    """A process group of this process alone."""
    if device.type == "cuda":
        _leave_default_stream(device)
    backend, store = "nccl" if device.type == "cuda" else "gloo", dist.HashStore()  # type: ignore[attr-defined]
    dist.init_process_group(backend, store=store, rank=0, world_size=1)
    try:
        yield Processes(0, 1, device)
    finally:
        _leave()


def _leave() -> None:
    """Destroy the process group after everything that nobody holds any more.

    A DDP module that outlives the group would destroy it, and would wait with Python's lock held for a thread of gloo
    that may need this lock to let go of the last collective's results. So nobody may hold one either.
    """
    gc.collect()
    dist.destroy_process_group()


def _leave_default_stream(device: torch.device) -> None:
    """Work on a stream of our own from now on: DDP remembers the stream that it is made on, and the default stream
    cannot be part of a CUDA graph."""
    torch.cuda.set_stream(torch.cuda.Stream(device))  # type: ignore[no-untyped-call]


def keep_freed_memory() -> None:
    """Tell glibc's allocator to keep what is freed instead of handing it back to the kernel.

    Batches differ in shape, so every step would otherwise map and clear fresh pages for every large tensor. On other C
    libraries nothing is done.
    """
    trim_threshold, top_pad, mmap_max = -1, -2, -4  # the constants of <malloc.h>
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(mmap_max, 0)  # large tensors too come from the heap, which is kept
        mallopt(trim_threshold, 2**31 - 1)
        mallopt(top_pad, 2**28)
