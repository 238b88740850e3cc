"""The process group of a run: rendezvous of the processes that torchrun started, and small host-side collectives.

All attempts of a run share one key-value store, so restarted ranks would read the addresses of ranks that have died.
torchrun's restart count cannot separate attempts on several nodes, since each node counts its own restarts. So rank 0
chooses a new key prefix for each attempt. Every other rank writes a nonce, and rank 0 writes its prefix under a key
that contains that nonce, so that an answer to an earlier attempt cannot be mistaken for one to this.
"""

import ctypes
import gc
import json
import os
import random
import secrets
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol
from weakref import WeakSet

import torch
import torch.distributed as dist

from implementations.pytorch.streams import new_stream
from podium.config.schema import RunConfig
from podium.core.errors import UsageError, WorkError
from podium.launch.launch import STORE

# Times between two polls of the store: at first, and at most in rank 0. They double from poll to poll.
FIRST_POLL_SECONDS, RANK_0_POLL_SECONDS = 0.02, 0.5
POLLS_PER_SECOND = 1000  # of all other ranks together, once they have waited for some time; one process serves them all


def run_store(timeout: timedelta) -> Any:
    """Connect to the run's key-value store; None if the process was not started by torchrun.

    On a single node the store is a file in a folder that no other user can enter, on several nodes it is torchrun's
    TCPStore.
    """
    if path := os.environ.get(STORE):
        store = dist.FileStore(path)  # type: ignore[attr-defined]
        store.set_timeout(timeout)
        return store
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return None
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    return dist.TCPStore(host, port, is_master=False, timeout=timeout)  # type: ignore[attr-defined]


def rendezvous_prefix(store: Any, rank: int, ranks: int, timeout: timedelta) -> str:
    """Return a key prefix that is new in this attempt and the same on all ranks. A collective operation.

    Raises WorkError if not all ranks arrive within the timeout.
    """
    deadline = time.monotonic() + timeout.total_seconds()
    most_seconds = max(FIRST_POLL_SECONDS, ranks / POLLS_PER_SECOND)
    nonce = secrets.token_hex(8)
    if rank > 0:
        poll = _Poll(deadline, "rank 0", most_seconds)
        store.set(_nonce_key(rank), nonce)
        while not store.check([_answer_key(nonce)]):
            poll.wait()
        prefix = store.get(_answer_key(nonce)).decode()
        store.set(f"{prefix}/here/{rank}", nonce)
        return str(prefix)
    prefix, poll = f"podium/{nonce}", _Poll(deadline, "at least one rank", min(RANK_0_POLL_SECONDS, most_seconds))
    nonce_keys, arrived_keys = [_nonce_key(r) for r in range(1, ranks)], [f"{prefix}/here/{r}" for r in range(1, ranks)]
    # Nonces are read again in every round: a rank that was read with the nonce of an earlier attempt replaces it when
    # it starts, and must then be answered under its new nonce.
    answered: set[str] = set()
    while arrived_keys and not store.check(arrived_keys):
        if store.check(nonce_keys):
            new = [each for each in (n.decode() for n in store.multi_get(nonce_keys)) if each not in answered]
            if new:
                store.multi_set([_answer_key(each) for each in new], [prefix] * len(new))
                answered.update(new)
        poll.wait()
    return prefix


def _nonce_key(rank: int) -> str:
    return f"podium/nonce/{rank}"


def _answer_key(nonce: str) -> str:
    """Key under which rank 0 writes its prefix for the rank that wrote this nonce."""
    return f"podium/answer/{nonce}"


class _Poll:
    """Waiting times between polls: exponential back-off up to `most_seconds`, with jitter."""

    def __init__(self, deadline: float, missing: str, most_seconds: float) -> None:
        self._deadline, self._missing, self._most_seconds = deadline, missing, most_seconds
        self._seconds, self._random = FIRST_POLL_SECONDS, random.Random()

    def wait(self) -> None:
        """Sleep until the next poll. Raises WorkError after the deadline."""
        if time.monotonic() > self._deadline:
            raise WorkError(
                f"rendezvous: {self._missing} did not arrive within launch.timeout_seconds; "
                "check its output and the network"
            )
        # Jitter, since ranks that were started together would otherwise poll together.
        time.sleep(self._seconds * self._random.uniform(0.5, 1.5))
        self._seconds = min(2 * self._seconds, self._most_seconds)


# A collective times out this much later than launch.timeout_seconds, so that the watchdog names the stalled rank first.
WATCHDOG_MARGIN_SECONDS = 60.0


