"""Checkpoints: copied to the host between two steps, written by a thread, and restored in place, bit for bit.

Every rank writes one file: its random number generator state, the optimizer state that no lower rank has (all of it
is rank 0's where ranks have the same), and on rank 0 the model. So nothing is sent, and no rank waits for another.
All ranks need one shared file system. The position of the run follows from counts, since the sample order is stateless.

The files are in the safetensors format; a stamp of the owner and a digest of all tensors in their header tell a file
that is damaged or belongs to another run. BLAKE2b is as fast on processors without instructions for SHA-256.
"""

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from hashlib import blake2b
from pathlib import Path
from time import monotonic
from typing import Any

import torch
import torch.distributed as dist
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from implementations.pytorch.distributed.process_group import Processes
from implementations.pytorch.step import Stepper
from podium.config.run_folder import (
    FACTS,
    Checkpoint,
    RunFolder,
    begin_checkpoint,
    checkpoint_path,
    facts_of,
    finish_checkpoint,
    rank_file,
    read_checkpoint,
    remove_old_checkpoints,
)
from podium.config.schema import Checkpointing
from podium.config.tensor_files import CONTENT, DIGEST_BYTES, STAMP, require_tensors, stamp_of
from podium.core.errors import WorkError
from podium.core.files import whole_file, write_whole


def content_digest(tensors: Iterable[tuple[str, Tensor]]) -> str:
    """A digest over name, type, shape and bytes of tensors on the host, in the order given."""
    digest = blake2b(digest_size=DIGEST_BYTES)
    for name, tensor in tensors:
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        digest.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def write_tensors(path: Path, tensors: Mapping[str, Tensor], stamp: Mapping[str, str]) -> None:
    """Write a file, whole or not at all. WorkError where the disk does not take it."""
    content = content_digest((name, tensors[name]) for name in sorted(tensors))
    with whole_file(path) as temporary:
        temporary.touch()
        mode = temporary.stat().st_mode
        try:
            save_file(dict(tensors), temporary, metadata={STAMP: json.dumps({**stamp, CONTENT: content})})
        except SafetensorError as error:
            raise WorkError(f"{path}: cannot be written ({error}); see that the disk has space") from error
        temporary.chmod(mode)  # the library keeps its files to the user alone


