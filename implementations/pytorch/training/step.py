"""One optimizer step: forward and backward of each micro-batch, clipping, update. The host waits for nothing in it."""

from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from implementations.pytorch.data.batch import RaggedBatch
from implementations.pytorch.data.reading import Step
from implementations.pytorch.model.loss import MASKED_LM_EPS, loss_sums
from implementations.pytorch.optimization.build import set_rate
from implementations.pytorch.training.clipping import clip_averaged
from implementations.pytorch.training.gradient_sync import GradientSync
from implementations.pytorch.training.graphs import StepGraphs
from implementations.pytorch.training.phases import PhaseClock
from implementations.pytorch.training.precision import autocast
from implementations.pytorch.training.processes import Processes
from implementations.pytorch.training.scaling import LossScaler
from podium.config import RunConfig


@dataclass(frozen=True)
class StepResult:
    """What is known of a step once the device has taken it: tensors of no dimension that nobody has waited for.

    Sums of this rank's losses over its share of the global batch, the norm of the gradient before clipping (NaN without
    clipping; the averaged gradient's where that is clipped, else this rank's own), the rate, and 1 where the step was
    taken or 0 where overflow had it skipped.
    """

    masked_lm: Tensor
    next_sentence: Tensor
    gradient_norm: Tensor
    rate: Tensor
    taken: Tensor


class Stepper:
    """The model, its optimizer and how they take a step."""

    def __init__(
        self,
        config: RunConfig,
        processes: Processes,
        model: DistributedDataParallel,
        sync: GradientSync,
        optimizer: Optimizer,
        rates: Tensor,
        precision: str,
    ) -> None:
        """`rates` [steps] float32 on the device; `precision` is resolved."""
        self.config, self.processes = config, processes
        self.model, self.sync = model, sync
        self.optimizer, self.rates, self.precision = optimizer, rates, precision
        assert config.clipping is None or config.clipping.when == "after" or config.clipping == sync.clipping
        self.scaler = LossScaler(config.loss_scaling, processes.device, enabled="fp16" in (precision, sync.wire))
        self.taken = torch.zeros((), dtype=torch.int64, device=processes.device)
        self.graphs: StepGraphs | None = None
        self._no_norm = torch.full((), float("nan"), device=processes.device)

    @property
    def steps(self) -> int:
        """Steps taken, those skipped for overflow not counted. Waits for the device."""
        return int(self.taken)

    def take(self, step: Step, phases: PhaseClock) -> StepResult:
        """Train on one global batch. `step` holds this rank's part of it."""
        weights = self.loss_weights(step)
        if self.graphs is not None:
            (batch,) = step.micro_batches
            result = self.graphs.replay(batch, weights[0])
            phases.lap("forward")
            return StepResult(*result)
        batches = [batch.to(self.processes.device) for batch in step.micro_batches]
        return self._take(batches, weights.to(self.processes.device, non_blocking=True), phases)

    def use_graphs(self) -> StepGraphs:
        """From now on take steps by replaying graphs, which are still to be captured."""
        assert self.config.gradient_accumulation_steps == 1
        self.graphs = StepGraphs(self._whole, self.processes.device)
        return self.graphs

    def loss_weights(self, step: Step) -> Tensor:
        """What each micro-batch's loss sums are multiplied by [micro-batches, 2], in pinned memory for a GPU.

        DDP then divides the sum of gradients over ranks by their number. With the global loss, sums over the whole
        batch are divided by its own counts; else it is the mean of micro-batches' means.
        """
        parts = len(step.micro_batches)
        if self.config.loss == "global":
            ranks = self.processes.ranks
            weights = [(ranks / (step.whole.masked + MASKED_LM_EPS), ranks / step.whole.samples)] * parts
        else:
            sequences = self.config.local_batch_size
            weights = [(1 / (batch.masked + MASKED_LM_EPS) / parts, 1 / sequences) for batch in step.micro_batches]
        tensor = torch.tensor(weights, dtype=torch.float32)
        return tensor.pin_memory() if self.processes.device.type == "cuda" else tensor

    def _whole(self, batch: RaggedBatch, weights: Tensor) -> list[Tensor]:
        """The step as a CUDA graph records it."""
        return list(vars(self._take([batch], weights[None], PhaseClock())).values())

    def _take(self, batches: list[RaggedBatch], weights: Tensor, phases: PhaseClock) -> StepResult:
        rate = self.rates[self.taken.clamp(max=len(self.rates) - 1).view(1)].view(())
        set_rate(self.optimizer, rate)
        self.optimizer.zero_grad(set_to_none=False)
        kernels = self.model.module.making.kernels
        sums: list[Tensor] = []
        for number, batch in enumerate(batches):
            last = number == len(batches) - 1
            with nullcontext() if last else self.model.no_sync():
                with autocast(self.precision, self.processes.device):
                    parts = loss_sums(self.model(batch), batch, kernels)
                losses = torch.stack([parts.masked_lm, parts.next_sentence])
                phases.lap("forward")
                loss = self.scaler.scale((losses * weights[number]).sum())
                if last:
                    self.sync.begin(self.model, self.scaler.factor)
                torch.autograd.backward(loss)
                phases.lap("backward", until=self.sync.last_bucket_ready if last else None)
                phases.lap("synchronisation" if last else "backward")
            sums.append(losses.detach())
        self.scaler.unscale(self.optimizer)
        norm = self._clip()
        taken = self.scaler.step(self.optimizer)
        self.taken += taken.to(torch.int64)
        phases.lap("optimizer")
        masked_lm, next_sentence = torch.stack(sums).sum(0).unbind()
        return StepResult(masked_lm, next_sentence, norm, rate, taken)

    def _clip(self) -> Tensor:
        """Clip what is not yet clipped. The norm before clipping."""
        if self.config.clipping is None:
            return self._no_norm
        if self.config.clipping.when == "after":
            return clip_averaged(self.model.parameters(), self.config.clipping.max_norm)
        return self.sync.local_norm()
