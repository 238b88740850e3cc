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
from podium.core.files import unwritable
from podium.planning.batch_plan import GlobalBatch

MOST_SKIPPED = 40  # steps in a row before a run is given up: by then the loss scale is 2**40 times smaller


@dataclass(frozen=True)
class _Pending:
    """A step whose numbers are still on their way to the host."""

    line: dict[str, Any]
    whole: GlobalBatch
    # Sums of both losses, how many ranks ask to stop and to save, and how many have a finite gradient norm; gradient
    # norm, rate, and whether the step was taken: float64 [8] on the host.
    numbers: Tensor
    arrival: dist.Work | torch.cuda.Event

    def arrived(self) -> list[float]:
        if isinstance(self.arrival, torch.cuda.Event):
            self.arrival.synchronize()  # of this step's numbers; the device is in the step after it by now
        else:
            self.arrival.wait()
        values: list[float] = self.numbers.tolist()
        return values


class Metrics:
    """Global losses of every step, summed over ranks while the next step runs, and evaluations.

    Use as a context manager. One step late and on every rank, raises NotFinite for a loss or a gradient that is not
    finite and WorkError for too many steps skipped in a row.
    """

    def __init__(self, path: Path, processes: Processes, skipped: int = 0) -> None:
        """Lines are added to the file. `skipped` steps in a row were the last before it was opened."""
        self._path, self._processes = path, processes
        self._file: IO[str] | None = None
        self.pending: _Pending | None = None  # the step that waits for its numbers
        self.skipped = skipped  # for overflow, since the last step that was taken
        self._flags = torch.eye(2, dtype=torch.float64, device=processes.device)[0]
        self.asked_to_stop, self.asked_to_save = False, False  # by any rank: known to all ranks at once

    @property
    def length(self) -> int:
        """Bytes of the file; 0 on a rank that does not write."""
        return os.fstat(self._file.fileno()).st_size if self._file is not None else 0

    def __enter__(self) -> Self:
        if self._processes.first:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            try:
                self._file = self._path.open("a", encoding="utf-8", buffering=1)
            except OSError as error:
                raise unwritable(self._path, error) from None
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._file is None:
            return
        try:
            self._file.close()
        except OSError as error:  # of a line that the disk did not take, which has been told already
            if kind is None:
                raise unwritable(self._path, error) from None

    def step(
        self, number: int, samples: int, step: Step, result: StepResult, stop: bool = False, save: bool = False
    ) -> None:
        """Take note of a finished step, the `number`-th, after which `samples` have been trained on.

        `stop` and `save`: whether this rank asks all to stop, or to make a checkpoint.
        """
        assert self.pending is None, "the step before is flushed first"
        line = {
            "event": "step",
            "step": number,
            "samples": samples,
            "tokens": step.whole.tokens,
            "slots": step.whole.slots,
            "max_over_mean_tokens": step.whole.max_over_mean_tokens,
        }
        if step.whole.moved:
            line["moved"] = step.whole.moved
        asked = (self._flags[1 - stop], self._flags[1 - save])  # without a copy from the host, which would wait
        sums = (result.masked_lm, result.next_sentence, *asked, result.finite)
        values = (*sums, result.gradient_norm, result.rate, result.taken)
        numbers = torch.stack([value.double() for value in values])
        work = self._processes.begin_total(numbers[: len(sums)])
        if numbers.is_cuda:
            work.wait()  # the stream waits, not the host
            on_host = torch.empty(numbers.shape, dtype=numbers.dtype, pin_memory=True)
            on_host.copy_(numbers, non_blocking=True)
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record()
            self.pending = _Pending(line, step.whole, on_host, event)
        else:
            self.pending = _Pending(line, step.whole, numbers, work)

    def flush(self) -> GlobalBatch | None:
        """Write the step that is still waiting for its numbers. Its batch, if overflow had it skipped."""
        if self.pending is None:
            return None
        pending, self.pending = self.pending, None
        masked_lm, next_sentence, stop, save, finite, norm, rate, taken = pending.arrived()
        self.asked_to_stop = self.asked_to_stop or stop > 0
        self.asked_to_save = self.asked_to_save or save > 0
        line = pending.line
        line["learning_rate"] = rate
        line["masked_lm_loss"] = masked_lm / pending.whole.masked
        line["next_sentence_loss"] = next_sentence / pending.whole.samples
        line["loss"] = line["masked_lm_loss"] + line["next_sentence_loss"]
        if not math.isnan(norm):
            line["gradient_norm"] = norm
        if not taken:
            return self._skip(pending)
        self.skipped = 0
        if not math.isfinite(line["loss"]) or finite < self._processes.ranks:
            raise NotFinite(line["step"], line["loss"], pending.whole)
        self.write(line)
        return None

    def _skip(self, pending: _Pending) -> GlobalBatch:
        self.skipped += 1
        if self.skipped == MOST_SKIPPED:
            raise WorkError(
                f"{MOST_SKIPPED} steps in a row overflowed in fp16; lower optimizer.learning_rate or "
                "loss_scaling.initial, or use precision fp32, and start again"
            )
        samples = pending.line["samples"] - pending.whole.samples
        self.write({"event": "skipped", "step": pending.line["step"], "samples": samples})
        return pending.whole

    def write(self, line: dict[str, Any]) -> None:
        """Add a line to the file. WorkError where the disk does not take it."""
        if self._file is None:
            return
        try:
            self._file.write(json.dumps(line) + "\n")
        except OSError as error:
            raise unwritable(self._path, error) from None
