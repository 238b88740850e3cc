"""Input of the predictor: a run and its machine as plain values, without configuration files, data or torch."""

import math
import re
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Literal

import numpy as np

from benchmarks.bert.rules import evaluation_interval
from benchmarks.bert.sizes import LARGE, SEQUENCE_LENGTH, Size
from podium.planning.accelerators import find_accelerator
from podium.planning.costs import CostsOrigin, StepCosts
from podium.planning.prediction.constants import Constants
from podium.planning.prediction.samples_to_target import Estimate
from podium.planning.tensor_partition import MIN_SHARDED_SIZE, owners


@dataclass(frozen=True)
class Processor:
    """Data-sheet figures of one accelerator, or assumed figures of one CPU process."""

    name: str
    peak_flops: float  # dense bf16 (fp16) FLOP/s; a multiply-add is two
    memory_bytes_per_second: float
    link_bytes_per_second: float  # to the other accelerators of a node, in one direction: NVLink or PCI Express
    memory_bytes: float | None = None  # None: variants differ, so the system description has to state it
    fp32_flops: float | None = None  # without TF32, which Podium does not use for fp32

    @property
    def has_nvlink(self) -> bool:
        return self.link_bytes_per_second > 100e9


def _processor(name: str, link_bytes_per_second: float, memory_gb: float | None = None) -> Processor:
    kind = find_accelerator(name)
    assert kind is not None and kind.peak_flops is not None and kind.memory_bytes_per_second is not None
    memory = None if memory_gb is None else memory_gb * 1e9
    rates = (kind.memory_bytes_per_second, link_bytes_per_second)
    return Processor(kind.name, kind.peak_flops, *rates, memory, kind.fp32_flops)


# Keys are the names used in the published results. Sources: NVIDIA's data sheets; `cpu` is assumed.
PROCESSORS: dict[str, Processor] = {
    "a100_sxm": _processor("NVIDIA A100 SXM", 300e9),
    "a100_pcie": _processor("NVIDIA A100 PCIe", 32e9),
    "h100_sxm": _processor("NVIDIA H100 SXM", 450e9, 80),
    "h200": _processor("NVIDIA H200", 450e9, 141),
    "t4": _processor("NVIDIA T4", 15.75e9, 16),
    "cpu": Processor("CPU", 1e12, 20e9, 5e9),
}

# Models of the table of accelerators → key in PROCESSORS; variants without a row there have that of the nearest one.
_PROCESSOR_OF = {
    "NVIDIA A100 PCIe": "a100_pcie",
    "NVIDIA A100 SXM": "a100_sxm",
    "NVIDIA A100": "a100_sxm",
    "NVIDIA GH200": "h200",
    "NVIDIA H200 NVL": "h200",
    "NVIDIA H200": "h200",
    "NVIDIA H100 NVL": "h100_sxm",
    "NVIDIA H100 PCIe": "h100_sxm",
    "NVIDIA H100 SXM": "h100_sxm",
    "NVIDIA H100": "h100_sxm",
    "NVIDIA T4": "t4",
}


@dataclass(frozen=True)
class Machine:
    """Accelerators of one kind in equal nodes. Raises ValueError for an unknown processor or an empty machine."""

    processor: str  # a key of PROCESSORS
    nodes: int
    gpus_per_node: int
    adapters: tuple[int, float] | None = None  # number per node, and Gb/s of each; None: unknown or not needed

    def __post_init__(self) -> None:
        if self.processor not in PROCESSORS:
            raise ValueError(f"processor: found {self.processor!r}, allowed are {', '.join(PROCESSORS)}")
        if min(self.nodes, self.gpus_per_node) < 1:
            raise ValueError(f"nodes, gpus_per_node: found {self.nodes}, {self.gpus_per_node}, allowed are 1 and more")

    @property
    def ranks(self) -> int:
        return self.nodes * self.gpus_per_node

    @property
    def uses_pcie_switches(self) -> bool:
        """Whether GPUs reach the adapters through PCIe switches, as in nodes of eight SXM GPUs.

        In nodes of up to four GPUs and in nodes of PCIe cards they reach them through the host's processors.
        """
        return self.gpus_per_node == 8 and PROCESSORS[self.processor].has_nvlink


def find_processor(text: str) -> str | None:
    """Return the key in PROCESSORS for a name such as `NVIDIA A100-SXM4-80GB`; None for unknown accelerators."""
    kind = find_accelerator(text)
    return None if kind is None else _PROCESSOR_OF.get(kind.name)


