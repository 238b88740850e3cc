"""One optimizer step: forward and backward of each micro-batch, clipping, update."""

from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_
from torch.optim import Optimizer

from implementations.pytorch.data.loader import Step
from implementations.pytorch.model.loss import LossSums, loss_sums
from implementations.pytorch.optimization.build import set_rate
from implementations.pytorch.optimization.schedule import Schedule
from implementations.pytorch.training.gradient_sync import SyncClock
from implementations.pytorch.training.phases import PhaseClock
from implementations.pytorch.training.precision import autocast
from implementations.pytorch.training.processes import Processes
from podium.config import RunConfig


@dataclass(frozen=True)
class StepResult:
    """Sums of this rank's losses over its share of the global batch, and the global gradient norm before clipping."""

    masked_lm: Tensor
    next_sentence: Tensor
    gradient_norm: Tensor | None


class Stepper:
    """The model, its optimizer and how they take a step."""

    def __init__(
        self,
        config: RunConfig,
        processes: Processes,
        model: DistributedDataParallel,
        clock: SyncClock,
        optimizer: Optimizer,
        schedule: Schedule,
        precision: str,
    ) -> None:
        self.config, self.processes = config, processes
        self.model, self.sync_clock = model, clock
        self.optimizer, self.schedule, self.precision = optimizer, schedule, precision
        self.steps = 0

    def take(self, step: Step, phases: PhaseClock) -> StepResult:
        """Train on one global batch. `step` holds this rank's part of it."""
        set_rate(self.optimizer, self.schedule.rate(self.steps))
        self.optimizer.zero_grad(set_to_none=False)
        sums: list[LossSums] = []
        for number, micro_batch in enumerate(step.micro_batches, start=1):
            last = number == len(step.micro_batches)
            with nullcontext() if last else self.model.no_sync():
                batch = micro_batch.to(self.processes.device)
                with autocast(self.precision, self.processes.device):
                    loss = loss_sums(self.model(batch), batch)
                phases.lap("forward")
                torch.autograd.backward(self._loss(loss, step, batch.masked))
                phases.lap("backward", until=self.sync_clock.last_bucket_ready if last else None)
                phases.lap("synchronisation" if last else "backward")
            sums.append(LossSums(loss.masked_lm.detach(), loss.next_sentence.detach()))
        norm = self._clip()
        self.optimizer.step()
        self.steps += 1
        phases.lap("optimizer")
        return StepResult(
            torch.stack([s.masked_lm for s in sums]).sum(), torch.stack([s.next_sentence for s in sums]).sum(), norm
        )

    def _loss(self, sums: LossSums, step: Step, masked_here: int) -> Tensor:
        """What to differentiate, given that DDP then divides the sum over ranks by their number."""
        if self.config.loss == "global":
            return sums.mean(step.whole.masked, step.whole.samples) * self.processes.ranks
        micro_batches = len(step.micro_batches)
        return sums.mean(masked_here, self.config.local_batch_size // micro_batches) / micro_batches

    def _clip(self) -> Tensor | None:
        if self.config.clipping is None:
            return None
        return clip_grad_norm_(self.model.parameters(), self.config.clipping.max_norm, foreach=True)
