"""Variants to time: steps of Podium under different options, and of other implementations on the same samples.

The ablation turns off every optimisation, one at a time (following arXiv 2208.08124). On several ranks it also times
the alternatives of published systems between ranks: balancing, exchange, clipping, wire format and optimizer. The
samples are synthetic, of given lengths, and assigned to ranks as in a run.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from statistics import median
from typing import Any, Protocol

import numpy as np
import torch

from benchmarks.bert.lengths import quantiles, reference_masked_counts
from benchmarks.bert.sizes import SEQUENCE_LENGTH, Size
from implementations.pytorch.build_run import build_order, build_stepper, uses_graphs, warm_up
from implementations.pytorch.data.reader import Step
from implementations.pytorch.data.synthetic import synthetic_step
from implementations.pytorch.distributed.process_group import Processes
from implementations.pytorch.phase_clock import PhaseClock
from implementations.pytorch.precision import measure_seconds
from podium.config.schema import RunConfig
from podium.core.errors import UsageError
from podium.planning.batch_plan import TrainingOrder, run_shapes
from podium.planning.hardware import expected_attention

SEED = 0


@dataclass(frozen=True)
class Lengths:
    """Length index of samples that are in no store."""

    lengths: np.ndarray
    max_sequence_length: int = SEQUENCE_LENGTH

    @cached_property
    def masked_counts(self) -> np.ndarray:
        return reference_masked_counts(self.lengths)

    def __len__(self) -> int:
        return len(self.lengths)


def mixed_lengths(histogram: np.ndarray, count: int) -> np.ndarray:
    """Return `count` lengths at evenly spaced quantiles of a histogram (counts of lengths 0, 1, …), shuffled.

    So few samples have the distribution of many, and all variants and machines are timed on the same samples.
    """
    return np.random.default_rng(SEED).permutation(quantiles(histogram, count))


def bench_order(config: RunConfig, lengths: np.ndarray, vocabulary_size: int, device: torch.device) -> TrainingOrder:
    """Return the order of samples of these lengths; `len(lengths)` / global batch size steps have each of them once."""
    return build_order(config, Lengths(lengths), vocabulary_size, device, SEED)


class StepRunner(Protocol):
    """An implementation whose training steps are timed."""

    def take(self, number: int) -> None:
        """Run step `number`, counted from 0."""


@dataclass
class StepTimes:
    """Seconds of each step of one runner."""

    seconds: list[float] = field(default_factory=list)

    @property
    def total(self) -> float:
        return sum(self.seconds)

    @property
    def milliseconds(self) -> dict[str, float]:
        return min_median_max([1000 * value for value in self.seconds])

    def ratios(self, baseline: "StepTimes") -> dict[str, float]:
        """Return minimum, median and maximum of the ratios of these times to the baseline's, step by step."""
        return min_median_max([a / b for a, b in zip(self.seconds, baseline.seconds, strict=True)])


def min_median_max(values: Sequence[float]) -> dict[str, float]:
    """Return minimum, median and maximum of at least one value, as JSON."""
    return {"min": min(values), "median": median(values), "max": max(values)}


HEAD_SIZE = 64


def resize(size: Size, layers: int, hidden: int) -> Size:
    """Return a model size with other numbers of layers and hidden units, in heads of 64, with BERT's initialisation.

    Raises UsageError if `hidden` is not a multiple of 64.
    """
    if hidden % HEAD_SIZE:
        raise UsageError(f"--hidden: found {hidden}, allowed are multiples of {HEAD_SIZE}")
    return replace(
        size,
        name=f"{size.name}, changed",
        layers=layers,
        hidden=hidden,
        heads=hidden // HEAD_SIZE,
        feed_forward=4 * hidden,
        local_heads=(),
    )


class PodiumRunner:
    """Runs whole steps as in a run, on prepared synthetic batches."""

    def __init__(
        self,
        config: RunConfig,
        processes: Processes,
        lengths: np.ndarray,
        vocabulary_size: int,
        size: Size | None = None,
    ) -> None:
        """Prepare len(lengths) / global batch size steps. Every sample is in exactly one of them."""
        order, rank = bench_order(config, lengths, vocabulary_size, processes.device), processes.rank
        count = len(lengths) // config.global_batch_size
        self.stepper = build_stepper(config, processes, vocabulary_size, size)
        shapes = run_shapes(order, count) if uses_graphs(config, processes.device) else None
        try:
            warm_up(self.stepper, order, vocabulary_size, graph_shapes=shapes)
        except BaseException:
            self.close()  # with some graphs captured
            raise
        masked_slots = shapes.masked_slots if shapes else None
        self.steps = [synthetic_step(order, number, rank, vocabulary_size, masked_slots) for number in range(count)]
        if processes.device.type == "cuda":
            self.steps = [
                Step(tuple(b.pin_memory() for b in step.micro_batches), step.global_batch) for step in self.steps
            ]
        self.clock, self.taken = PhaseClock(), 0

    def restart_clock(self) -> None:
        """Forget the phases of the steps so far."""
        self.clock, self.taken = PhaseClock(), 0

    def take(self, number: int) -> None:
        self.clock.restart()
        self.stepper.take(self.steps[number], self.clock)
        self.taken += 1

    def close(self) -> None:
        self.stepper.close()


