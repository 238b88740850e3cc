"""One optimizer step: forward and backward of each micro-batch, clipping, update; the host waits for no result.

- Dynamic loss scaling for fp16. A step whose gradients are not all finite changes nothing, halves the scale and counts
  neither as a step nor as samples; the host knows it one step late, as all metrics. Source: Micikevicius et al., arXiv
  1710.03740, by torch.amp.GradScaler, which does not synchronize with the host if the optimizer supports that.
- CUDA graphs: a whole training step as one graph for each shape of its batch, one launch in place of thousands.
  Source: the whole-network capture of PyTorch's CUDA graph documentation. A graph reads static tensors that each
  step's batch is copied into, and writes tensors that the next replay overwrites, so results are copied out. All
  graphs share one memory pool, which is safe because no two of them ever run at the same time.
- Losses that are not finite: which samples the batch was made of.
"""

import json
import math
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_
from torch.optim import Optimizer

from benchmarks.bert.store import SampleStore
from implementations.pytorch.data.batch import RaggedBatch
from implementations.pytorch.data.reader import Step
from implementations.pytorch.distributed.gradient_sync import GradientSync
from implementations.pytorch.distributed.process_group import Processes
from implementations.pytorch.model.loss import MASKED_LM_EPS, loss_sums
from implementations.pytorch.optim.build import set_rate
from implementations.pytorch.phase_clock import PhaseClock
from implementations.pytorch.precision import autocast
from podium.config.schema import LossScaling, RunConfig
from podium.core.errors import WorkError
from podium.core.files import write_whole
from podium.planning.batch_plan import GlobalBatch

Body = Callable[[RaggedBatch, Tensor], list[Tensor]]  # a batch and its loss weights → numbers (0-d), on the device


@dataclass(frozen=True)
class _Captured:
    graph: torch.cuda.CUDAGraph
    inputs: list[Tensor]
    outputs: list[Tensor]


class StepGraphs:
    """The graphs of a run, by shape."""

    def __init__(self, body: Body, device: torch.device) -> None:
        self._body, self._device = body, device
        self._captured: dict[tuple[int, ...], _Captured] = {}
        self._pool: Any = None
        self._stream = torch.cuda.current_stream(device) if device.type == "cuda" else None

    def __len__(self) -> int:
        return len(self._captured)

    def capture(self, batch: RaggedBatch, weights: Tensor) -> None:
        """Record the step for batches of this shape. Nothing is computed; the step must have been taken once before."""
        if batch.shape in self._captured:
            return
        static, weights = batch.with_tensors(lambda t: t.to(self._device).clone()), weights.to(self._device).clone()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
            outputs = self._body(static, weights)
        self._pool = graph.pool()
        self._captured[batch.shape] = _Captured(graph, [*static.tensors(), weights], outputs)

    def replay(self, batch: RaggedBatch, weights: Tensor) -> list[Tensor]:
        """Take a step with a batch of a captured shape, on the host or the device."""
        captured = self._captured[batch.shape]
        torch._foreach_copy_(captured.inputs, [*batch.tensors(), weights], non_blocking=True)
        captured.graph.replay()
        return [output.clone() for output in captured.outputs]


class LossScaler(torch.amp.GradScaler):
    def __init__(self, settings: LossScaling, device: torch.device, enabled: bool) -> None:
        super().__init__(
            device.type, init_scale=settings.initial, growth_interval=settings.growth_interval, enabled=enabled
        )
        self._one = torch.ones((), device=device)

    @property
    def factor(self) -> Tensor | None:
        """What gradients are multiplied by until they are unscaled (0-d, on the device), once a loss was scaled."""
        return self._get_scale_async() if self._enabled else None

    def take_step(self, optimizer: Optimizer) -> Tensor:
        """Take the optimizer's step unless a gradient is not finite. 1 where it was taken, else 0 (0-d, float32).

        Gradients are unscaled before: only that finds out which it is.
        """
        if not self._enabled:
            optimizer.step()
            return self._one
        found = self._found_inf_per_device(optimizer)
        assert found, "gradients are unscaled before the step"
        found_inf = sum(found.values(), start=torch.zeros_like(self._one))
        self.step(optimizer)
        self.update()
        return self._one - found_inf

    def tensors(self) -> dict[str, Tensor]:
        """The scale and how long it has been held, where they live; none where losses are not scaled."""
        if not self._enabled:
            return {}
        assert self._scale is not None and self._growth_tracker is not None, "a step was taken"
        return {"scale": self._scale, "growth_tracker": self._growth_tracker}


