"""Checkpoints: copied to the host between two steps, written by a thread, and restored in place, bit for bit.

Every rank writes one file: its random number generator state, the optimizer state that no lower rank has (all of it
on rank 0 where the state is replicated), and on rank 0 the model. So no tensors are sent between ranks, and no rank
waits for another. All ranks need one shared file system. The position in the sample order is a count of batches,
since the order is stateless.

The files have the safetensors format. A stamp (checkpoint, rank, configuration) and a digest of all tensors in the
header detect files that are damaged or belong to another run. The digest is BLAKE2b, which is fast on processors
without SHA-256 instructions too.
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
    finish_checkpoint,
    format_facts,
    rank_file,
    read_checkpoint,
    remove_old_checkpoints,
)
from podium.config.schema import Checkpointing
from podium.config.tensor_files import CONTENT_DIGEST, DIGEST_BYTES, STAMP_KEY, make_stamp, verify_tensor_file
from podium.core.errors import WorkError
from podium.core.files import atomic_file, write_atomically


def content_digest(tensors: Iterable[tuple[str, Tensor]]) -> str:
    """Return the BLAKE2b digest of name, dtype, shape and bytes of tensors on the host, in the given order."""
    digest = blake2b(digest_size=DIGEST_BYTES)
    for name, tensor in tensors:
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        # Viewed as bytes, since NumPy has no bfloat16.
        digest.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def write_tensors(path: Path, tensors: Mapping[str, Tensor], stamp: Mapping[str, str]) -> None:
    """Write a safetensors file atomically, with its stamp. Raises WorkError if it cannot be written."""
    # Sorted, as readers sort: the digest must not depend on the order in which tensors were collected.
    content = content_digest((name, tensors[name]) for name in sorted(tensors))
    with atomic_file(path) as temporary:
        temporary.touch()
        mode = temporary.stat().st_mode
        try:
            save_file(dict(tensors), temporary, metadata={STAMP_KEY: json.dumps({**stamp, CONTENT_DIGEST: content})})
        except SafetensorError as error:
            raise WorkError(f"{path}: cannot be written ({error}); make sure that the disk has free space") from error
        temporary.chmod(mode)  # save_file makes files readable by their owner only, and other users may resume the run


class TensorFile:
    """A safetensors file, opened for reading. Raises WorkError if it cannot be read."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._file: Any = safe_open(path, framework="pt")
            self._names = set(self._file.keys())  # type: ignore[no-untyped-call]
        except (OSError, SafetensorError) as error:
            raise WorkError(f"{path}: cannot be read ({error}); remove the folder {path.parent}") from error

    def verify(self, stamp: Mapping[str, str]) -> None:
        """Raise WorkError unless stamp and content digest are right. Reads the whole file."""
        verify_tensor_file(self._path, stamp)

    def get(self, name: str) -> Tensor:
        """Read one tensor. Raises WorkError if the file does not have it."""
        if name not in self._names:
            raise WorkError(f"{self._path}: has no {name}; resume with the version and packages that wrote it")
        tensor: Tensor = self._file.get_tensor(name)
        return tensor

    def copy_to(self, name: str, tensor: Tensor) -> None:
        """Copy a tensor of the file into `tensor`. Raises WorkError for another shape or dtype."""
        stored = self.get(name)
        if (stored.shape, stored.dtype) != (tensor.shape, tensor.dtype):
            raise WorkError(
                f"{self._path}: {name} is {stored.dtype} {list(stored.shape)}, and the run has {tensor.dtype} "
                f"{list(tensor.shape)}; resume with the configuration that wrote it"
            )
        tensor.copy_(stored)


# Names of the random states in a rank's file.
RNG_STATE, DEVICE_RNG_STATE = "random.cpu", "random.device"


