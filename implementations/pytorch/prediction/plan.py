"""A run as the predictor sees it, plainly described: no configuration file, no data, no torch."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from math import prod
from typing import Literal

import numpy as np

from benchmarks.bert.costs import StepCosts
from benchmarks.bert.rules import evaluation_interval
from benchmarks.bert.sizes import LARGE, Size
from implementations.pytorch.optimization.owners import LEAST_SHARED, owners
from implementations.pytorch.prediction.balance import Dealing, Lengths
from implementations.pytorch.prediction.constants import Constants
from implementations.pytorch.prediction.machines import PROCESSORS, Machine
from implementations.pytorch.prediction.samples import Estimate

HALF, FULL = 2, 4
"""Bytes of a gradient on the wire."""
VOCABULARY = 30_522
LastLayer = Literal["all", "needed"]
Sharing = Literal["none", "slices", "whole_tensors"]
"""Of the optimizer, over ranks: `slices`, as NVIDIA's code does: gradients are reduce-scattered, each rank updates its
share, and half-precision values are gathered then; `whole_tensors`, as Podium's LAMB does: gradients are reduced on all
ranks, and the values of each tensor are sent by the rank that owns it."""
OPTIMIZER_BYTES = {"lamb": 42.0, "adamw": 28.0}
"""Read and written for each parameter: gradient 2; values, first and second moment 4 each, read and written;
half-precision values written 2. LAMB also reads the gradient for its norm, writes its update, and reads that and the
values once more."""


@dataclass(frozen=True)
class Plan:
    """What is to be trained how, on which machine."""

    machine: Machine
    global_batch_size: int
    lengths: Lengths
    costs: StepCosts
    """Of one rank's micro-batch; `costs.step` is once a micro-batch, without the optimizer."""
    samples: Estimate
    strategy: str = "indexed"
    accumulation_steps: int = 1
    optimizer: str = "lamb"
    sharing: Sharing = "none"
    gradient_bytes: int = FULL
    size: Size = LARGE
    vocabulary: int = VOCABULARY
    evaluation_samples: int = LARGE.evaluation_samples
    evaluation_interval: int | None = None
    """None for the benchmark's own at this batch size."""
    start_seconds: float | None = None
    """None for what published systems of this many ranks took."""
    unsure: tuple[str, ...] = field(default=())

    @property
    def dealing(self) -> Dealing:
        machine = self.machine
        return Dealing(
            self.strategy, self.global_batch_size, machine.ranks, machine.gpus_per_node, self.accumulation_steps
        )

    @property
    def parameters(self) -> int:
        return _parameters(self.size, self.vocabulary)

    @property
    def shared_tensors(self) -> tuple[int, ...]:
        """Elements of each tensor that has one owner. Queries, keys and values of a layer are one."""
        tensors = self.size.tensors(self.vocabulary).items()
        fused = {"query": 3, "key": 0, "value": 0}
        sizes = [prod(shape) * fused.get(name.split("/")[-2], 1) for name, shape in tensors]
        return tuple(size for size in sizes if size >= LEAST_SHARED)

    @property
    def samples_between_evaluations(self) -> int:
        """Whole steps, at least as many samples as the interval."""
        interval = self.evaluation_interval or evaluation_interval(self.global_batch_size)
        return -(-interval // self.global_batch_size) * self.global_batch_size


@cache
def _parameters(size: Size, vocabulary: int) -> int:
    return size.parameters(vocabulary)


def _most_owned(plan: Plan) -> float:
    """Elements that the busiest rank updates: its own tensors, and those too small to be shared."""
    sizes = plan.shared_tensors
    owned = np.bincount(owners(sizes, plan.machine.ranks), weights=sizes)
    return float(owned.max()) + plan.parameters - sum(sizes)


_updated_by_a_rank: dict[Sharing, Callable[[Plan], float]] = {
    "none": lambda plan: plan.parameters,
    "slices": lambda plan: plan.parameters / plan.machine.ranks,
    "whole_tensors": _most_owned,
}


def optimizer_seconds(plan: Plan, constants: Constants) -> float:
    """Of one step: LAMB and AdamW are bound by memory bandwidth."""
    processor = PROCESSORS[plan.machine.processor]
    size = OPTIMIZER_BYTES[plan.optimizer] * _updated_by_a_rank[plan.sharing](plan)
    return size / (processor.memory_bytes_per_second * constants.memory_efficiency)


def published_costs(
    processor: str, constants: Constants, size: Size = LARGE, last_layer: LastLayer = "all"
) -> StepCosts:
    """Step costs by the FLOPs of each part and the rate that published A100 systems sustain.

    Other GPUs are taken to sustain the same share of their peak as an A100 SXM.
    """
    rates = {"a100_sxm": constants.sustained_flops_sxm, "a100_pcie": constants.sustained_flops_pcie}
    share = PROCESSORS[processor].peak_flops / PROCESSORS["a100_sxm"].peak_flops
    rate = rates.get(processor, constants.sustained_flops_sxm * share)

    def flops(length: int, masked: int) -> float:
        return size.training_flops([length] if length else [], masked, VOCABULARY, last_layer)

    one, two = flops(1, 0), flops(2, 0)
    pair = 12.0 * size.layers * size.hidden
    sequence = 2 * one - two + 2 * pair  # f(n) = sequence + token·n + pair·n²
    token = one - sequence - pair
    return StepCosts(
        step=constants.micro_batch_seconds,
        token=token / rate,
        pair=pair / rate,
        masked=flops(0, 1) / rate,
        sequence=sequence / rate,
        median_relative_error=constants.throughput_error,
    )