def time_interleaved(runners: Mapping[str, StepRunner], steps: int, device: torch.device) -> dict[str, StepTimes]:
    """Time `steps` steps of every runner, interleaved: step 0 of each, step 1 of each, and so on.

    A first round, which is not counted, runs every shape once. A GPU is synchronised before and after each step.
    """
    # Interleaved, so that drift of clock rates and other load affect all runners alike. The first runner changes from
    # step to step, since caches and memory are left in different states by different predecessors.
    times = {name: StepTimes() for name in runners}
    names = list(runners)
    for number in range(-steps, steps):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            runner = runners[name]
            seconds = measure_seconds(partial(runner.take, number % steps), device)
            if number >= 0:
                times[name].seconds.append(seconds)
            elif number == -1 and isinstance(runner, PodiumRunner):
                runner.restart_clock()  # phases of the uncounted round do not count either
    return times


@dataclass(frozen=True)
class Variant:
    """A change of the configuration that turns off one optimisation, or replaces it by an alternative."""

    name: str
    description: str  # what the variant does instead
    changes: Mapping[str, Any]
    devices: tuple[str, ...] = ("cpu", "cuda")
    is_alternative: bool = False  # an alternative, not an optimisation turned off: not part of EVERYTHING


CUDNN, GROUPING = "cuDNN attention", "grouping"
NEEDED_ATTENTION = {CUDNN: "cudnn", GROUPING: "grouped"}  # variant → attention that it turns off
VARIANTS = (
    Variant("fused layers", "torch.compile for what is between products", {"kernels": "compiled"}, ("cuda",)),
    Variant(CUDNN, "flash attention 2", {"attention": "flash"}, ("cuda",)),
    Variant(
        "one attention launch",
        "a launch and a stream for each group of lengths",
        {"attention": "grouped", "cuda_graph": "auto"},
        ("cuda",),
    ),
    Variant(
        GROUPING,
        "attention padded to 512 tokens per sequence",
        {"attention": "grouped", "attention_widths": (512,)},
        ("cpu",),
    ),
    Variant(
        "unpadding",
        "every sequence padded to 512 tokens",
        {"balancing": "padded", "attention": "padded", "attention_widths": None, "cuda_graph": "auto"},
    ),
    Variant("kernels", "plain PyTorch for all element-wise work", {"kernels": "eager"}),
    Variant("last layer", "the last layer computed for all tokens", {"last_layer": "all"}),
    Variant("precision", "matrix products in fp32", {"precision": "fp32"}, ("cpu",)),
    Variant("CUDA graphs", "every kernel launched by the host", {"cuda_graph": "none"}, ("cuda",)),
)
EVERYTHING = "everything"


OTHER_OPTIMIZER: dict[str, tuple[str, str]] = {"lamb": ("adamw", "AdamW"), "adamw": ("lamb", "LAMB")}


def multi_rank_variants(config: RunConfig) -> list[Variant]:
    """Return the variants of what published systems do between ranks; none for a single rank.

    Optimizer and wire format are replaced by the other kind, whichever the configuration has. This compares the time of
    a step only: an optimizer's value lies in the number of samples to the target.
    """
    if config.launch.ranks == 1:
        return []
    other, name = OTHER_OPTIMIZER[config.optimizer.algorithm]
    wire = "bf16" if config.wire == "fp32" else "fp32"
    found = [
        Variant("balancing", "samples in random order, not balanced", {"balancing": "random"}),
        Variant(
            "exchange",
            "sorted samples in strides (Baidu's exchange)",
            {"balancing": "exchanged"},
            is_alternative=True,
        ),
        Variant("wire", f"gradients sent as {wire}", {"gradient_wire": wire}, is_alternative=wire != "fp32"),
        Variant(
            "optimizer",
            f"{name}, with the same settings",
            {"optimizer": config.optimizer.model_copy(update={"algorithm": other})},
            is_alternative=True,
        ),
    ]
    if config.clipping is None:
        return found
    for when, description in (
        ("bucket", "each bucket clipped, then sent at once"),
        ("after", "clipped after the reduction"),
        ("before", "clipped before the reduction: nothing is sent until backward has ended"),
    ):
        if when != config.clipping.when:
            clipping = config.clipping.model_copy(update={"when": when})
            found.append(
                Variant(f"clipping: {when}", description, {"clipping": clipping}, is_alternative=when != "before")
            )
    return [*found, Variant("clipping", "no clipping", {"clipping": None}, is_alternative=True)]


def variants(config: RunConfig, device: str) -> dict[str, tuple[str, RunConfig]]:
    """Return the variants for a device: name → description and configuration. The last turns off all optimisations.

    Variants that do not change the configuration are omitted.
    """
    found: dict[str, tuple[str, RunConfig]] = {}
    everything: dict[str, Any] = {}
    for variant in (*multi_rank_variants(config), *VARIANTS):
        needed = NEEDED_ATTENTION.get(variant.name)
        if device not in variant.devices or (needed is not None and expected_attention(config) != needed):
            continue
        changes, description = dict(variant.changes), variant.description
        if config.precision == "fp8" and changes.get("kernels", "triton") != "triton":
            changes["precision"], description = "bf16", f"{description}, in bf16"  # only Triton's kernels cast to fp8
        changed = config.model_copy(update=changes)
        if changed != config:
            found[variant.name] = (description, changed)
            everything |= {} if variant.is_alternative else changes
    if len(found) > 1:
        found[EVERYTHING] = ("all of these together", config.model_copy(update=everything))
    return found
