"""The predictor's input: a run as plain values, and its machines; no configuration file, no data, no torch.

A machine is described by its GPUs, their number, and what connects them.
"""

import re
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Literal

import numpy as np

from benchmarks.bert.rules import evaluation_interval
from benchmarks.bert.sizes import LARGE, SEQUENCE_LENGTH, Size
from podium.planning.accelerators import accelerator_named
from podium.planning.costs import StepCosts
from podium.planning.prediction.constants import Constants
from podium.planning.prediction.samples_to_target import Estimate
from podium.planning.tensor_partition import LEAST_SHARED, owners


@dataclass(frozen=True)
class Processor:
    """Published figures of one accelerator (or, for `cpu`, of a process of a common machine)."""

    name: str
    peak_flops: float  # dense bf16 (fp16) multiply-adds, counted as two operations, a second
    memory_bytes_per_second: float
    link_bytes_per_second: float  # to the other accelerators of a node, in one direction: NVLink or PCI Express
    memory_bytes: float | None = None  # None: its kinds differ, so that a description has to state it
    fp32_flops: float | None = None  # of fp32 without TF32, which is how Podium multiplies in fp32

    @property
    def is_on_nvlink(self) -> bool:
        return self.link_bytes_per_second > 100e9


def _known(
    name: str, memory_bytes_per_second: float, link_bytes_per_second: float, memory_gb: float | None = None
) -> Processor:
    kind = accelerator_named(name)
    assert kind is not None and kind.peak_flops is not None
    memory = None if memory_gb is None else memory_gb * 1e9
    rates = (memory_bytes_per_second, link_bytes_per_second)
    return Processor(kind.name, kind.peak_flops, *rates, memory, kind.fp32_flops)


# By the names that published runs are filed under. Sources: NVIDIA's data sheets; `cpu` is an assumption.
PROCESSORS: dict[str, Processor] = {
    "a100_sxm": _known("NVIDIA A100 SXM", 2.039e12, 300e9),
    "a100_pcie": _known("NVIDIA A100 PCIe", 1.935e12, 32e9),
    "h100_sxm": _known("NVIDIA H100 SXM", 3.35e12, 450e9, 80),
    "h200": _known("NVIDIA H200", 4.8e12, 450e9, 141),
    "t4": _known("NVIDIA T4", 320e9, 15.75e9, 16),
    "cpu": Processor("CPU", 1e12, 20e9, 5e9),
}

_NAMES: tuple[tuple[str, str], ...] = (
    (r"A100.*PCI", "a100_pcie"),
    (r"A100", "a100_sxm"),
    (r"H200", "h200"),
    (r"H100", "h100_sxm"),
    (r"\bT4\b", "t4"),
)


@dataclass(frozen=True)
class Machine:
    """GPUs of one kind in equal nodes."""

    processor: str  # a key of PROCESSORS
    nodes: int
    gpus_per_node: int
    adapters: tuple[int, float] | None = None  # of a node, and the Gb/s of each; None: unknown or not needed

    def __post_init__(self) -> None:
        if self.processor not in PROCESSORS:
            raise ValueError(f"there is no processor {self.processor!r}; known are {', '.join(PROCESSORS)}")
        if min(self.nodes, self.gpus_per_node) < 1:
            raise ValueError("a machine has at least one node and one GPU a node")

    @property
    def ranks(self) -> int:
        return self.nodes * self.gpus_per_node

    @property
    def is_switched(self) -> bool:
        """Whether GPUs reach the network by a switch near each GPU and adapter, as in nodes of eight SXM GPUs, and not
        through the host's processors, as in nodes of up to four and PCIe cards."""
        return self.gpus_per_node == 8 and PROCESSORS[self.processor].is_on_nvlink


def processor_named(text: str) -> str | None:
    """The key of a GPU as a system's description names it, such as `NVIDIA A100-SXM4-80GB`; None for others."""
    return next((key for pattern, key in _NAMES if re.search(pattern, text, re.IGNORECASE)), None)


def adapters_named(text: str) -> tuple[int, float] | None:
    """Number and Gb/s of a node's network adapters for training, from `host_networking` of a description.

    Understands `8x ConnectX-6 IB HDR 200Gb/Sec`, `2x 25 GbE` and `10GbE`, which is one adapter; where several kinds
    are named (storage, management, compute), the most numerous and fastest counts. None where no speed is stated.
    """
    kinds = []
    for part in re.split("[,;+]", text[:LONGEST_NETWORKING]):
        if speed := re.search(r"(\d{1,5})\s*(?:Gb(?:it)?/s|Gbps|GbE)", part, re.IGNORECASE):
            count = re.search(r"(\d{1,4})\s*x\s", part[: speed.start()], re.IGNORECASE)
            kinds.append((int(count[1]) if count else 1, float(speed[1])))
    kinds = [kind for kind in kinds if min(kind) > 0]
    return max(kinds, key=lambda kind: kind[0] * kind[1], default=None)


