"""What is timed: training steps of Podium under one configuration, or of another implementation on the same samples."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Protocol

import numpy as np
import torch

from benchmarks.bert.sizes import Size
from implementations.pytorch.data.reading import Step
from implementations.pytorch.data.shapes import run_shapes
from implementations.pytorch.data.synthetic import synthetic_step
from implementations.pytorch.measuring.samples import SEED, Lengths
from implementations.pytorch.training.building import build_order, build_stepper, uses_graphs
from implementations.pytorch.training.phases import PhaseClock
from implementations.pytorch.training.processes import Processes
from implementations.pytorch.training.warmup import warm_up
from podium.config import RunConfig


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
        ordered = [1000 * value for value in sorted(self.seconds)]
        return {"least": ordered[0], "median": median(ordered), "greatest": ordered[-1]}


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
            _wait(device)
            started = time.perf_counter()
            side.take(number % steps)
            _wait(device)
            if number >= 0:
                times[name].seconds.append(time.perf_counter() - started)
            elif number == -1 and isinstance(side, Podium):
                side.clock = PhaseClock()
    return times


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
