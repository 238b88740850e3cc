"""Costs of a step by token, pair of tokens, masked token and sequence, fitted to timed steps of many batches."""

from statistics import median

import numpy as np

from implementations.pytorch.bench.variants import time_interleaved
from implementations.pytorch.data.batch import collate
from implementations.pytorch.data.reader import Step
from implementations.pytorch.data.synthetic import synthetic_sample
from implementations.pytorch.phase_clock import PhaseClock
from implementations.pytorch.step import Stepper
from podium.planning.batch_plan import GlobalBatch
from podium.planning.costs import StepCosts, fit

ROUNDS = 5  # repetitions of each composition, of which the median is used


def measure_costs(stepper: Stepper, mixed: np.ndarray, shape_step: int, vocabulary_size: int) -> StepCosts:
    """Fit the step costs of this process around a micro-batch of the `mixed` lengths [n].

    Compositions: that micro-batch, half of it, sequences of one length, each with 15% or 5% of the tokens masked.
    """
    count, tokens = len(mixed), int(mixed.sum())
    compositions = [(mixed, 0.15), (mixed[: max(1, count // 2)], 0.15), (mixed, 0.05)]
    for length in (32, 128, 256, 512):
        uniform = np.full(max(1, tokens // length), length)
        compositions += [(uniform, 0.15), (uniform[: max(1, len(uniform) // 2)], 0.05)]
    runner = _Compositions(stepper, compositions, shape_step, vocabulary_size)
    seconds: list[list[float]] = [[] for _ in compositions]
    for _ in range(ROUNDS):
        times = time_interleaved({"": runner}, len(compositions), stepper.processes.device)[""].seconds
        for repetitions, value in zip(seconds, times, strict=True):
            repetitions.append(value)
    measured = [
        (lengths, step.global_batch.masked, median(values))
        for (lengths, _), step, values in zip(compositions, runner.steps, seconds, strict=True)
    ]
    return fit(measured)


class _Compositions:
    """Runs a step of each composition, without CUDA graphs, since no graph is captured for these shapes."""

    def __init__(
        self, stepper: Stepper, compositions: list[tuple[np.ndarray, float]], shape_step: int, vocabulary_size: int
    ) -> None:
        self.stepper = stepper
        self.steps = [self._step(lengths, share, shape_step, vocabulary_size) for lengths, share in compositions]

    def take(self, number: int) -> None:
        graphs, self.stepper.graphs = self.stepper.graphs, None
        self.stepper.take(self.steps[number], PhaseClock())
        self.stepper.graphs = graphs

    def _step(self, lengths: np.ndarray, share: float, shape_step: int, vocabulary_size: int) -> Step:
        rng = np.random.default_rng(0)
        samples = [synthetic_sample(n, max(1, round(share * n)), vocabulary_size, rng) for n in lengths.tolist()]
        batch = collate(samples, None, shape_step)
        ranks = self.stepper.processes.ranks
        global_batch = GlobalBatch(
            first_sample=0,
            indices=np.zeros(ranks * len(lengths), dtype=np.int64),
            lengths=np.tile(lengths.astype(np.int64), ranks),
            masked_counts=np.tile(np.array(batch.masked_counts, dtype=np.int64), ranks),
            starts=np.arange(ranks + 1) * len(lengths),
            micro_batch_slots=np.full((ranks, 1), batch.slots),
        )
        return Step((batch,), global_batch)