LONGEST_NETWORKING = 1000  # characters of host_networking that are looked at
HALF, FULL = 2, 4  # bytes of a gradient on the wire
# Of the optimizer, over ranks: `slices`, as NVIDIA's code does: gradients are reduce-scattered, each rank updates its
# share, and half-precision values are gathered then; `whole_tensors`, as Podium's LAMB does: gradients are reduced on
# all ranks, and the values of each tensor are sent by the rank that owns it.
Sharing = Literal["none", "slices", "whole_tensors"]
# Read and written for each parameter: gradient 2; values, first and second moment 4 each, read and
# written; half-precision values written 2. LAMB also reads the gradient for its norm, writes its update, and reads that
# and the values once more.
OPTIMIZER_BYTES = {"lamb": 42.0, "adamw": 28.0}
CLIPPING_BYTES = 12.0  # a pass over fp32 gradients for the norm, and one that scales them
Clipping = Literal["after", "before", "bucket"]  # as of `clipping.when`
# The code that a run is predicted as: `fitted`, whose published runs the constants are fitted on; `other`, of which
# none is (Samsung's, Podium's own); `measured`, whose steps `podium bench` has measured.
Code = Literal["fitted", "other", "measured"]


Coefficients = tuple[float, float, float, float]


@dataclass(frozen=True, eq=False)
class Lengths:
    """Tokens and masked tokens of the samples that a run draws from, int64 [N] each."""

    tokens: np.ndarray
    masked: np.ndarray
    longest: int = SEQUENCE_LENGTH  # tokens of a padded sequence

    @cached_property
    def means(self) -> np.ndarray:
        """Means of tokens, tokens squared and masked tokens of a sample, and 1."""
        squares = np.square(self.tokens.astype(np.float64))
        return np.array([self.tokens.mean(), squares.mean(), self.masked.mean(), 1.0])

    def costs(self, coefficients: Coefficients, padded: bool = False) -> np.ndarray:
        """Seconds [N] of each sample, by the coefficients of a token, a pair, a masked token and a sequence."""
        token, pair, masked, sequence = coefficients
        tokens = np.full(len(self.tokens), self.longest) if padded else self.tokens
        seconds: np.ndarray = token * tokens + pair * tokens.astype(np.float64) ** 2 + masked * self.masked + sequence
        return seconds


