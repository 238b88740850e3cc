"""One optimizer step: forward and backward of each micro-batch, clipping, update. The host waits for no result.

- Dynamic loss scaling for fp16. A step with a gradient that is not finite is skipped: it changes no weights, halves the
  scale, and counts neither as a step nor as samples. The host learns it one step late, like all metrics. Source:
  Micikevicius et al., arXiv 1710.03740, with torch.amp.GradScaler, which does not synchronise with the host if the
  optimizer supports that.
- CUDA graphs: a whole training step as one graph for each shape of its batch (graphs.py).
- Errors for losses and gradients that are not finite, with the samples of the batch.
"""

import json
import math
import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

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
from implementations.pytorch.graphs import StepGraphs
from implementations.pytorch.model.loss import MASKED_LM_EPS, loss_sums
from implementations.pytorch.optim.build import set_rate
from implementations.pytorch.optim.fused import FusedOptimizer
from implementations.pytorch.phase_clock import PhaseClock
from implementations.pytorch.precision import autocast
from implementations.pytorch.profiling import StepProfiler
from podium.config.schema import LossScaling, RunConfig
from podium.core.errors import WorkError
from podium.core.files import write_atomically
from podium.planning.batch_plan import GlobalBatch


class LossScaler(torch.amp.GradScaler):
    """Dynamic loss scaling, with a step and a scale that can be read without synchronising with the host."""

    def __init__(self, settings: LossScaling, device: torch.device, enabled: bool) -> None:
        super().__init__(
            device.type, init_scale=settings.initial, growth_interval=settings.growth_interval, enabled=enabled
        )
        self._one = torch.ones((), device=device)

    @property
    def factor(self) -> Tensor | None:
        """Scale of the gradients (0-d, on the device), or None if disabled. A loss must have been scaled before."""
        return self._get_scale_async() if self._enabled else None

    def _unscale_grads_(
        self, optimizer: Optimizer, inv_scale: Tensor, found_inf: Tensor, allow_fp16: bool
    ) -> dict[torch.device, Tensor]:
        """Check and unscale all gradients. A fused optimizer checks them here and unscales them in its update."""
        if isinstance(optimizer, FusedOptimizer):
            return {inv_scale.device: optimizer.measure_gradients(inv_scale)}
        return super()._unscale_grads_(optimizer, inv_scale, found_inf, allow_fp16)

    def take_step(self, optimizer: Optimizer) -> Tensor:
        """Take the optimizer's step unless a gradient is not finite. Returns 1 if it was taken, else 0 (0-d, float32).

        `unscale_` must have been called: it checks the gradients.
        """
        if not self._enabled:
            optimizer.step()
            return self._one
        # A flag on the device: reading it here would make the host wait for the step.
        found = self._found_inf_per_device(optimizer)
        assert found, "gradients are unscaled before the step"
        found_inf = sum(found.values(), start=torch.zeros_like(self._one))
        self.step(optimizer)
        self.update()
        return self._one - found_inf

    def tensors(self) -> dict[str, Tensor]:
        """Return the live tensors of scale and growth tracker, for checkpoints; none if scaling is disabled."""
        if not self._enabled:
            return {}
        assert self._scale is not None and self._growth_tracker is not None, "a step was taken before"
        return {"scale": self._scale, "growth_tracker": self._growth_tracker}


@dataclass(frozen=True)
class StepResult:
    """Results of a step: 0-d tensors on the device, which may not be computed yet."""

    masked_lm: Tensor  # sum of this rank's losses over its share of the global batch
    next_sentence: Tensor
    gradient_norm: Tensor  # before clipping, of the averaged or of this rank's gradient; NaN without clipping
    rate: Tensor
    taken: Tensor  # 1, or 0 if the step was skipped for an overflow
    finite: Tensor  # 1, or 0 if gradient_norm is not finite: then neither are the weights, if the step was taken
    # Milliseconds of this rank's forward and backward, without waiting for others; NaN on a GPU, where the host's clock
    # does not show it.
    work_ms: Tensor


