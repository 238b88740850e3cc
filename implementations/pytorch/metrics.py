"""Per-step metrics as JSON lines, written by the first rank one step late so that no step waits for its own values."""

import json
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Self

import torch
import torch.distributed as dist
from torch import Tensor

from implementations.pytorch.data.reader import Step
from implementations.pytorch.distributed.process_group import Processes
from implementations.pytorch.step import NotFinite, StepResult
from podium.core.errors import WorkError
from podium.core.files import write_error
from podium.planning.batch_plan import GlobalBatch

# Above it the times of all ranks are left out: a line would have more than 2 kB.
MAX_TIMED_RANKS = 256
MAX_CONSECUTIVE_SKIPS = 40  # the run fails then: the loss scale has been halved 40 times, to no effect


@dataclass(frozen=True)
class _Pending:
    """A step whose numbers are being reduced over ranks and copied to the host."""

    line: dict[str, Any]
    global_batch: GlobalBatch
    # float64 [8 + ranks] on the host. Summed over ranks: masked-LM loss, next-sentence loss, ranks that request a stop,
    # ranks that request a checkpoint, ranks with a finite gradient norm, and the milliseconds of work of each rank (to
    # which only that rank adds). Of this rank: gradient norm, learning rate, taken.
    numbers: Tensor
    completion: dist.Work | torch.cuda.Event

    def wait(self) -> list[float]:
        """Wait for the numbers and return them."""
        if isinstance(self.completion, torch.cuda.Event):
            self.completion.synchronize()  # of the previous step: the device works on the next one meanwhile
        else:
            self.completion.wait()
        values: list[float] = self.numbers.tolist()
        return values


class Metrics:
    """Writer of the metrics file: global losses of every step, summed over ranks while the next step runs.

    Use as a context manager. `flush` raises, one step late and on every rank, NotFinite for a loss or gradient that is
    not finite and WorkError for too many consecutive skipped steps. The same reduction distributes requests of any rank
    to stop or to write a checkpoint, so that all ranks act on them after the same step.
    """

    def __init__(self, path: Path, processes: Processes, skipped: int = 0) -> None:
        """Append to the file at `path`. `skipped`: consecutive skipped steps before a resumed run."""
        self._path, self._processes = path, processes
        self._file: IO[str] | None = None
        self.pending: _Pending | None = None  # the last step, until it is flushed
        self.skipped = skipped  # consecutive steps skipped for overflow
        # The two values 1 and 0 on the device: a request is an index into them, not a copy from the host.
        self._flags = torch.eye(2, dtype=torch.float64, device=processes.device)[0]
        # This rank's place among the times of all ranks; empty where they are not gathered.
        self._timed_ranks = processes.ranks if 1 < processes.ranks <= MAX_TIMED_RANKS else 0
        self._own_place = torch.zeros(self._timed_ranks, dtype=torch.float64, device=processes.device)
        if self._timed_ranks:
            self._own_place[processes.rank] = 1
        self.stop_requested, self.save_requested = False, False  # by any rank; known to all ranks after the same step

    @property
    def size_bytes(self) -> int:
        """Size of the file in bytes; 0 on a rank that does not write it."""
        return os.fstat(self._file.fileno()).st_size if self._file is not None else 0

    def __enter__(self) -> Self:
        if self._processes.first:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            try:
                self._file = self._path.open("a", encoding="utf-8", buffering=1)
            except OSError as error:
                raise write_error(self._path, error) from None
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._file is None:
            return
        try:
            self._file.close()
        except OSError as error:  # of a line that could not be written, which has been reported already
            if kind is None:
                raise write_error(self._path, error) from None

    def step(
        self, number: int, samples: int, step: Step, result: StepResult, stop: bool = False, save: bool = False
    ) -> None:
        """Record step `number`, after which `samples` have been trained on, without waiting. A collective.

        `stop`, `save`: whether this rank requests that all ranks stop, or write a checkpoint.
        """
        assert self.pending is None, "the previous step is flushed before"
        line = {
            "event": "step",
            "step": number,
            "samples": samples,
            "tokens": step.global_batch.tokens,
            "slots": step.global_batch.slots,
            "max_over_mean_tokens": step.global_batch.max_over_mean_tokens,
        }
        if step.global_batch.moved:
            line["moved"] = step.global_batch.moved
        requests = (self._flags[1 - stop], self._flags[1 - save])
        sums = (result.masked_lm, result.next_sentence, *requests, result.finite)
        own = (result.gradient_norm, result.rate, result.taken)
        # float64: sums over a large global batch would lose digits in float32.
        parts = [value.double().view(1) for value in sums], [value.double().view(1) for value in own]
        # The times of all ranks take part in the same reduction, so that they cost no collective.
        times = [self._own_place * result.work_ms.nan_to_num()] if self._timed_ranks else []
        numbers = torch.cat([*parts[0], *times, *parts[1]])
        work = self._processes.all_reduce_sum_async(numbers[: len(sums) + self._timed_ranks])
        if numbers.is_cuda:
            # With NCCL, `wait` makes the current stream wait for the all-reduce, not the host. So the copy below is
            # ordered after it, and the event after the copy.
            work.wait()
            on_host = torch.empty(numbers.shape, dtype=numbers.dtype, pin_memory=True)
            on_host.copy_(numbers, non_blocking=True)
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record()
            self.pending = _Pending(line, step.global_batch, on_host, event)
        else:
            self.pending = _Pending(line, step.global_batch, numbers, work)

    def flush(self) -> GlobalBatch | None:
        """Write the line of the last recorded step. Returns its batch if it was skipped for overflow, else None."""
        if self.pending is None:
            return None
        pending, self.pending = self.pending, None
        masked_lm, next_sentence, stop, save, finite, *times, norm, rate, taken = pending.wait()
        self.stop_requested = self.stop_requested or stop > 0
        self.save_requested = self.save_requested or save > 0
        line = pending.line
        line["learning_rate"] = rate
        line["masked_lm_loss"] = masked_lm / pending.global_batch.masked
        line["next_sentence_loss"] = next_sentence / pending.global_batch.samples
        line["loss"] = line["masked_lm_loss"] + line["next_sentence_loss"]
        if not math.isnan(norm):
            line["gradient_norm"] = norm
        if times and all(times):  # 0: a rank that does not measure it
            line["rank_work_ms"] = [round(milliseconds, 2) for milliseconds in times]
        if not taken:
            return self._skip(pending)
        self.skipped = 0
        if not math.isfinite(line["loss"]) or finite < self._processes.ranks:
            raise NotFinite(line["step"], line["loss"], pending.global_batch)
        self.write(line)
        return None

    def _skip(self, pending: _Pending) -> GlobalBatch:
        """Count and write a skipped step."""
        self.skipped += 1
        if self.skipped == MAX_CONSECUTIVE_SKIPS:
            raise WorkError(
                f"{MAX_CONSECUTIVE_SKIPS} steps in a row overflowed in fp16; lower optimizer.learning_rate or "
                "loss_scaling.initial, or use precision fp32, and start again"
            )
        samples = pending.line["samples"] - pending.global_batch.samples
        self.write({"event": "skipped", "step": pending.line["step"], "samples": samples})
        return pending.global_batch

    def write(self, line: dict[str, Any]) -> None:
        """Append a line to the file, on the first rank only. Raises WorkError if it cannot be written."""
        if self._file is None:
            return
        try:
            self._file.write(json.dumps(line) + "\n")
        except OSError as error:
            raise write_error(self._path, error) from None