@dataclass(frozen=True)
class Plan:
    """What is to be trained how, on which machine."""

    machine: Machine
    global_batch_size: int
    lengths: Lengths
    costs: StepCosts  # of one rank's micro-batch; `costs.step` is once a micro-batch, without the optimizer
    samples: Estimate
    strategy: str = "indexed"
    accumulation_steps: int = 1
    strata_counts: tuple[int, ...] | None = None  # of a stratified strategy's micro-batch; None: as lengths give them
    optimizer: str = "lamb"
    sharing: Sharing = "none"
    gradient_bytes: int = FULL  # of an element on the wire
    bucket_mib: float | None = None  # on the wire; None: PyTorch's own
    clipping: Clipping | None = None  # None: none, or counted with a published code's rate
    phases: tuple[tuple[int, Lengths], ...] = ()  # samples and lengths of those before the last, which has `lengths`
    code: Code = "fitted"
    counted: StepCosts | None = None  # of Podium's own step, counted and never run; its `step` is the optimizer's
    half_precision: bool = True  # of matrix products and activations
    dense_attention: bool = False  # whether attention keeps a probability for every pair of padded tokens
    memory_bytes: float | None = None  # of one accelerator; None: not stated
    size: Size = LARGE
    evaluation_samples: int = LARGE.evaluation_samples
    evaluation_interval: int | None = None  # None: the benchmark's own at this batch size
    start_seconds: float | None = None  # None: what published systems of this many ranks took
    unsure: tuple[str, ...] = ()

    @cached_property
    def parameters(self) -> int:
        return self.size.parameters(self.size.vocabulary_size)

    @cached_property
    def shared_tensors(self) -> tuple[int, ...]:
        """Elements of each tensor that has one owner. Queries, keys and values of a layer are one."""
        tensors = self.size.tensors(self.size.vocabulary_size).items()
        fused = {"query": 3, "key": 0, "value": 0}
        sizes = [prod(shape) * fused.get(name.split("/")[-2], 1) for name, shape in tensors]
        return tuple(size for size in sizes if size >= LEAST_SHARED)

    @property
    def samples_between_evaluations(self) -> int:
        """Whole steps, at least as many samples as the interval."""
        interval = self.evaluation_interval or evaluation_interval(self.global_batch_size)
        return -(-interval // self.global_batch_size) * self.global_batch_size


def clipping_seconds(plan: Plan, constants: Constants) -> float:
    """Of one step: a rank passes over all gradients, whenever it clips them."""
    if plan.clipping is None:
        return 0.0
    bandwidth = PROCESSORS[plan.machine.processor].memory_bytes_per_second * constants.memory_efficiency
    return CLIPPING_BYTES * plan.parameters / bandwidth


def optimizer_seconds(plan: Plan, constants: Constants) -> float:
    """Of one step: LAMB and AdamW are bound by memory bandwidth."""
    processor = PROCESSORS[plan.machine.processor]
    updated: float = plan.parameters  # elements that the busiest rank updates
    if plan.sharing == "slices":
        updated /= plan.machine.ranks
    elif plan.sharing == "whole_tensors":  # its own tensors, and those too small to be shared
        sizes = plan.shared_tensors
        owned = np.bincount(owners(sizes, plan.machine.ranks), weights=sizes)
        updated = float(owned.max()) + plan.parameters - sum(sizes)
    size = OPTIMIZER_BYTES[plan.optimizer] * updated
    return size / (processor.memory_bytes_per_second * constants.memory_efficiency)


def published_costs(
    processor: str,
    constants: Constants,
    size: Size = LARGE,
    last_layer: Literal["all", "needed"] = "all",
    fp32: bool = False,
) -> StepCosts:
    """Step costs by the FLOPs of each part and the rate that published A100 systems sustain.

    Other GPUs, and fp32 where its peak is known, are taken to sustain the share of their peak that an A100 SXM does of
    its bf16 peak.
    """
    rates = {"a100_sxm": constants.sustained_flops_sxm, "a100_pcie": constants.sustained_flops_pcie}
    kind = PROCESSORS[processor]
    rate = rates.get(processor, constants.sustained_flops_sxm * kind.peak_flops / PROCESSORS["a100_sxm"].peak_flops)
    if fp32 and kind.fp32_flops is not None:
        rate *= kind.fp32_flops / kind.peak_flops
    token, pair, masked, sequence = _flops(size, last_layer)
    return StepCosts(
        step=constants.micro_batch_seconds,
        token=token / rate,
        pair=pair / rate,
        masked=masked / rate,
        sequence=sequence / rate,
    )


def _flops(size: Size, last_layer: Literal["all", "needed"]) -> Coefficients:
    """Of forward and backward, for each token, pair of tokens in a sequence, masked token and sequence."""

    def flops(length: int, masked: int) -> float:
        return size.training_flops([length] if length else [], masked, size.vocabulary_size, last_layer)

    one, two = flops(1, 0), flops(2, 0)
    pair = 12.0 * size.layers * size.hidden
    sequence = 2 * one - two + 2 * pair  # f(n) = sequence + token·n + pair·n²
    return one - sequence - pair, pair, flops(0, 1), sequence


COUNTED_ON, COUNTED_SEQUENCES = "h200", 56  # Podium's step was counted on so many of Wikipedia's sequences


def counted_costs(
    processor: str,
    constants: Constants,
    lengths: Lengths,
    size: Size = LARGE,
    last_layer: Literal["all", "needed"] = "all",
) -> StepCosts:
    """Costs of Podium's own step, counted from its kernels on an H200 and never run; for a GPU, in half precision.

    `lengths` are those that it was counted on. Matrix products and attention go with the peak of matrix products, in
    proportion to their FLOPs; element-wise work (by tokens), embedding, head and cross-entropy (by masked tokens) and
    what passes over all parameters (`step`: optimizer, clipping, zeroing, DDP's division) with memory bandwidth.
    """
    kind, there = PROCESSORS[processor], PROCESSORS[COUNTED_ON]
    flops, memory = (
        there.peak_flops / kind.peak_flops,
        there.memory_bytes_per_second / kind.memory_bytes_per_second,
    )
    tokens, pairs, masked, sequences = COUNTED_SEQUENCES * lengths.means
    token, pair, _, sequence = _flops(LARGE, "needed")  # as it was counted
    product = flops * constants.counted_products / (token * tokens + sequence * sequences)  # seconds of an operation
    attention = flops * constants.counted_attention / (pair * pairs)
    token, pair, _, sequence = _flops(size, last_layer)
    width = size.layers * size.hidden / (LARGE.layers * LARGE.hidden)
    vocabulary = size.vocabulary_size / LARGE.vocabulary_size
    parameters = size.parameters(size.vocabulary_size) / LARGE.parameters(LARGE.vocabulary_size)
    return StepCosts(
        step=memory * constants.counted_parameters * parameters,
        token=product * token + memory * width * constants.counted_elements / tokens,
        pair=attention * pair,
        masked=memory * vocabulary * constants.counted_head / masked,
        sequence=product * sequence,
    )