def parse_adapters(text: str) -> tuple[int, float] | None:
    """Return the number and Gb/s of a node's network adapters, from `host_networking` of a system description.

    Reads forms such as `8x ConnectX-6 IB HDR 200Gb/Sec`, `2x 25 GbE` and `10GbE` (one adapter). If several kinds are
    named (storage, management, compute), the kind with the highest total rate is used. None if no speed is stated.
    """
    kinds = []
    # Bounded input and bounded repetitions keep the regular expressions fast for any text of a submission.
    for part in re.split("[,;+]", text[:MAX_NETWORKING_CHARACTERS]):
        if speed := re.search(r"(\d{1,5})\s*(?:Gb(?:it)?/s|Gbps|GbE)", part, re.IGNORECASE):
            count = re.search(r"(\d{1,4})\s*x\s", part[: speed.start()], re.IGNORECASE)
            kinds.append((int(count[1]) if count else 1, float(speed[1])))
    kinds = [kind for kind in kinds if min(kind) > 0]
    return max(kinds, key=lambda kind: kind[0] * kind[1], default=None)


MAX_NETWORKING_CHARACTERS = 1000  # of host_networking that are read
HALF_BYTES, FULL_BYTES = 2, 4  # bytes of a gradient on the wire
# How the optimizer is sharded over ranks. `slices` (NVIDIA's code): gradients are reduce-scattered, each rank updates
# its slice, and half-precision values are all-gathered. `whole_tensors` (Podium's LAMB): gradients are all-reduced, and
# the rank that owns a tensor updates and broadcasts it.
OptimizerSharding = Literal["none", "slices", "whole_tensors"]
# Bytes read and written per parameter: gradient 2; values, first and second moment 4 each, read and written;
# half-precision values written 2. LAMB also reads the gradient for its norm, writes its update, and reads the update
# and the values again.
OPTIMIZER_BYTES = {"lamb": 42.0, "adamw": 28.0}
CLIPPING_BYTES = 12.0  # per parameter: fp32 gradients are read for the norm, then read and written to scale them
Clipping = Literal["after", "before", "bucket"]  # values of the key `clipping.when`
# Training code of the predicted run. `fitted`: code whose published runs are in the fit; `other`: code without runs in
# the fit (Samsung's, Podium's); `measured`: Podium with step costs measured by `podium bench`.
Code = Literal["fitted", "other", "measured"]


Coefficients = tuple[float, float, float, float]


@dataclass(frozen=True, eq=False)
class Lengths:
    """Tokens and masked tokens, int64 [N] each, of the samples that a run draws from. Compared by identity."""

    tokens: np.ndarray
    masked: np.ndarray
    max_length: int = SEQUENCE_LENGTH  # tokens of a padded sequence

    @cached_property
    def means(self) -> np.ndarray:
        """Return float64 [4]: the means of tokens, squared tokens and masked tokens per sample, and 1."""
        squares = np.square(self.tokens.astype(np.float64))
        return np.array([self.tokens.mean(), squares.mean(), self.masked.mean(), 1.0])

    def costs(self, coefficients: Coefficients, padded: bool = False) -> np.ndarray:
        """Return the seconds [N] of each sample from those of a token, a token pair, a masked token and a sequence."""
        token, pair, masked, sequence = coefficients
        tokens = np.full(len(self.tokens), self.max_length) if padded else self.tokens
        seconds: np.ndarray = token * tokens + pair * tokens.astype(np.float64) ** 2 + masked * self.masked + sequence
        return seconds


