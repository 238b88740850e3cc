"""Setup of a run from its configuration: model, optimizer, sample order, and warm-up before the clock starts.

Weights may be loaded from a checkpoint made with `podium data checkpoint`. The warm-up runs one-time work (kernel
compilation, memory allocation, DDP's buckets, CUDA graph capture) on synthetic data, and restores all state.
"""

import copy
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.bert.checkpoint.podium import PodiumCheckpoint
from benchmarks.bert.sizes import Size
from benchmarks.bert.store import JoinedStores
from implementations.pytorch.data.synthetic import synthetic_step
from implementations.pytorch.distributed.gradient_sync import wrap_ddp
from implementations.pytorch.distributed.process_group import Processes
from implementations.pytorch.evaluation import evaluate
from implementations.pytorch.kernels.choose import load_kernels, resolve_kernels
from implementations.pytorch.model.attention.selection import resolve_attention
from implementations.pytorch.model.attention.varlen import LENGTH_STEP
from implementations.pytorch.model.bert import BertForPreTraining, ModelOptions
from implementations.pytorch.model.decoder import vocabulary_multiple
from implementations.pytorch.optim.build import build_optimizer
from implementations.pytorch.optim.schedule import rate_table
from implementations.pytorch.phase_clock import PhaseClock
from implementations.pytorch.precision import COMPUTE_TYPES, resolve_precision
from implementations.pytorch.step import Stepper
from podium.config.schema import RunConfig, TrainingPhase
from podium.core.errors import UsageError
from podium.planning.balancing.interface import AssignmentSpec
from podium.planning.batch_plan import SHAPE_STEPS, LengthIndex, RunShapes, TrainingOrder
from podium.planning.samplers import Phase


@torch.no_grad()
def load_checkpoint(model: BertForPreTraining, path: Path) -> None:
    """Copy all weights of a Podium checkpoint into the model, in place, one tensor at a time.

    Raises UsageError for a checkpoint that is missing or has another size or vocabulary, WorkError for a damaged one.
    """
    checkpoint = PodiumCheckpoint(path)
    checkpoint.require_model_size(model.size, model.vocabulary)
    weights = model.state_dict()
    assert sorted(weights) == sorted(checkpoint.names), "checkpoint and model have the same tensor names"
    for name, weight in weights.items():  # never two copies of all weights in memory
        values = torch.from_numpy(checkpoint.read(name))
        assert weight.shape == values.shape
        weight.copy_(values)


# Attention backends whose kernel launches depend on the shape of a batch only, not on the lengths in it: a CUDA graph
# replays the recorded launches with the recorded arguments. Flash attention's grid follows from the maximum length and
# the number of sequences. cuDNN's plan follows from these and the strides; it reads the lengths, the offsets and the
# dropout seed on the device, all of which are computed there in the graph. Its plans are kept for the life of the
# process, since graphs refer to their kernels, and are built in the warm-up, before a capture.
GRAPH_ATTENTION = ("cudnn", "flash")


def model_options(
    config: RunConfig, precision: str, device: torch.device, processes: Processes | None = None
) -> ModelOptions:
    """Return the model's options: attention backend, kernels, linear layer. A collective operation with `processes`.

    Raises UsageError for a backend that the device does not support.
    """
    kernels = resolve_kernels(config.kernels, device)
    if precision == "fp8" and kernels != "triton":
        raise UsageError(f"kernels: found {config.kernels} with precision fp8, which needs auto or triton")
    attention = resolve_attention(config.attention, device, COMPUTE_TYPES[precision], processes)
    if config.capacity_overflow is not None and attention == "nested":
        raise UsageError(
            "capacity_overflow is set, but attention auto is nested on this GPU, which has no flash attention; "
            "remove capacity_overflow, or set attention to grouped"
        )
    return ModelOptions(
        attention=attention,
        kernels=load_kernels(kernels),
        use_torch_compile=kernels == "compiled",
        last_layer=config.last_layer,
        fused_layers=kernels == "triton",
        fp8=precision == "fp8",
        loss_scale=config.loss_scaling.initial if "fp16" in (precision, config.wire) else 1.0,
        vocabulary_multiple=vocabulary_multiple(device),
    )