@dataclass(frozen=True)
class StepResult:
    """Numbers of a step on the device, not waited for (0-d each)."""

    masked_lm: Tensor  # sums of this rank's losses over its share of the global batch
    next_sentence: Tensor
    gradient_norm: Tensor  # before clipping: of what is clipped, averaged or this rank's own; NaN without clipping
    rate: Tensor
    taken: Tensor  # 1, or 0 where overflow had the step skipped
    finite: Tensor  # 1, or 0 where that norm is not finite, so that the weights are not either if the step was taken


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
        self.taken = torch.zeros((), dtype=torch.int64, device=processes.device)  # steps, without skipped ones
        self.graphs: StepGraphs | None = None
        self._no_norm = torch.full((), float("nan"), device=processes.device)

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
        self.scaler.unscale_(self.optimizer)  # which finds out whether all gradients are finite
        norm = self._clip()
        taken = self.scaler.take_step(self.optimizer)
        self.taken += taken.to(torch.int64)
        phases.lap("optimizer")
        masked_lm, next_sentence = torch.stack(sums).sum(0).unbind()
        finite = torch.ones_like(norm) if self.config.clipping is None else torch.isfinite(norm).to(norm.dtype)
        return StepResult(masked_lm, next_sentence, norm, rate, taken, finite)

    def _clip(self) -> Tensor:
        """Clip what is not yet clipped. The norm before clipping."""
        if self.config.clipping is None:
            return self._no_norm
        if self.config.clipping.when == "after":
            return clip_grad_norm_(self.model.parameters(), self.config.clipping.max_norm, foreach=True)
        return self.sync.local_norm()


MOST_NAMED = 4


class NotFinite(WorkError):
    """The loss or the gradient of a step is not finite. All ranks find it out together, one step late."""

    def __init__(self, step: int, loss: float, whole: GlobalBatch) -> None:
        """A finite loss says that the gradient is not."""
        what = "gradient" if math.isfinite(loss) else "loss"
        super().__init__(f"the {what} of step {step} is {'not finite' if math.isfinite(loss) else loss}")
        self.step, self.loss, self.whole = step, loss, whole


def with_samples(error: NotFinite, store: SampleStore, path: Path) -> WorkError:
    """The failure with the samples of the batch: all of them are written to `path`, by rank."""
    whole, ranks = error.whole, len(error.whole.micro_batch_slots)
    samples = []
    for rank in range(ranks):
        for micro_batch, part in enumerate(whole.micro_batches(rank)):
            for index in whole.indices[part].tolist():
                shard, number = store.place_of(index)
                place = {"shard": str(store.paths[shard]), "sample_of_shard": number}
                samples.append({"rank": rank, "micro_batch": micro_batch, "index": index, **place})
    write_whole(path, json.dumps({"step": error.step, "loss": str(error.loss), "samples": samples}, indent=1) + "\n")
    named = ", ".join(
        f"{sample['index']} ({Path(str(sample['shard'])).name} {sample['sample_of_shard']})"
        for sample in samples[:MOST_NAMED]
    )
    more = f" and {len(samples) - MOST_NAMED} more" if len(samples) > MOST_NAMED else ""
    return WorkError(
        f"{error} on samples {named}{more}, all of which are in {path}; "
        "lower optimizer.learning_rate or use precision fp32, and start again"
    )