class Stepper:
    """Runs training steps: model, gradient synchronisation, loss scaling, clipping and optimizer."""

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
        """`rates`: learning rates [steps], float32 on the device; `precision` is resolved, not `auto`."""
        self.config, self.processes = config, processes
        self.model, self.sync = model, sync
        self.optimizer, self.rates, self.precision = optimizer, rates, precision
        assert config.clipping is None or config.clipping.when == "after" or config.clipping == sync.clipping
        self.scaler = LossScaler(config.loss_scaling, processes.device, enabled="fp16" in (precision, sync.wire))
        # Number of steps, without skipped ones. On the device, since the host learns one step late whether a step was
        # skipped, and the next learning rate depends on it.
        self.steps_taken = torch.zeros((), dtype=torch.int64, device=processes.device)
        self.graphs: StepGraphs | None = None
        self.profiler: StepProfiler | None = None
        self._no_norm = torch.full((), float("nan"), device=processes.device)

    def take(self, step: Step, phases: PhaseClock) -> StepResult:
        """Train on one global batch, of which `step` holds this rank's part. Returns without waiting for the device."""
        weights = self.loss_weights(step)
        if self.graphs is not None:
            (batch,) = step.micro_batches
            result = self.graphs.replay(batch, weights[0])
            phases.lap("forward")
            return StepResult(*result)
        batches = [batch.to(self.processes.device) for batch in step.micro_batches]
        return self._train_step(batches, weights.to(self.processes.device, non_blocking=True), phases)

    def use_graphs(self) -> StepGraphs:
        """Replay graphs in all further steps. Returns the graphs, which the caller has to capture."""
        assert self.config.gradient_accumulation_steps == 1
        self.graphs = StepGraphs(self._graph_body, self.processes.device)
        return self.graphs

    def close(self) -> None:
        """Destroy the graphs, which refer to the process group; a second call does nothing."""
        if self.graphs is not None:
            self.graphs.close()

    def loss_weights(self, step: Step) -> Tensor:
        """Return the factors of each micro-batch's loss sums [micro-batches, 2], float32, pinned for a GPU.

        DDP averages gradients over ranks. With `loss: global`, sums are divided by the counts of the global batch, and
        the factor `ranks` cancels DDP's division. With `per_rank`, the loss is the mean of micro-batches' means.
        """
        parts = len(step.micro_batches)
        if self.config.loss == "global":
            ranks = self.processes.ranks
            weights = [(ranks / (step.global_batch.masked + MASKED_LM_EPS), ranks / step.global_batch.samples)] * parts
        else:
            sequences = self.config.local_batch_size
            weights = [(1 / (batch.masked + MASKED_LM_EPS) / parts, 1 / sequences) for batch in step.micro_batches]
        tensor = torch.tensor(weights, dtype=torch.float32)
        return tensor.pin_memory() if self.processes.device.type == "cuda" else tensor

    def _graph_body(self, batch: RaggedBatch, weights: Tensor) -> list[Tensor]:
        """Run the step in the form that a CUDA graph captures: tensors in, tensors out."""
        return list(vars(self._train_step([batch], weights[None], PhaseClock())).values())

    def _train_step(self, batches: list[RaggedBatch], weights: Tensor, phases: PhaseClock) -> StepResult:
        # Indexed on the device, where the step count is. Clamped, since a warm-up may take more steps than the run has.
        rate = self.rates[self.steps_taken.clamp(max=len(self.rates) - 1).view(1)].view(())
        set_rate(self.optimizer, rate)
        # Zeroed in place: DDP's buckets (gradient_as_bucket_view) and captured graphs hold the gradients' addresses.
        # The step of a fused optimizer has done it.
        if not isinstance(self.optimizer, FusedOptimizer):
            self.optimizer.zero_grad(set_to_none=False)
        model = self.model.module
        if model.scaling is not None:
            model.scaling.update()
        kernels = model.model_options.kernels
        sums: list[Tensor] = []
        started = time.perf_counter()
        for number, batch in enumerate(batches):
            model.gradients.accumulate = number > 0
            last = number == len(batches) - 1
            # Gradients of all but the last micro-batch accumulate locally, so that they are sent once a step.
            with nullcontext() if last else self.model.no_sync():
                with self._range("forward"), autocast(self.precision, self.processes.device):
                    parts = loss_sums(self.model(batch), batch, kernels)
                losses = torch.stack([parts.masked_lm, parts.next_sentence])
                phases.lap("forward")
                loss = self.scaler.scale((losses * weights[number]).sum())
                if last:
                    self.sync.begin(self.model, self.scaler.factor)
                with self._range("backward"):
                    torch.autograd.backward(loss)
                if self.profiler is not None:
                    self.profiler.end_synchronisation()
                phases.lap("backward", until=self.sync.last_bucket_ready if last else None)
                phases.lap("synchronisation" if last else "backward")
            sums.append(losses.detach())
        work_ms = self._work_ms(1000 * (self.sync.last_bucket_ready - started))
        # Unscaled before clipping, so that the norm is compared with max_norm in true units. Gradients are averaged
        # over ranks by now, so all ranks detect the same overflow and skip the same step.
        with self._range("optimizer"):
            self.scaler.unscale_(self.optimizer)
            norm = self._clip()
            taken = self.scaler.take_step(self.optimizer)
            self.steps_taken += taken.to(torch.int64)
        phases.lap("optimizer")
        masked_lm, next_sentence = torch.stack(sums).sum(0).unbind()
        finite = torch.ones_like(norm) if self.config.clipping is None else torch.isfinite(norm).to(norm.dtype)
        return StepResult(masked_lm, next_sentence, norm, rate, taken, finite, work_ms)

    def _range(self, name: str) -> AbstractContextManager[object]:
        return nullcontext() if self.profiler is None else self.profiler.range(name)

    def _work_ms(self, milliseconds: float) -> Tensor:
        return self._no_norm if self.processes.device.type == "cuda" else torch.tensor(milliseconds)

    def _clip(self) -> Tensor:
        """Clip the averaged gradient by its global norm, if configured. Returns the norm before clipping (0-d).

        With `before` and `bucket` the synchronisation hooks have clipped already, and the norm is this rank's.
        """
        if self.config.clipping is None:
            return self._no_norm
        if self.config.clipping.when == "after":
            if isinstance(self.optimizer, FusedOptimizer):
                return self.optimizer.clip_gradients(self.config.clipping.max_norm)
            return clip_grad_norm_(self.model.parameters(), self.config.clipping.max_norm, foreach=True)
        return self.sync.local_norm()