def build_stepper(config: RunConfig, processes: Processes, vocabulary_size: int, size: Size | None = None) -> Stepper:
    """Build the model in DDP, its gradient synchronisation, optimizer and learning-rate table.

    Initial weights are equal on all ranks, dropout masks differ. `size` replaces the configured model size.
    """
    assert config.seed is not None
    precision = resolve_precision(config.precision, processes.device)
    torch.manual_seed(config.seed)  # the same on all ranks, so that all draw the same weights
    model = BertForPreTraining(
        size or config.model_size,
        vocabulary_size,
        dropout_probability=config.dropout,
        model_options=model_options(config, precision, processes.device, processes),
    )
    if config.initial_checkpoint is not None:
        load_checkpoint(model, config.initial_checkpoint)
    model.to(processes.device)
    # Reseeded per rank after the weights: with equal dropout masks, the gradients' noise would not average out.
    dropout_seed = np.random.SeedSequence([config.seed, processes.rank]).generate_state(1, np.uint32)
    torch.manual_seed(int(dropout_seed[0]))
    ddp, sync = wrap_ddp(model, processes.device, config.clipping, config.wire, config.gradient_bucket_mib)
    fused = resolve_kernels(config.kernels, processes.device) == "triton"
    optimizer = build_optimizer(model, config.optimizer, fused)
    rates = rate_table(config.optimizer, config.steps, processes.device)
    return Stepper(config, processes, ddp, sync, optimizer, rates, precision)


def build_order(
    config: RunConfig, store: LengthIndex, vocabulary_size: int, device: torch.device, seed: int | None = None
) -> TrainingOrder:
    """Return the order of global batches and their assignment to ranks. `seed` replaces the configured one."""
    seed = config.seed if seed is None else seed
    assert seed is not None
    return TrainingOrder(
        store,
        seed=seed,
        strategy=config.balancing,
        global_batch_size=config.global_batch_size,
        spec=AssignmentSpec.of_config(
            config, config.model_size.relative_costs(vocabulary_size), store.max_sequence_length
        ),
        accumulation_steps=config.gradient_accumulation_steps,
        shape_step=config.shape_step or SHAPE_STEPS[device.type],
        attention_widths=config.attention_widths,
        capacity_overflow=config.capacity_overflow,
        shards=config.shards,
        phases=[_sampling_phase(config, phase, store) for phase in config.phases],
        strata_counts=config.strata_counts,
    )


def _sampling_phase(config: RunConfig, phase: TrainingPhase, store: LengthIndex) -> Phase:
    """Convert a configured phase to a sampler's; a phase without a store uses data.store, the first joined store."""
    start, stop = 0, None
    if isinstance(store, JoinedStores):
        start, stop = store.range_of(config.stores.index(phase.store) if phase.store else 0)
    return Phase(
        phase.max_sequence_length or store.max_sequence_length,
        config.phase_samples(phase),
        start,
        stop,
        phase.gradient_accumulation_steps,
    )


def uses_graphs(config: RunConfig, device: torch.device) -> bool:
    """Whether steps are replayed as CUDA graphs on this device.

    Raises UsageError if `cuda_graph: step` is configured and graphs are not possible.
    """
    attention: str = config.attention
    if attention == "auto":
        precision = resolve_precision(config.precision, device)
        attention = resolve_attention(attention, device, COMPUTE_TYPES[precision])
    return replays_graphs(config, device.type, attention)


def replays_graphs(config: RunConfig, device: str, attention: str) -> bool:
    """`uses_graphs` for a device type, `cpu` or `cuda`, and a resolved attention backend; needs no such device."""
    obstacle = (
        f"launch.device is {device}, and CUDA graphs need cuda"
        if device != "cuda"
        else f"attention is {attention}, and graphs need one of {', '.join(GRAPH_ATTENTION)}"
        if attention not in GRAPH_ATTENTION
        else f"shape_step is {config.shape_step}, and graphs need {LENGTH_STEP} or less"
        if (config.shape_step or 0) > LENGTH_STEP
        else "balancing gives ranks different numbers of sequences, and graphs need equal numbers"
        if config.capacity_overflow is None and (config.balancing == "packed" or config.balancing_counts == "free")
        else "graphs need gradient_accumulation_steps 1"
        if config.max_accumulation_steps != 1
        else None
    )
    if config.cuda_graph == "step" and obstacle:
        raise UsageError(f"cuda_graph: found step, but {obstacle}; allowed here are auto and none")
    return config.cuda_graph != "none" and obstacle is None


WARM_UP_STEPS = 3
# Eager steps before the first capture. DDP rebuilds its buckets after the first backward pass; PyTorch's documentation
# of CUDA graphs with DDP requires at least 11 iterations before a capture.
GRAPH_WARM_UP_STEPS = 11


