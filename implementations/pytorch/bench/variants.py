"""Variants to time: steps of Podium under different options, and of other implementations on the same samples.

The ablation turns off every optimisation, one at a time (the idea is that of arXiv 2208.08124), and on several ranks
also does what published systems do between ranks: balancing, exchange, clipping, wire and optimizer. The samples are
synthetic, of given lengths, and assigned to ranks as in a run.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from statistics import median
from typing import Any, Protocol

import numpy as np
import torch

from benchmarks.bert.lengths import quantiles, usual_masked_counts
from benchmarks.bert.sizes import SEQUENCE_LENGTH, Size
from implementations.pytorch.build_run import build_order, build_stepper, uses_graphs, warm_up
from implementations.pytorch.data.reader import Step
from implementations.pytorch.data.synthetic import synthetic_step
from implementations.pytorch.distributed.process_group import Processes
from implementations.pytorch.phase_clock import PhaseClock
from implementations.pytorch.precision import timed
from podium.config.schema import RunConfig
from podium.core.errors import UsageError
from podium.planning.batch_plan import run_shapes

SEED = 0


@dataclass(frozen=True)
class Lengths:
    """What the length index of a store tells, where there is no store."""

    lengths: np.ndarray
    max_sequence_length: int = SEQUENCE_LENGTH

    @cached_property
    def masked_counts(self) -> np.ndarray:
        return usual_masked_counts(self.lengths)

    def __len__(self) -> int:
        return len(self.lengths)


def mixed_lengths(histogram: np.ndarray, count: int) -> np.ndarray:
    """`count` lengths at evenly spaced quantiles of a histogram (samples of length 0, 1, …), shuffled.

    So few samples have the mixture of many, and all sides and machines are timed on the same.
    """
    return np.random.default_rng(SEED).permutation(quantiles(histogram, count))


class Side(Protocol):
    """Something that takes training steps, numbered from 0."""

    def take(self, number: int) -> None: ...


@dataclass
class Times:
    """Seconds of each step of one side."""

    seconds: list[float] = field(default_factory=list)

    @property
    def total(self) -> float:
        return sum(self.seconds)

    @property
    def milliseconds(self) -> dict[str, float]:
        return _spread([1000 * value for value in self.seconds])

    def ratios(self, others: "Times") -> dict[str, float]:
        """How many times as long as another side's the steps took, one by one."""
        return _spread([a / b for a, b in zip(self.seconds, others.seconds, strict=True)])


def _spread(values: Sequence[float]) -> dict[str, float]:
    return {"least": min(values), "median": median(values), "greatest": max(values)}


HEAD_SIZE = 64


