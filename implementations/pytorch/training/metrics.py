"""Per-step metrics as JSON lines, written by the first rank one step late so that no step waits for its own numbers."""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Self

import torch
import torch.distributed as dist
from torch import Tensor

from benchmarks.errors import WorkError
from implementations.pytorch.data.loader import GlobalBatch, Step
from implementations.pytorch.training.processes import Processes
from implementations.pytorch.training.step import StepResult


@dataclass(frozen=True)
class _Pending:
    """A step whose sums are still on their way."""

    line: dict[str, Any]
    whole: GlobalBatch
    sums: Tensor
    work: dist.Work
    norm: Tensor | None


class Metrics:
    """Global losses of every step, summed over ranks while the next step runs, and evaluations.

    Use as a context manager. Raises WorkError on every rank for a loss that is not a finite number, one step late.
    """

    def __init__(self, path: Path, processes: Processes) -> None:
        self._path, self._processes = path, processes
        self._file: IO[str] | None = None
        self._pending: _Pending | None = None

    def __enter__(self) -> Self:
        if self._processes.first:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self._path.open("w", encoding="utf-8", buffering=1)
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    def step(self, number: int, step: Step, result: StepResult, rate: float) -> None:
        """Take note of a finished step, and write the one before it."""
        self.flush()
        sums = torch.stack([result.masked_lm, result.next_sentence]).double()
        work = dist.all_reduce(sums, async_op=True)
        assert work is not None
        line = {
            "event": "step",
            "step": number,
            "samples": step.whole.first_sample + step.whole.samples,
            "learning_rate": rate,
            "tokens": step.whole.tokens,
            "slots": step.whole.slots,
            "max_over_mean_tokens": step.whole.max_over_mean_tokens,
        }
        self._pending = _Pending(line, step.whole, sums, work, result.gradient_norm)

    def flush(self) -> None:
        """Write the step that is still waiting for its sums."""
        if self._pending is None:
            return
        pending, self._pending = self._pending, None
        pending.work.wait()
        masked_lm, next_sentence = pending.sums.tolist()
        line = pending.line
        line["masked_lm_loss"] = masked_lm / pending.whole.masked
        line["next_sentence_loss"] = next_sentence / pending.whole.samples
        line["loss"] = line["masked_lm_loss"] + line["next_sentence_loss"]
        if pending.norm is not None:
            line["gradient_norm"] = float(pending.norm)
        if not math.isfinite(line["loss"]):
            raise WorkError(
                f"the loss of step {line['step']} is {line['loss']}; "
                "lower optimizer.learning_rate or use precision fp32, and start again"
            )
        self.write(line)

    def write(self, line: dict[str, Any]) -> None:
        if self._file is not None:
            self._file.write(json.dumps(line) + "\n")
