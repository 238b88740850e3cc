"""Setup of a run from its configuration: model, optimizer, sample order, and warm-up before the clock starts.

Weights may be loaded from a checkpoint made with `podium data checkpoint`. The warm-up does on synthetic data all
that a first step has to do once, and its effect on weights and optimizer is undone.
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
from implementations.pytorch.distributed.gradient_sync import synchronised
from implementations.pytorch.distributed.process_group import Processes
from implementations.pytorch.evaluation import evaluate
from implementations.pytorch.kernels.choose import load_kernels, resolve_kernels
from implementations.pytorch.model.attention.dispatch import resolve_attention
from implementations.pytorch.model.attention.varlen import LENGTH_STEP
from implementations.pytorch.model.bert import BertForPreTraining, Making
from implementations.pytorch.model.linear import Fp8Linear, Linear
from implementations.pytorch.optim.build import build_optimizer
from implementations.pytorch.optim.schedule import rate_table
from implementations.pytorch.phase_clock import PhaseClock
from implementations.pytorch.precision import COMPUTE_TYPES, resolve_precision
from implementations.pytorch.step import Stepper
from podium.config.schema import RunConfig, TrainingPhase
from podium.core.errors import UsageError
from podium.planning.balancing.interface import Deal
from podium.planning.batch_plan import SHAPE_STEPS, LengthIndex, RunShapes, TrainingOrder
from podium.planning.samplers import Phase


@torch.no_grad()
def load_checkpoint(model: BertForPreTraining, path: Path) -> None:
    """Replace every weight of the model by the checkpoint's, one tensor at a time.

    Raises UsageError for a checkpoint that is missing or of another size or vocabulary, WorkError for a damaged one.
    """
    checkpoint = PodiumCheckpoint(path)
    checkpoint.require(model.size, model.vocabulary)
    weights = model.state_dict()
    assert sorted(weights) == sorted(checkpoint.names), "the table of names is that of the model"
    for name, weight in weights.items():
        values = torch.from_numpy(checkpoint.read(name))
        assert weight.shape == values.shape
        weight.copy_(values)


GRAPH_ATTENTION = ("flash",)  # backends whose launches are the same for all batches of a shape, as graphs need


def making(config: RunConfig, precision: str, device: torch.device) -> Making:
    """How the configuration has the model computed. Raises UsageError for what this device cannot do."""
    kernels = resolve_kernels(config.kernels, device)
    attention = resolve_attention(config.attention, device, COMPUTE_TYPES[precision])
    if config.capacity_overflow is not None and attention == "nested":
        raise UsageError(
            "capacity_overflow is set, but attention auto is nested on this GPU, which has no flash attention; "
            "leave capacity_overflow out, or set attention to grouped"
        )
    return Making(
        attention=attention,
        kernels=load_kernels(kernels),
        compiles=kernels == "compiled",
        last_layer=config.last_layer,
        linear=Fp8Linear if precision == "fp8" else Linear,
    )


def build_stepper(config: RunConfig, processes: Processes, words: int, size: Size | None = None) -> Stepper:
    """A model of `words` words with its start, in DDP, and its optimizer.

    Weights are drawn alike on all ranks; dropout then draws differently on each. `size` replaces the configured one.
    """
    assert config.seed is not None
    precision = resolve_precision(config.precision, processes.device)
    torch.manual_seed(config.seed)
    model = BertForPreTraining(
        size or config.model_size,
        words,
        dropout_probability=config.dropout,
        making=making(config, precision, processes.device),
    )
    if config.initial_checkpoint is not None:
        load_checkpoint(model, config.initial_checkpoint)
    model.to(processes.device)
    dropout_seed = np.random.SeedSequence([config.seed, processes.rank]).generate_state(1, np.uint32)
    torch.manual_seed(int(dropout_seed[0]))
    ddp, sync = synchronised(model, processes.device, config.clipping, config.wire, config.gradient_bucket_mib)
    optimizer = build_optimizer(model, config.optimizer)
    rates = rate_table(config.optimizer, config.steps, processes.device)
    return Stepper(config, processes, ddp, sync, optimizer, rates, precision)


def build_order(
    config: RunConfig, store: LengthIndex, words: int, device: torch.device, seed: int | None = None
) -> TrainingOrder:
    """Who trains on which sample when, under the configured seed unless another is given."""
    seed = config.seed if seed is None else seed
    assert seed is not None
    return TrainingOrder(
        store,
        seed=seed,
        strategy=config.balancing,
        global_batch_size=config.global_batch_size,
        deal=Deal.of_config(config, config.model_size.relative_costs(words), store.max_sequence_length),
        accumulation_steps=config.gradient_accumulation_steps,
        shape_step=config.shape_step or SHAPE_STEPS[device.type],
        attention_widths=config.attention_widths,
        capacity_overflow=config.capacity_overflow,
        shards=config.shards,
        phases=[_phase(config, phase, store) for phase in config.phases],
        strata_counts=config.strata_counts,
    )


def _phase(config: RunConfig, phase: TrainingPhase, store: LengthIndex) -> Phase:
    """The phase as samplers know it; without its own store it draws from data.store, the first of those joined."""
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
    """Whether steps are to be replayed as CUDA graphs. Raises UsageError where that is asked for and cannot be."""
    attention: str = config.attention
    if attention == "auto":
        precision = resolve_precision(config.precision, device)
        attention = resolve_attention(attention, device, COMPUTE_TYPES[precision])
    return replays_graphs(config, device.type, attention)


def replays_graphs(config: RunConfig, device: str, attention: str) -> bool:
    """`uses_graphs` on a kind of device, `cpu` or `cuda`, with resolved attention."""
    hindrance = (
        f"launch.device is {device}, and CUDA graphs need cuda"
        if device != "cuda"
        else f"attention is {attention}, and graphs need one of {', '.join(GRAPH_ATTENTION)}"
        if attention not in GRAPH_ATTENTION
        else f"shape_step is {config.shape_step}, and the longest length that graphs hold is that of {LENGTH_STEP}"
        if (config.shape_step or 0) > LENGTH_STEP
        else "balancing gives ranks unequal numbers of sequences, and graphs need equal ones"
        if config.capacity_overflow is None and (config.balancing == "packed" or config.balancing_counts == "free")
        else "graphs need gradient_accumulation_steps 1"
        if config.most_accumulation_steps != 1
        else None
    )
    if config.cuda_graph == "step" and hindrance:
        raise UsageError(f"cuda_graph: found step, but {hindrance}; allowed here are auto and none")
    return config.cuda_graph != "none" and hindrance is None


WARM_UP_STEPS = 3
GRAPH_WARM_UP_STEPS = 11  # DDP settles its buckets in the first steps, before a graph is captured


def warm_up(
    stepper: Stepper,
    order: TrainingOrder,
    vocabulary: int,
    steps: int = WARM_UP_STEPS,
    graph_shapes: RunShapes | None = None,
) -> None:
    """Take steps and an evaluation in the shapes of each phase's first batches, and undo all that they changed.

    With `graph_shapes` a CUDA graph is captured for every shape of the run, and the stepper then replays them. Only the
    length index of the data is read. Lengths come from the run's own order, so shapes are the run's.
    """
    saved, processes = _state(stepper), stepper.processes
    firsts = [first for first in order.first_steps() if first < stepper.config.steps]
    of_phases = [first + number for first in firsts for number in range(steps)]
    numbers = list(graph_shapes.examples.values()) if graph_shapes else of_phases
    masked_slots = graph_shapes.masked_slots if graph_shapes else None
    examples = [synthetic_step(order, number, processes.rank, vocabulary, masked_slots) for number in numbers]
    taken = len(examples)
    if graph_shapes:  # ranks differ in shapes but wait for each other in every step, so all take equally many
        taken = max(GRAPH_WARM_UP_STEPS, processes.most(taken))
    for number in range(taken):
        stepper.take(examples[number % len(examples)], PhaseClock())
    longest = max(examples, key=lambda example: example.whole.slots)  # evaluation has the full length
    evaluate(stepper.model.module, list(longest.micro_batches), processes, stepper.precision)
    if graph_shapes:
        graphs = stepper.use_graphs()
        for example in examples:
            graphs.capture(example.micro_batches[0], stepper.loss_weights(example)[0])
    _restore(stepper, saved)


def _state(stepper: Stepper) -> dict[str, Any]:
    return {
        "model": copy.deepcopy(stepper.model.state_dict()),
        "optimizer": copy.deepcopy(stepper.optimizer.state_dict()["state"]),
        "group_steps": [copy.deepcopy(group.get("step")) for group in stepper.optimizer.param_groups],
        "rates": [group["lr"].clone() for group in stepper.optimizer.param_groups],
        "scaler": stepper.scaler.state_dict(),
        "taken": stepper.taken.clone(),
        "random": torch.get_rng_state(),
        "device_random": torch.cuda.get_rng_state() if stepper.processes.device.type == "cuda" else None,
    }


@torch.no_grad()
def _restore(stepper: Stepper, saved: dict[str, Any]) -> None:
    """In place, since graphs use these very tensors. What did not exist before is zero, as it would begin."""
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
    optimizer.zero_grad(set_to_none=False)
    stepper.scaler.load_state_dict(saved["scaler"])
    stepper.taken.copy_(saved["taken"])
    torch.set_rng_state(saved["random"])
    if saved["device_random"] is not None:
        torch.cuda.set_rng_state(saved["device_random"])