class RunState:
    """The tensors that define a run's state, by name: model, optimizer, loss scaler, fp8 scales, steps, random states.

    A collective: all ranks construct it together.
    """

    def __init__(self, stepper: Stepper, processes: Processes) -> None:
        """The optimizer must have taken a step (the warm-up's), so that its state exists."""
        self._stepper, self._processes = stepper, processes
        model = stepper.model.module
        self._names = {parameter: name for name, parameter in model.named_parameters()}
        self._model = {f"model.{name}": parameter.detach() for name, parameter in model.named_parameters()}
        # Each rank has its own scales: they follow from the magnitudes in its samples.
        scales = model.scaling.tensors() if model.scaling is not None else {}
        self._scales = {f"fp8.{name}": tensor for name, tensor in scales.items()}
        states = stepper.optimizer.state
        # With a sharded optimizer each rank has the state of some parameters only, and only it knows which. The minimum
        # over ranks gives all ranks the same owner of each parameter, without gathering the states.
        ranks_with_state = [processes.rank if states.get(parameter) else processes.ranks for parameter in self._names]
        lowest = torch.tensor(ranks_with_state, dtype=torch.int64, device=processes.device)
        dist.all_reduce(lowest, op=dist.ReduceOp.MIN)
        # Parameter name → lowest rank that has its optimizer state; the number of ranks if none has it.
        self._owners: dict[str, int] = dict(zip(self._names.values(), lowest.tolist(), strict=True))

    def rank_tensors(self) -> dict[str, Tensor]:
        """Return the tensors that this rank writes, by name: the live tensors, not copies, except random states."""
        rank, stepper = self._processes.rank, self._stepper
        tensors = {**self._model, **self._steps()} if rank == 0 else {}
        for owner, state in self._optimizer():
            if owner == rank:
                tensors |= state
        for number, group in enumerate(stepper.optimizer.param_groups):
            if "step" in group:
                tensors[f"group.{number}.step"] = torch.as_tensor(group["step"])
        tensors |= self._scales
        tensors[RNG_STATE] = torch.get_rng_state()
        if self._processes.device.type == "cuda":
            tensors[DEVICE_RNG_STATE] = torch.cuda.get_rng_state()
        return tensors

    def _steps(self) -> dict[str, Tensor]:
        scaler = {f"scaler.{name}": tensor for name, tensor in self._stepper.scaler.tensors().items()}
        return {"steps_taken": self._stepper.steps_taken, **scaler}

    def _optimizer(self) -> Iterator[tuple[int, dict[str, Tensor]]]:
        """Yield owning rank and named state tensors of each parameter that this rank's optimizer has state for."""
        for parameter, state in self._stepper.optimizer.state.items():
            name = self._names[parameter]
            yield self._owners[name], {f"optimizer.{name}.{key}": value for key, value in state.items()}

    @torch.no_grad()
    def load(self, checkpoint: Path) -> None:
        """Restore all tensors in place, so that CUDA graphs and DDP keep their addresses.

        Raises WorkError for a file that cannot be read or does not match the run.
        """
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
        for name, tensor in self._scales.items():
            own.copy_to(name, tensor)
        # Last: nothing after this may draw random numbers, or the resumed run would differ in its dropout masks.
        torch.set_rng_state(own.get(RNG_STATE))
        if self._processes.device.type == "cuda":
            torch.cuda.set_rng_state(own.get(DEVICE_RNG_STATE))


def verify_tensors(checkpoint: Checkpoint, rank: int) -> None:
    """Read a rank's file of a checkpoint and raise WorkError if it is damaged or belongs to another checkpoint or run.

    Every rank verifies its own file, so that each file is read once.
    """
    stamp = make_stamp(checkpoint.batches, rank, checkpoint.facts["configuration"])
    TensorFile(rank_file(checkpoint.path, rank)).verify(stamp)


@contextmanager
def checkpoint_facts(checkpoint: Checkpoint) -> Iterator[Mapping[str, Any]]:
    """Give access to a checkpoint's facts. Errors of missing or unexpected entries become WorkError."""
    try:
        yield checkpoint.facts
    except (KeyError, TypeError, ValueError) as error:
        raise WorkError(
            f"{checkpoint.path / FACTS}: is not a checkpoint that this version of Podium can resume from ({error}); "
            "resume with the version that wrote it"
        ) from error