@dataclass(frozen=True)
class Processes:
    """The default process group as this process sees it: rank, world size, device, and small collectives.

    Unless noted otherwise methods are collective: all ranks must call them in the same order. They synchronise the host
    with the device.
    """

    rank: int
    ranks: int
    device: torch.device
    store_prefix: str = ""  # the key prefix in the run's store that belongs to this attempt

    @property
    def first(self) -> bool:
        """Whether this is rank 0, which writes logs. Not collective."""
        return self.rank == 0

    def all_reduce_sum(self, values: list[float]) -> list[float]:
        """Return element-wise sums over all ranks, computed in float64."""
        tensor = torch.tensor(values, dtype=torch.float64, device=self.device)
        dist.all_reduce(tensor)
        return [float(x) for x in tensor.tolist()]

    def all_reduce_sum_async(self, tensor: torch.Tensor, group: dist.ProcessGroup | None = None) -> dist.Work:
        """Start to sum a tensor over all ranks in place; wait for the returned handle before reading it."""
        work: dist.Work | None = dist.all_reduce(tensor, group=group, async_op=True)
        assert work is not None
        return work

    def all_reduce_max(self, number: int) -> int:
        """Return the maximum of all ranks' numbers (int64)."""
        tensor = torch.tensor(number, dtype=torch.int64, device=self.device)
        dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
        return int(tensor)

    def gather(self, value: Any) -> list[Any]:
        """Return the JSON-serialisable values of all ranks, by rank; meant for a few hundred bytes per rank."""
        # JSON instead of pickle (all_gather_object): data that comes over the network is not executed. Padding with
        # spaces to the longest text keeps it valid JSON.
        content = json.dumps(value).encode("ascii")
        longest = self.all_reduce_max(len(content))
        by_rank = torch.empty((self.ranks, longest), dtype=torch.uint8, device=self.device)
        dist.all_gather(list(by_rank), self._bytes(content.ljust(longest)))
        return [json.loads(bytes(row)) for row in by_rank.cpu().numpy()]

    def broadcast(self, value: Any, source: int) -> Any:
        """Return rank `source`'s JSON-serialisable value on all ranks; the other ranks' values are ignored."""
        content = json.dumps(value).encode("ascii") if self.rank == source else b""
        tensor = self._bytes(content.ljust(self.all_reduce_max(len(content))))
        dist.broadcast(tensor, src=source)
        return json.loads(bytes(tensor.cpu().numpy()))

    def _bytes(self, content: bytes) -> torch.Tensor:
        return torch.tensor(bytearray(content), dtype=torch.uint8, device=self.device)

    def barrier(self) -> None:
        dist.barrier()


def cpu_group() -> dist.ProcessGroup:
    """Create another process group of all ranks on the CPU (gloo), for threads that communicate during training.

    A collective operation. Collectives of one group must be called in the same order on all ranks, which two threads
    that share a group cannot ensure.
    """
    group: dist.ProcessGroup = dist.new_group(backend="fake" if dist.get_backend() == "fake" else "gloo")
    return group


@contextmanager
def rehearsal_process_group(rank: int, ranks: int) -> Iterator["RehearsedProcesses"]:
    """Simulate a process group of `ranks` ranks on the CPU in which only this process exists; nothing is sent."""
    from torch.testing._internal.distributed.fake_pg import FakeStore  # imported here: only rehearsals need it

    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=ranks)
    try:
        yield RehearsedProcesses(rank, ranks, torch.device("cpu"))
    finally:
        _destroy_process_group()


class RehearsedProcesses(Processes):
    """Processes of a simulated group: collectives return what they would if all ranks had this rank's values."""

    def all_reduce_sum(self, values: list[float]) -> list[float]:
        return [value * self.ranks for value in values]

    def all_reduce_sum_async(self, tensor: torch.Tensor, group: dist.ProcessGroup | None = None) -> dist.Work:
        tensor.mul_(self.ranks)
        return super().all_reduce_sum_async(tensor, group)  # the fake backend leaves the tensor unchanged

    def all_reduce_max(self, number: int) -> int:
        return number

    def gather(self, value: Any) -> list[Any]:
        return [value] * self.ranks

    def broadcast(self, value: Any, source: int) -> Any:
        return value