def warm_up(
    stepper: Stepper,
    order: TrainingOrder,
    vocabulary_size: int,
    steps: int = WARM_UP_STEPS,
    graph_shapes: RunShapes | None = None,
) -> None:
    """Run steps and an evaluation on synthetic batches of each phase's first shapes, and restore all state.

    With `graph_shapes` a CUDA graph is captured for every shape of the run, and the stepper replays graphs afterwards.
    Sample lengths come from the run's order, so the shapes are the run's. Reads the length index only, no samples,
    since MLPerf does not allow touching training data before run_start.
    """
    saved, processes = _snapshot(stepper), stepper.processes
    first_steps = [first for first in order.first_steps() if first < stepper.config.steps]
    of_phases = [(first + number, processes.rank) for first in first_steps for number in range(steps)]
    # Every rank captures the same shapes in the same order, those of all ranks: a step and its capture are collectives,
    # and a rank with one more would wait for the others until the timeout.
    chosen = list(graph_shapes.examples.values()) if graph_shapes else of_phases
    masked_slots = graph_shapes.masked_slots if graph_shapes else None
    examples = [synthetic_step(order, number, rank, vocabulary_size, masked_slots) for number, rank in chosen]
    for number in range(max(GRAPH_WARM_UP_STEPS, len(examples)) if graph_shapes else len(examples)):
        stepper.take(examples[number % len(examples)], PhaseClock())
    # Evaluation batches have the full sequence length, so the largest example stands for them.
    longest = max(examples, key=lambda example: sum(batch.slots for batch in example.micro_batches))
    evaluate(stepper.model.module, list(longest.micro_batches), processes, stepper.precision)
    if graph_shapes:
        graphs = stepper.use_graphs()
        # Captured before the state is restored: a capture records launches and computes nothing, but graphs hold the
        # addresses of parameters, gradients and optimizer state, so those must be restored in place.
        for example in examples:
            graphs.capture(example.micro_batches[0], stepper.loss_weights(example)[0])
    _restore(stepper, saved)


def _snapshot(stepper: Stepper) -> dict[str, Any]:
    """Copy everything that a step changes, random states included, except fp8 scales.

    The scales that the warm-up has found on synthetic samples are right for the first step, better than any guess.
    """
    return {
        "model": copy.deepcopy(stepper.model.state_dict()),
        "optimizer": copy.deepcopy(stepper.optimizer.state_dict()["state"]),
        "group_steps": [copy.deepcopy(group.get("step")) for group in stepper.optimizer.param_groups],
        "rates": [group["lr"].clone() for group in stepper.optimizer.param_groups],
        "scaler": stepper.scaler.state_dict(),
        "steps_taken": stepper.steps_taken.clone(),
        "random": torch.get_rng_state(),
        "device_random": torch.cuda.get_rng_state() if stepper.processes.device.type == "cuda" else None,
    }


@torch.no_grad()
def _restore(stepper: Stepper, saved: dict[str, Any]) -> None:
    """Restore a snapshot in place, since CUDA graphs hold the addresses of these tensors.

    Optimizer state that did not exist before the warm-up becomes zero, which is how optimizers initialise it.
    """
    stepper.model.load_state_dict(saved["model"])
    optimizer = stepper.optimizer
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for number, parameter in enumerate(parameters):
        before = saved["optimizer"].get(number, {})
        for key, value in optimizer.state[parameter].items():
            value.copy_(before.get(key, torch.zeros_like(value)))
    for group, steps, rate in zip(optimizer.param_groups, saved["group_steps"], saved["rates"], strict=True):
        if "step" in group:
            group["step"].copy_(torch.zeros_like(group["step"]) if steps is None else steps)
        group["lr"].copy_(rate)
    optimizer.zero_grad(set_to_none=False)  # gradients stay allocated: DDP's buckets and graphs point to them
    scaling, scale = stepper.model.module.scaling, stepper.scaler.get_scale()
    stepper.scaler.load_state_dict(saved["scaler"])
    if scaling is not None and stepper.scaler.get_scale() != scale:
        # Overflows of the warm-up have lowered the loss scale, and with it the gradients' magnitudes.
        scaling.change_loss_scale(stepper.scaler.get_scale() / scale)
    stepper.steps_taken.copy_(saved["steps_taken"])
    torch.set_rng_state(saved["random"])
    if saved["device_random"] is not None:
        torch.cuda.set_rng_state(saved["device_random"])