MAX_LISTED_SAMPLES = 4


class NotFinite(WorkError):
    """The loss or the gradient of a step is not finite. All ranks raise it together, one step late."""

    def __init__(self, step: int, loss: float, global_batch: GlobalBatch) -> None:
        """`loss` of step `step`, trained on `whole`. If it is finite, the error is about the gradient."""
        what = "gradient" if math.isfinite(loss) else "loss"
        super().__init__(f"the {what} of step {step} is {'not finite' if math.isfinite(loss) else loss}")
        self.step, self.loss, self.global_batch = step, loss, global_batch


def error_with_samples(error: NotFinite, store: SampleStore, path: Path) -> WorkError:
    """Return the error with the first samples of the batch in its message; writes all of them to `path`, by rank."""
    global_batch, ranks = error.global_batch, len(error.global_batch.micro_batch_slots)
    samples = []
    for rank in range(ranks):
        for micro_batch, part in enumerate(global_batch.micro_batches(rank)):
            for index in global_batch.indices[part].tolist():
                shard, number = store.locate(index)
                place = {"shard": str(store.paths[shard]), "sample_of_shard": number}
                samples.append({"rank": rank, "micro_batch": micro_batch, "index": index, **place})
    write_atomically(
        path, json.dumps({"step": error.step, "loss": str(error.loss), "samples": samples}, indent=1) + "\n"
    )
    named = ", ".join(
        f"{sample['index']} ({Path(str(sample['shard'])).name} {sample['sample_of_shard']})"
        for sample in samples[:MAX_LISTED_SAMPLES]
    )
    more = f" and {len(samples) - MAX_LISTED_SAMPLES} more" if len(samples) > MAX_LISTED_SAMPLES else ""
    return WorkError(
        f"{error} on samples {named}{more}, all of which are in {path}; "
        "lower optimizer.learning_rate or use precision fp32, and start again"
    )