@contextmanager
def init_distributed(config: RunConfig) -> Iterator[Processes]:
    """Initialise the process group from torchrun's environment (NCCL on a GPU, gloo on a CPU), then destroy it.

    Also sets the CUDA device and stream, or the number of CPU threads. Raises UsageError if `launch.device` is cuda and
    there is no GPU, and WorkError if not all ranks arrive within launch.timeout_seconds.
    """
    timeout = timedelta(seconds=config.launch.timeout_seconds + WATCHDOG_MARGIN_SECONDS)
    if config.launch.device == "cuda" and not torch.cuda.is_available():
        raise UsageError("launch.device: found cuda, but torch sees no GPU here; allowed is cpu")
    prefix, rendezvous = "", dict[str, Any]()
    store: Any = run_store(timeout)
    if store is not None:
        rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        prefix = rendezvous_prefix(store, rank, ranks, timeout)
        store = dist.PrefixStore(prefix, store)  # type: ignore[attr-defined]
        rendezvous = {"store": store, "rank": rank, "world_size": ranks}
    if config.launch.device == "cuda":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
        _use_compute_stream(device)
        # Gradients are sent while the backward pass computes, which has high priority now (streams.py): NCCL's kernels
        # would wait for it at the default priority. PyTorch takes NCCL's streams from the highest one then.
        os.environ.setdefault("TORCH_NCCL_HIGH_PRIORITY", "1")
        dist.init_process_group("nccl", device_id=device, timeout=timeout, **rendezvous)
    else:
        device = torch.device("cpu")
        torch.set_num_threads(_num_threads(config))
        keep_freed_memory()
        dist.init_process_group("gloo", timeout=timeout, **rendezvous)
    try:
        yield Processes(dist.get_rank(), dist.get_world_size(), device, prefix)
    finally:
        _destroy_process_group()


def _num_threads(config: RunConfig) -> int:
    """Return the number of CPU threads of this process, as the launcher computed it."""
    # A process with CPU affinity sees only its own cores: dividing those by the processes per node would be wrong.
    from_launcher = os.environ.get("OMP_NUM_THREADS", "")
    return int(from_launcher) if from_launcher.isdigit() else config.launch.threads


@contextmanager
def single_process(device: torch.device) -> Iterator[Processes]:
    """Initialise a process group of this process only (world size 1), then destroy it."""
    if device.type == "cuda":
        _use_compute_stream(device)
    backend, store = "nccl" if device.type == "cuda" else "gloo", dist.HashStore()  # type: ignore[attr-defined]
    dist.init_process_group(backend, store=store, rank=0, world_size=1)
    try:
        yield Processes(0, 1, device)
    finally:
        _destroy_process_group()


class Closable(Protocol):
    """A resource that refers to the process group, such as captured CUDA graphs; `close` may be called repeatedly."""

    def close(self) -> None: ...


# Like the default process group, of the whole process. Weak: what is no longer used elsewhere is freed at once.
_to_close = WeakSet[Closable]()


def close_before_destroy(resource: Closable) -> None:
    """Register a resource that is closed before the process group is destroyed, if it still exists then."""
    _to_close.add(resource)


def _destroy_process_group() -> None:
    """Close the registered resources and destroy the process group, after all DDP modules no longer referenced.

    The caller must hold no reference to a DDP module either.
    """
    # First: NCCL destroys a communicator only once no CUDA graph refers to it. Explicitly: after an error its traceback
    # refers to the frames of the run, and so to the graphs, until the error is reported.
    for resource in list(_to_close):
        try:
            resource.close()
        except RuntimeError as error:  # CUDA's; not raised, since it would hide the error that ended the run
            print(f"{type(resource).__name__}: cannot be closed ({error})", file=sys.stderr, flush=True)
    # A DDP module that outlives its group destroys the group itself. It then waits, with the interpreter lock held, for
    # a gloo thread that may need this lock to release the last collective's results: a deadlock.
    gc.collect()
    dist.destroy_process_group()


def _use_compute_stream(device: torch.device) -> None:
    """Make a new CUDA stream the current one."""
    # DDP uses the stream on which it is constructed, and the default stream cannot be captured in a CUDA graph.
    torch.cuda.set_stream(new_stream(device))


def keep_freed_memory() -> None:
    """Configure glibc's allocator to keep freed memory instead of returning it to the kernel.

    Batches differ in shape, so every step would otherwise map and clear new pages for every large tensor. Does nothing
    with other C libraries.
    """
    trim_threshold, top_pad, mmap_max = -1, -2, -4  # M_TRIM_THRESHOLD, M_TOP_PAD and M_MMAP_MAX of <malloc.h>
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(mmap_max, 0)  # allocate large tensors from the heap too, since mapped memory is unmapped when freed
        mallopt(trim_threshold, 2**31 - 1)  # bytes: do not shrink the heap
        mallopt(top_pad, 2**28)  # bytes: grow the heap in steps of 256 MiB