class TensorFile:
    """A file of tensors to read. WorkError for one that cannot be read."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._file: Any = safe_open(path, framework="pt")
            self._names = set(self._file.keys())  # type: ignore[no-untyped-call]
        except (OSError, SafetensorError) as error:
            raise WorkError(f"{path}: cannot be read ({error}); remove the folder {path.parent}") from error

    def require(self, stamp: Mapping[str, str]) -> None:
        """WorkError unless it is the one that was written with this stamp, with all that was written. Reads all."""
        require_tensors(self._path, stamp)

    def get(self, name: str) -> Tensor:
        if name not in self._names:
            raise WorkError(f"{self._path}: holds no {name}; go on with the version and packages that wrote it")
        tensor: Tensor = self._file.get_tensor(name)
        return tensor

    def copy_to(self, name: str, tensor: Tensor) -> None:
        """Bring a tensor to what it was, in place."""
        found = self.get(name)
        if (found.shape, found.dtype) != (tensor.shape, tensor.dtype):
            raise WorkError(
                f"{self._path}: {name} is {found.dtype} {list(found.shape)}, and the run has {tensor.dtype} "
                f"{list(tensor.shape)}; go on with the configuration that wrote it"
            )
        tensor.copy_(found)


RANDOM, DEVICE_RANDOM = "random.cpu", "random.device"


class RunState:
    """The tensors that a run is made of, by name, where they live. Ranks make it together."""

    def __init__(self, stepper: Stepper, processes: Processes) -> None:
        """The optimizer's state must exist, as it does after one step."""
        self._stepper, self._processes = stepper, processes
        model = stepper.model.module
        self._names = {parameter: name for name, parameter in model.named_parameters()}
        named = [*model.named_parameters(), *model.named_buffers()]
        self._model = {f"model.{name}": tensor.detach() for name, tensor in named}
        held = stepper.optimizer.state
        mine = [processes.rank if held.get(parameter) else processes.ranks for parameter in self._names]
        lowest = torch.tensor(mine, dtype=torch.int64, device=processes.device)
        dist.all_reduce(lowest, op=dist.ReduceOp.MIN)
        # the lowest rank whose optimizer has a state for each parameter
        self._owners: dict[str, int] = dict(zip(self._names.values(), lowest.tolist(), strict=True))

    def of_rank(self) -> dict[str, Tensor]:
        """What this rank writes: tensors that live on, but for random states, which are copies."""
        rank, stepper = self._processes.rank, self._stepper
        found = {**self._model, **self._steps()} if rank == 0 else {}
        for owner, state in self._optimizer():
            if owner == rank:
                found |= state
        for number, group in enumerate(stepper.optimizer.param_groups):
            if "step" in group:
                found[f"group.{number}.step"] = torch.as_tensor(group["step"])
        found[RANDOM] = torch.get_rng_state()
        if self._processes.device.type == "cuda":
            found[DEVICE_RANDOM] = torch.cuda.get_rng_state()
        return found

    def _steps(self) -> dict[str, Tensor]:
        scaler = {f"scaler.{name}": tensor for name, tensor in self._stepper.scaler.tensors().items()}
        return {"steps_taken": self._stepper.taken, **scaler}

    def _optimizer(self) -> Iterator[tuple[int, dict[str, Tensor]]]:
        """Owner and state of each parameter that this rank's optimizer has a state of."""
        for parameter, state in self._stepper.optimizer.state.items():
            name = self._names[parameter]
            yield self._owners[name], {f"optimizer.{name}.{key}": value for key, value in state.items()}

    @torch.no_grad()
    def load(self, checkpoint: Path) -> None:
        """Bring all of it to what it was, in place. WorkError for a file that cannot be read or does not fit."""
        first, own = TensorFile(rank_file(checkpoint, 0)), TensorFile(rank_file(checkpoint, self._processes.rank))
        for name, tensor in (self._model | self._steps()).items():
            first.copy_to(name, tensor)
        for owner, state in self._optimizer():
            known = {0: first, self._processes.rank: own}
            file = known[owner] if owner in known else TensorFile(rank_file(checkpoint, owner))
            for name, tensor in state.items():
                file.copy_to(name, tensor)
        for number, group in enumerate(self._stepper.optimizer.param_groups):
            if isinstance(step := group.get("step"), Tensor):
                own.copy_to(f"group.{number}.step", step)
            elif step is not None:
                group["step"] = int(own.get(f"group.{number}.step"))
        torch.set_rng_state(own.get(RANDOM))
        if self._processes.device.type == "cuda":
            torch.cuda.set_rng_state(own.get(DEVICE_RANDOM))


def verify_tensors(checkpoint: Checkpoint, rank: int) -> None:
    """Read what a rank has written and raise WorkError unless it is that, byte for byte.

    Every rank does so with its own file, so that all files are seen to and each is once.
    """
    stamp = stamp_of(checkpoint.batches, rank, checkpoint.facts["configuration"])
    TensorFile(rank_file(checkpoint.path, rank)).require(stamp)


@contextmanager
def own_facts(checkpoint: Checkpoint) -> Iterator[Mapping[str, Any]]:
    """What is to be gone on from. WorkError where it is not what is looked for."""
    try:
        yield checkpoint.facts
    except (KeyError, TypeError, ValueError) as error:
        raise WorkError(
            f"{checkpoint.path / FACTS}: is not what this version of Podium goes on from ({error}); go on with the "
            "version that wrote it"
        ) from error


