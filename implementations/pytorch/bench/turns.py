"""Sides of a benchmark in turn: each is built, timed and freed before the next one is built.

So each side has the whole memory of the device. The steps are spread over a few rounds. In each round every side runs
the same steps, and the order of the sides alternates, so that drift of clock rates and other load affect all of them.
"""

import gc
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import torch

from implementations.pytorch.bench.memory import free_memory
from implementations.pytorch.bench.variants import PodiumRunner, StepRunner, StepTimes
from implementations.pytorch.distributed.process_group import Processes
from implementations.pytorch.precision import measure_seconds
from podium.core.errors import UsageError

# Repetitions of a round's steps, first uncounted and then counted. A GPU's clock rate falls in the first second of
# load, and its steps are short.
REPETITIONS = {"cpu": 1, "cuda": 8}
REASON_LENGTH = 300


class ClosableRunner(StepRunner, Protocol):
    """A runner with something that outlives the last reference to it, such as captured CUDA graphs."""

    def close(self) -> None:
        """Release it."""


@dataclass(frozen=True)
class Side:
    """An implementation or variant to time."""

    name: str
    build: Callable[[], ClosableRunner]
    needed_bytes: int  # estimated peak memory
    # Called after each turn's steps with the runner, which it must not keep, and the number of rounds that are left.
    examine: Callable[[Any, int], None] = lambda runner, rounds_left: None


@dataclass
class SideResult:
    """Measurements of a side, and why it has none or fewer than others."""

    needed_bytes: int
    rounds: dict[int, dict[int, float]] = field(default_factory=dict)  # round → step → seconds
    peak_bytes: int | None = None  # a GPU's, building and warm-up included; None on a CPU
    misfit: str | None = None  # why it was not built
    failure: str | None = None  # the error of a turn

    @property
    def obstacle(self) -> str | None:
        """Why the side takes no further turn; None if it does."""
        return self.misfit or self.failure

    @property
    def times(self) -> StepTimes:
        """The seconds of each step, in the order in which the steps were run."""
        return StepTimes([seconds for steps in self.rounds.values() for seconds in steps.values()])

    @property
    def steps(self) -> list[int]:
        """Numbers of the steps of `times`."""
        return [number for steps in self.rounds.values() for number in steps]

    def ratios(self, baseline: "SideResult") -> list[float]:
        """Return the time of each round that both sides have run, relative to the baseline's."""
        return [
            sum(steps.values()) / sum(baseline.rounds[number].values())
            for number, steps in self.rounds.items()
            if number in baseline.rounds
        ]


def time_in_turns(
    sides: Sequence[Side],
    steps: int,
    rounds: int,
    processes: Processes,
    on_turn: Callable[[Mapping[str, SideResult]], None] = lambda results: None,
) -> dict[str, SideResult]:
    """Time steps 0 to `steps` - 1 of every side, spread over `rounds` rounds; the first side is the baseline.

    A side that does not fit into the memory is not built, and one that fails takes no further turn: its result has the
    reason. Without the baseline the rounds end; an error of its first turn is raised. With several ranks any error that
    not all of them are known to have is raised, since the others may wait in a collective. `on_turn` is called after
    each turn.
    """
    results = {side.name: SideResult(side.needed_bytes) for side in sides}
    free = free_memory(processes.device)
    for side in sides:
        result = results[side.name]
        if processes.all_reduce_max(int(side.needed_bytes > free)):
            result.misfit = f"does not fit: needs about {_gib(side.needed_bytes)} GiB of {_gib(free)}"
    for number in range(rounds):
        for side in sides if number % 2 == 0 else reversed(sides):
            result = results[side.name]
            if result.obstacle is None and results[sides[0].name].obstacle is None:
                try:
                    _build_and_time(side, result, number, range(number, steps, rounds), rounds - number - 1, processes)
                except Exception as error:
                    is_first_turn = side is sides[0] and not result.rounds
                    if is_first_turn or (processes.ranks > 1 and not isinstance(error, UsageError)):
                        raise
                    result.failure = _reason(error)
                on_turn(results)  # first: after some errors of a GPU no call of CUDA succeeds
                # Only here, since the error's traceback refers to the frames that refer to the runner.
                free_device(processes.device)
    return results


def _build_and_time(
    side: Side, result: SideResult, number: int, steps: Sequence[int], rounds_left: int, processes: Processes
) -> None:
    device = processes.device
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    runner = side.build()
    try:
        repetitions = REPETITIONS[device.type]
        for _ in range(repetitions):
            for step in steps:
                measure_seconds(partial(runner.take, step), device)
        if isinstance(runner, PodiumRunner):
            runner.restart_clock()  # phases of the uncounted steps do not count either
        seconds = dict.fromkeys(steps, 0.0)
        for _ in range(repetitions):
            for step in steps:
                seconds[step] += measure_seconds(partial(runner.take, step), device) / repetitions
        result.rounds[number] = seconds
        if device.type == "cuda":
            # With the warm-up: what graphs use when they are replayed does not count as allocated.
            result.peak_bytes = max(result.peak_bytes or 0, torch.cuda.max_memory_allocated(device))
        side.examine(runner, rounds_left)
    finally:
        runner.close()


def free_device(device: torch.device) -> None:
    """Return all memory that is no longer referenced to the device."""
    # What torch.compile has compiled for a model counts for the recompile limit of the next one; its kernels are cached
    # on disk.
    if "torch._dynamo" in sys.modules:
        torch._dynamo.reset()
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def _reason(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    text = lines[0] if lines else ""
    text = text if isinstance(error, UsageError) or not text else f"{type(error).__name__}: {text}"
    return (text or type(error).__name__)[:REASON_LENGTH]


def _gib(count: int) -> str:
    return f"{count / 2**30:.0f}" if count >= 10 * 2**30 else f"{count / 2**30:.1f}"