def resized(size: Size, layers: int, hidden: int) -> Size:
    """A size with another number of layers and another width, with heads of 64, and BERT's own random start.

    Raises UsageError for a width that is not whole heads.
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


class Podium:
    """Whole steps as a run takes them, on prepared synthetic batches."""

    def __init__(
        self, config: RunConfig, processes: Processes, lengths: np.ndarray, words: int, size: Size | None = None
    ) -> None:
        """Every sample is in exactly one of the steps, of which there are len(lengths) / global batch size."""
        order, rank = build_order(config, Lengths(lengths), words, processes.device, SEED), processes.rank
        count = len(lengths) // config.global_batch_size
        self.stepper = build_stepper(config, processes, words, size)
        shapes = run_shapes(order, rank, count) if uses_graphs(config, processes.device) else None
        warm_up(self.stepper, order, words, graph_shapes=shapes)
        masked_slots = shapes.masked_slots if shapes else None
        self.steps = [synthetic_step(order, number, rank, words, masked_slots) for number in range(count)]
        if processes.device.type == "cuda":
            self.steps = [Step(tuple(b.pinned() for b in step.micro_batches), step.whole) for step in self.steps]
        self.clock = PhaseClock()

    @property
    def phases_ms(self) -> dict[str, float]:
        """Milliseconds of a step in each phase that took any time."""
        return {phase: 1000 * s / len(self.steps) for phase, s in self.clock.seconds.items() if s > 0}

    def take(self, number: int) -> None:
        self.clock.restart()
        self.stepper.take(self.steps[number], self.clock)


def time_in_turn(sides: Mapping[str, Side], steps: int, device: torch.device) -> dict[str, Times]:
    """Times of `steps` steps of every side, one of each in turn, after a round that is not counted.

    The uncounted round meets every shape once. Who begins changes from step to step, since what ran before leaves its
    traces in caches and memory. A GPU is waited for before and after each step.
    """
    times = {name: Times() for name in sides}
    names = list(sides)
    for number in range(-steps, steps):
        begin = number % len(names)
        for name in names[begin:] + names[:begin]:
            side = sides[name]
            seconds = timed(partial(side.take, number % steps), device)
            if number >= 0:
                times[name].seconds.append(seconds)
            elif number == -1 and isinstance(side, Podium):
                side.clock = PhaseClock()
    return times


@dataclass(frozen=True)
class Variant:
    """A configuration without one thing."""

    name: str
    what: str  # what is done instead
    changes: Mapping[str, Any]
    devices: tuple[str, ...] = ("cpu", "cuda")
    is_choice: bool = False  # another way, and not an optimisation turned off: no part of EVERYTHING


VARIANTS = (
    Variant("torch.compile", "Triton kernels in its place", {"kernels": "triton"}, ("cuda",)),
    Variant(
        "flash attention",
        "a launch and a stream for each group of lengths",
        {"attention": "grouped", "cuda_graph": "auto"},
        ("cuda",),
    ),
    Variant(
        "grouping",
        "attention in one rectangle of 512 tokens a sequence",
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


def variants_of_ranks(config: RunConfig) -> list[Variant]:
    """What published systems differ in between ranks, as the papers ablate it; nothing where there is one rank.

    Optimizer and wire are exchanged for the other kind, whichever the configuration has: for the time of a step alone,
    since what an optimizer is worth are samples to target.
    """
    if config.launch.ranks == 1:
        return []
    other, name = OTHER_OPTIMIZER[config.optimizer.algorithm]
    wire = "bf16" if config.wire == "fp32" else "fp32"
    found = [
        Variant("balancing", "samples as they come", {"balancing": "random"}),
        Variant(
            "exchange",
            "sorted samples in strides (Baidu's exchange)",
            {"balancing": "exchanged"},
            is_choice=True,
        ),
        Variant("wire", f"gradients sent as {wire}", {"gradient_wire": wire}, is_choice=wire != "fp32"),
        Variant(
            "optimizer",
            f"{name}, with the same settings",
            {"optimizer": config.optimizer.model_copy(update={"algorithm": other})},
            is_choice=True,
        ),
    ]
    if config.clipping is None:
        return found
    for when, what in (
        ("bucket", "each bucket clipped, then sent at once"),
        ("after", "clipped after the reduction"),
        ("before", "clipped before the reduction: nothing is sent until backward has ended"),
    ):
        if when != config.clipping.when:
            clipping = config.clipping.model_copy(update={"when": when})
            found.append(Variant(f"clipping: {when}", what, {"clipping": clipping}, is_choice=when != "before"))
    return [*found, Variant("clipping", "none at all", {"clipping": None}, is_choice=True)]


def variants(config: RunConfig, device: str) -> dict[str, tuple[str, RunConfig]]:
    """Name → what is done instead, and the configuration; last, all of it at once. Those that change nothing are left
    out."""
    found: dict[str, tuple[str, RunConfig]] = {}
    everything: dict[str, Any] = {}
    for variant in (*variants_of_ranks(config), *VARIANTS):
        if device not in variant.devices:
            continue
        changed = config.model_copy(update=dict(variant.changes))
        if changed != config:
            found[variant.name] = (variant.what, changed)
            everything |= {} if variant.is_choice else variant.changes
    if len(found) > 1:
        found[EVERYTHING] = ("all of these together", config.model_copy(update=everything))
    return found