class Saver(AbstractContextManager["Saver"]):
    """Makes checkpoints while the run goes on. Use as a context manager: what is being written is finished then.

    `capture` copies all tensors to the host, `keep` hands the copies over to be written as soon as the host knows where
    the run stood. Training waits only for the checkpoint before. Errors of writing are raised by the next call.
    """

    def __init__(
        self,
        settings: Checkpointing,
        folder: RunFolder,
        processes: Processes,
        state: RunState,
        samples: int,
        configuration: Mapping[str, Any],
        digests: Mapping[str, str] | None = None,
    ) -> None:
        """`samples` have been trained on already; `configuration` is as podium/config/run_folder.py gives it.

        `digests` are those of the stores, where the run's folder lists what it is trained on.
        """
        self._settings, self._folder, self._processes, self._state = settings, folder, processes, state
        self._configuration, self._digests = configuration, digests
        self._next_samples = self._after(samples)
        self._last, self._asked = monotonic(), False
        self._copies: dict[str, Tensor] = {}
        self._arrival: torch.cuda.Event | None = None
        self.captured = False  # whether copies wait for `keep`
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._writing: Future[None] | None = None

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._writer.shutdown()
        if kind is None:
            self.finish()

    def _after(self, samples: int) -> int | None:
        every = self._settings.every_samples
        return None if every is None else (samples // every + 1) * every

    def asks(self) -> bool:
        """Whether this rank now wants a checkpoint for the time that has gone by: the first rank, once."""
        minutes = self._settings.every_minutes
        if minutes is None or self._asked or not self._processes.first or monotonic() - self._last < 60 * minutes:
            return False
        self._asked = True
        return True

    def due(self, samples: int) -> bool:
        """Whether so many samples ask for a checkpoint; the same on all ranks."""
        return self._next_samples is not None and samples >= self._next_samples

    def capture(self, samples: int) -> None:
        """Copy what the device has computed up to now. `samples` have been trained on, as far as is known."""
        self.finish()
        self._next_samples = self._after(samples)
        self._last, self._asked = monotonic(), False
        on_device = self._processes.device.type == "cuda"
        for name, tensor in self._state.of_rank().items():
            if name not in self._copies:
                self._copies[name] = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=on_device)
            self._copies[name].copy_(tensor, non_blocking=True)
        if on_device:
            self._arrival = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._arrival.record()
        self.captured = True

    def keep(self, batches: int, samples: int, metrics_bytes: int, rest: Mapping[str, Any]) -> None:
        """Have the copies written: this is where the run stood when they were made, as the first rank's host knows it.

        `rest` is what else the run goes on from, as JSON can hold it.
        """
        assert self.captured
        self.captured = False
        log_bytes = self._folder.log.stat().st_size if self._processes.first else 0
        self._writing = self._writer.submit(self._write, batches, samples, metrics_bytes, rest, log_bytes)

    def finish(self) -> None:
        """Wait until all is written, and raise what went wrong with it."""
        if self._writing is not None:
            writing, self._writing = self._writing, None
            writing.result()

    def _write(self, batches: int, samples: int, metrics_bytes: int, rest: Mapping[str, Any], log_bytes: int) -> None:
        if self._arrival is not None:
            self._arrival.synchronize()
        folder, rank = self._folder, self._processes.rank
        path = begin_checkpoint(folder.checkpoints, batches)
        stamp = stamp_of(batches, rank, self._configuration)
        write_tensors(rank_file(path, rank), self._copies, stamp)
        if rank == 0:
            for file in (folder.log, folder.metrics):
                _to_disk(file)
            log = folder.log.read_bytes()[:log_bytes].decode("utf-8")
            known = batches, samples, self._processes.ranks, metrics_bytes, log
            write_whole(path / FACTS, facts_of(*known, self._configuration, rest, self._digests))
        finish_checkpoint(path)
        for place in (path, folder.checkpoints):
            _to_disk(place)
        if rank == 0:
            remove_old_checkpoints(folder.checkpoints, self._settings.keep)


def _to_disk(path: Path) -> None:
    """Have what was written to a file, or the names in a folder, survive a loss of power."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def agreed_checkpoint(folder: RunFolder, processes: Processes, found: Checkpoint | None) -> Checkpoint | None:
    """What the first rank has found, told to all: the checkpoint to go on from, or None to begin.

    Raises WorkError on a rank that does not see the same files.
    """
    batches = processes.most(-1 if found is None else found.batches)
    if batches < 0:
        return None
    path = checkpoint_path(folder.checkpoints, batches)
    checkpoint = read_checkpoint(path)
    if checkpoint is None:
        raise WorkError(
            f"{path}: rank {processes.rank} does not see this checkpoint; ranks need one file system for it"
        )
    return checkpoint
