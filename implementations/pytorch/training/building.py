"""From a configuration to a model and its optimizer, ready to take steps."""

import numpy as np
import torch

from benchmarks.bert.sizes import Size
from benchmarks.errors import UsageError
from implementations.pytorch.data.balancing import Deal
from implementations.pytorch.data.batch_plan import SHAPE_STEPS, LengthIndex, TrainingOrder
from implementations.pytorch.data.phases import Phase
from implementations.pytorch.kernels.choose import load_kernels, resolve_kernels
from implementations.pytorch.model.attention import require
from implementations.pytorch.model.attention.flash import LENGTH_STEP
from implementations.pytorch.model.bert import BertForPreTraining, Making
from implementations.pytorch.model.checkpoint import load_checkpoint
from implementations.pytorch.model.fp8 import Fp8Linear
from implementations.pytorch.model.linear import Linear
from implementations.pytorch.optimization.build import build_optimizer, build_schedule
from implementations.pytorch.optimization.schedule import rate_table
from implementations.pytorch.training.gradient_sync import SyncSettings, synchronised
from implementations.pytorch.training.precision import COMPUTE_TYPES, resolve_precision
from implementations.pytorch.training.processes import Processes
from implementations.pytorch.training.step import Stepper
from podium.config import RunConfig

GRAPH_ATTENTION = ("flash",)
"""Backends whose launches are the same for all batches of a shape, as a CUDA graph needs them."""


def making(config: RunConfig, precision: str, device: torch.device) -> Making:
    """How the configuration has the model computed. Raises UsageError for what this device cannot do."""
    require(config.attention, device, COMPUTE_TYPES[precision])
    kernels = resolve_kernels(config.kernels, device)
    return Making(
        attention=config.attention,
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
    torch.manual_seed(_dropout_seed(config.seed, processes.rank))
    ddp, sync = synchronised(model, processes.device, SyncSettings.of(config))
    optimizer = build_optimizer(model, config.optimizer)
    steps = -(-config.max_samples // config.global_batch_size)
    rates = rate_table(build_schedule(config.optimizer), steps, processes.device)
    return Stepper(config, processes, ddp, sync, optimizer, rates, precision)


def build_order(
    config: RunConfig, store: LengthIndex, words: int, device: torch.device, seed: int | None = None
) -> TrainingOrder:
    """Who trains on which sample when, under the configured seed unless another is given."""
    pair_cost, sequence_cost = config.model_size.relative_costs(words)
    seed = config.seed if seed is None else seed
    assert seed is not None
    return TrainingOrder(
        store,
        seed=seed,
        strategy=config.balancing,
        global_batch_size=config.global_batch_size,
        deal=Deal(
            parts=config.launch.ranks,
            parts_per_node=config.launch.processes_per_node,
            pair_cost=pair_cost if config.pair_cost is None else config.pair_cost,
            sequence_cost=sequence_cost if config.sequence_cost is None else config.sequence_cost,
            row_tokens=store.max_sequence_length,
            counts=config.balancing_counts,
        ),
        accumulation_steps=config.gradient_accumulation_steps,
        shape_step=config.shape_step or SHAPE_STEPS[device.type],
        attention_widths=config.attention_widths,
        capacity_overflow=config.capacity_overflow,
        shards=config.shards,
        phases=[Phase(p.max_sequence_length or store.max_sequence_length, p.samples) for p in config.phases],
        strata_counts=config.strata_counts,
    )


def uses_graphs(config: RunConfig, device: torch.device) -> bool:
    """Whether steps are to be replayed as CUDA graphs. Raises UsageError where that is asked for and cannot be."""
    hindrance = (
        f"launch.device is {device.type}, and CUDA graphs need cuda"
        if device.type != "cuda"
        else f"attention is {config.attention}, and graphs need one of {', '.join(GRAPH_ATTENTION)}"
        if config.attention not in GRAPH_ATTENTION
        else f"shape_step is {config.shape_step}, and the longest length that graphs hold is that of {LENGTH_STEP}"
        if (config.shape_step or 0) > LENGTH_STEP
        else "balancing gives ranks unequal numbers of sequences, and graphs need equal ones"
        if config.capacity_overflow is None and (config.balancing == "packed" or config.balancing_counts == "free")
        else "graphs need gradient_accumulation_steps 1"
        if config.gradient_accumulation_steps != 1
        else None
    )
    if config.cuda_graph == "step" and hindrance:
        raise UsageError(f"cuda_graph: found step, but {hindrance}; allowed here are auto and none")
    return config.cuda_graph != "none" and hindrance is None


def _dropout_seed(seed: int, rank: int) -> int:
    return int(np.random.SeedSequence([seed, rank]).generate_state(1, np.uint32)[0])