class Saver(AbstractContextManager["Saver"]):
    """Asynchronous checkpoint writer. Use as a context manager: leaving it waits for the checkpoint being written.

    `capture` copies all tensors to the host, without waiting for the device. `start_writing` writes the copies in a
    thread, once the host knows the counts of that step. Training waits only if the previous checkpoint is still being
    written. Errors of the thread are raised by the next call.
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
        """`samples` trained on so far; `configuration` from podium/config/run_folder.py; `digests` of the stores."""
        self._settings, self._folder, self._processes, self._state = settings, folder, processes, state
        self._configuration, self._digests = configuration, digests
        self._next_samples = self._next_multiple(samples)
        self._last, self._time_reported = monotonic(), False
        self._copies: dict[str, Tensor] = {}  # reused by all checkpoints: pinned memory is slow to allocate
        self._copies_done: torch.cuda.Event | None = None
        self.captured = False  # whether copies wait for `start_writing`
        # One thread: checkpoints are written in the order in which they were captured.
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._writing: Future[None] | None = None

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._writer.shutdown()
        if kind is None:
            self.finish()

    def _next_multiple(self, samples: int) -> int | None:
        """Return the sample count of the next checkpoint, or None if checkpoints are not made by samples."""
        every = self._settings.every_samples
        return None if every is None else (samples // every + 1) * every

    def due_by_time(self) -> bool:
        """Whether `every_minutes` have passed; True once per checkpoint, and on the first rank only.

        Clocks of ranks differ, so one rank decides and the others learn it with the metrics of the step.
        """
        minutes = self._settings.every_minutes
        if (
            minutes is None
            or self._time_reported
            or not self._processes.first
            or monotonic() - self._last < 60 * minutes
        ):
            return False
        self._time_reported = True
        return True

    def due_by_samples(self, samples: int) -> bool:
        """Whether `samples` trained on make a checkpoint due; the same on all ranks."""
        return self._next_samples is not None and samples >= self._next_samples

    def capture(self, samples: int) -> None:
        """Copy all tensors as they are after the steps submitted so far. `samples` trained on, as far as is known."""
        self.finish()  # the thread may still read the copies that are overwritten below
        self._next_samples = self._next_multiple(samples)
        self._last, self._time_reported = monotonic(), False
        on_device = self._processes.device.type == "cuda"
        for name, tensor in self._state.rank_tensors().items():
            if name not in self._copies:
                self._copies[name] = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=on_device)
            # On the stream of training, so the copies are ordered after the last step and before the next one. From
            # the device to pinned memory the host does not wait.
            self._copies[name].copy_(tensor, non_blocking=True)
        if on_device:
            self._copies_done = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._copies_done.record()
        self.captured = True

    def start_writing(self, batches: int, samples: int, metrics_bytes: int, resume_facts: Mapping[str, Any]) -> None:
        """Write the captured copies in the thread. The counts are those of the moment of `capture`.

        `resume_facts` is everything else that a resumed run needs, as JSON values.
        """
        assert self.captured
        self.captured = False
        # Measured now, not in the thread: lines that the log gets meanwhile do not belong to this checkpoint.
        log_bytes = self._folder.log.stat().st_size if self._processes.first else 0
        self._writing = self._writer.submit(self._write, batches, samples, metrics_bytes, resume_facts, log_bytes)

    def finish(self) -> None:
        """Wait for the checkpoint being written, and raise the error of the thread if it failed."""
        if self._writing is not None:
            writing, self._writing = self._writing, None
            writing.result()

    def _write(
        self, batches: int, samples: int, metrics_bytes: int, resume_facts: Mapping[str, Any], log_bytes: int
    ) -> None:
        # Order matters: the folder is marked unfinished, files are written and synchronised to disk, then the mark is
        # removed. A checkpoint without the mark is therefore complete after a crash at any point, and old checkpoints
        # are removed only when the new one is durable.
        if self._copies_done is not None:
            self._copies_done.synchronize()
        folder, rank = self._folder, self._processes.rank
        path = begin_checkpoint(folder.checkpoints, batches)
        stamp = make_stamp(batches, rank, self._configuration)
        write_tensors(rank_file(path, rank), self._copies, stamp)
        if rank == 0:
            for file in (folder.log, folder.metrics):
                _fsync(file)
            log = folder.log.read_bytes()[:log_bytes].decode("utf-8")
            known = batches, samples, self._processes.ranks, metrics_bytes, log
            write_atomically(path / FACTS, format_facts(*known, self._configuration, resume_facts, self._digests))
        finish_checkpoint(path)
        for directory in (path, folder.checkpoints):  # file names are durable only when their directory is synchronised
            _fsync(directory)
        if rank == 0:
            remove_old_checkpoints(folder.checkpoints, self._settings.keep)


def _fsync(path: Path) -> None:
    """Flush a file, or the names in a folder, to the disk, so that they survive a loss of power."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def agreed_checkpoint(folder: RunFolder, processes: Processes, found: Checkpoint | None) -> Checkpoint | None:
    """Return the checkpoint that the first rank found, on all ranks; None to start from scratch. A collective.

    Raises WorkError on a rank that does not see the same files.
    """
    # Only the first rank passes its checkpoint, others pass None (-1), so the maximum broadcasts it. Otherwise, a rank
    # with a stale view of the file system could resume from another step, and the run would hang or diverge.
    batches = processes.all_reduce_max(-1 if found is None else found.batches)
    if batches < 0:
        return None
    path = checkpoint_path(folder.checkpoints, batches)
    checkpoint = read_checkpoint(path)
    if checkpoint is None:
        raise WorkError(
            f"{path}: rank {processes.rank} does not see this checkpoint; all ranks need one shared file system"
        )
    return checkpoint