@dataclass(frozen=True)
class Plan:
    """A training run and its machine, as the predictor needs them."""

    machine: Machine
    global_batch_size: int
    lengths: Lengths
    costs: StepCosts  # of one rank's micro-batch; `costs.step` is per micro-batch, without the optimizer
    samples: Estimate
    strategy: str = "indexed"
    accumulation_steps: int = 1
    strata_counts: tuple[int, ...] | None = None  # in a stratified strategy's micro-batch; None: in proportion
    optimizer: str = "lamb"
    sharding: OptimizerSharding = "none"
    gradient_bytes: int = FULL_BYTES  # per element on the wire
    bucket_mib: float | None = None  # on the wire; None: PyTorch's defaults
    clipping: Clipping | None = None  # None: no clipping, or included in the rate of published code
    phases: tuple[tuple[int, Lengths], ...] = ()  # samples and lengths of all phases but the last
    code: Code = "fitted"
    counted: StepCosts | None = None  # of Podium's step, counted from kernels; `step` is the optimizer's
    half_precision: bool = True  # of matrix products and activations
    dense_attention: bool = False  # whether attention stores the probability of every pair of padded tokens
    memory_bytes: float | None = None  # of one accelerator; None: unknown
    size: Size = LARGE
    evaluation_samples: int = LARGE.evaluation_samples
    evaluation_interval: int | None = None  # in samples; None: MLPerf's for this batch size
    start_seconds: float | None = None  # None: interpolated from published systems
    unsure: tuple[str, ...] = ()
    costs_origin: CostsOrigin | None = None  # of measured costs
    longest_optimizer: float = math.inf  # seconds; of measured costs those of their step, which includes it

    @cached_property
    def parameters(self) -> int:
        return self.size.parameters(self.size.vocabulary_size)

    @cached_property
    def sharded_tensors(self) -> tuple[int, ...]:
        """Elements of each tensor that a single rank owns. A layer's query, key and value weights are one tensor."""
        tensors = self.size.tensors(self.size.vocabulary_size).items()
        fused = {"query": 3, "key": 0, "value": 0}
        sizes = [prod(shape) * fused.get(name.split("/")[-2], 1) for name, shape in tensors]
        return tuple(size for size in sizes if size >= MIN_SHARDED_SIZE)

    @property
    def samples_between_evaluations(self) -> int:
        """Evaluation interval in samples, rounded up to whole steps."""
        interval = self.evaluation_interval or evaluation_interval(self.global_batch_size)
        return -(-interval // self.global_batch_size) * self.global_batch_size


def clipping_seconds(plan: Plan, constants: Constants) -> float:
    """Return the seconds per step for clipping: each rank passes over all gradients, bound by memory bandwidth."""
    if plan.clipping is None:
        return 0.0
    bandwidth = PROCESSORS[plan.machine.processor].memory_bytes_per_second * constants.memory_efficiency
    return CLIPPING_BYTES * plan.parameters / bandwidth


def optimizer_seconds(plan: Plan, constants: Constants) -> float:
    """Return the seconds per step for the optimizer: LAMB and AdamW are bound by memory bandwidth."""
    processor = PROCESSORS[plan.machine.processor]
    updated: float = plan.parameters  # elements that the busiest rank updates
    if plan.sharding == "slices":
        updated /= plan.machine.ranks
    elif plan.sharding == "whole_tensors":  # the tensors it owns, and those too small to have one owner
        sizes = plan.sharded_tensors
        owned = np.bincount(owners(sizes, plan.machine.ranks), weights=sizes)
        updated = float(owned.max()) + plan.parameters - sum(sizes)
    size = OPTIMIZER_BYTES[plan.optimizer] * updated
    return min(size / (processor.memory_bytes_per_second * constants.memory_efficiency), plan.longest_optimizer)


def published_costs(
    processor: str,
    constants: Constants,
    size: Size = LARGE,
    last_layer: Literal["all", "needed"] = "all",
    fp32: bool = False,
) -> StepCosts:
    """Return step costs from the FLOPs of each term and the FLOP/s that published A100 systems sustain.

    Other GPUs, and fp32 if its peak is known, are assumed to sustain the same share of their peak as an A100 SXM
    sustains of its bf16 peak.
    """
    rates = {"a100_sxm": constants.sustained_flops_sxm, "a100_pcie": constants.sustained_flops_pcie}
    kind = PROCESSORS[processor]
    rate = rates.get(processor, constants.sustained_flops_sxm * kind.peak_flops / PROCESSORS["a100_sxm"].peak_flops)
    if fp32 and kind.fp32_flops is not None:
        rate *= kind.fp32_flops / kind.peak_flops
    token, pair, masked, sequence = _flops_per_term(size, last_layer)
    return StepCosts(
        step=constants.micro_batch_seconds,
        token=token / rate,
        pair=pair / rate,
        masked=masked / rate,
        sequence=sequence / rate,
    )


def _flops_per_term(size: Size, last_layer: Literal["all", "needed"]) -> Coefficients:
    """Return the FLOPs of forward and backward per token, token pair of a sequence, masked token and sequence."""

    def flops(length: int, masked: int) -> float:
        return size.training_flops([length] if length else [], masked, size.vocabulary_size, last_layer)

    one, two = flops(1, 0), flops(2, 0)
    pair = 12.0 * size.layers * size.hidden
    sequence = 2 * one - two + 2 * pair  # f(n) = sequence + token·n + pair·n²
    return one - sequence - pair, pair, flops(0, 1), sequence


COUNTED_ON, COUNTED_SEQUENCES = "h200", 56  # GPU and Wikipedia sequences of the step whose kernels were counted


def counted_costs(
    processor: str,
    constants: Constants,
    lengths: Lengths,
    size: Size = LARGE,
    last_layer: Literal["all", "needed"] = "all",
) -> StepCosts:
    """Return the half-precision costs of Podium's step, counted from its kernels on an H200 and never run.

    `lengths` are those of the counted step. Matrix products and attention scale with the peak FLOP/s and their FLOPs.
    Element-wise work (per token), embedding, head and cross-entropy (per masked token) and passes over all parameters
    (`step`: optimizer, clipping, zeroing, DDP's division) scale with memory bandwidth.
    """
    kind, counted = PROCESSORS[processor], PROCESSORS[COUNTED_ON]
    flops, memory = (
        counted.peak_flops / kind.peak_flops,
        counted.memory_bytes_per_second / kind.memory_bytes_per_second,
    )
    tokens, pairs, masked, sequences = COUNTED_SEQUENCES * lengths.means
    token, pair, _, sequence = _flops_per_term(LARGE, "needed")  # the counted step's model
    product = flops * constants.counted_products / (token * tokens + sequence * sequences)  # seconds per FLOP
    attention = flops * constants.counted_attention / (pair * pairs)
    token, pair, _, sequence = _flops_per_term(size, last_layer)
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
