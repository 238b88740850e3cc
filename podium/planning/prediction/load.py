"""Mean and slowest rank's cost of a step, computed by running the balancing strategy."""

from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from benchmarks.bert.lengths import quantiles, usual_masked_counts
from podium.planning.balancing.assignment import Deal
from podium.planning.balancing.strategies import STRATEGIES, assign
from podium.planning.costs import StepCosts
from podium.planning.samplers import Sampler, StratifiedSampler

POOL = 262_144  # samples that stand for a histogram
FEWEST_STEPS, MOST_STEPS, DRAWN = 4, 64, 65_536  # steps: until DRAWN samples are drawn, within these bounds
SEED = 0
Coefficients = tuple[float, float, float, float]


@dataclass(frozen=True, eq=False)
class Lengths:
    """Tokens and masked tokens of the samples that a run draws from, int64 [N] each."""

    tokens: np.ndarray
    masked: np.ndarray
    longest: int = 512  # tokens of a padded sequence

    @classmethod
    def of_histogram(cls, histogram: np.ndarray, count: int = POOL) -> "Lengths":
        """`count` samples at evenly spaced quantiles of a histogram of lengths 0, 1, …"""
        tokens = quantiles(histogram, count)
        return cls(tokens, usual_masked_counts(tokens))

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
class Dealing:
    """How a global batch is dealt out."""

    strategy: str
    global_batch_size: int
    ranks: int
    ranks_per_node: int
    accumulation_steps: int = 1

    def __post_init__(self) -> None:
        parts = self.ranks * self.accumulation_steps
        if self.global_batch_size % parts:
            raise ValueError(f"a global batch of {self.global_batch_size} cannot be shared by {parts} micro-batches")


@dataclass(frozen=True)
class Load:
    """Seconds that the samples of one step take a rank, over all its micro-batches."""

    mean: float
    slowest: float  # the greatest of all ranks, averaged over steps


def load(dealing: Dealing, costs: StepCosts, lengths: Lengths) -> Load:
    """Deal out steps with samples of these lengths and weigh what each rank got. `costs.step` is left out.

    Raises UsageError where stratified samples and the local batch do not go together.
    """
    coefficients = (costs.token, costs.pair, costs.masked, costs.sequence)
    unit = float(lengths.means @ coefficients)
    if unit == 0:
        return Load(0.0, 0.0)
    token, pair, masked, sequence = (float(f"{value / unit:.9g}") for value in coefficients)
    relative = _load(dealing, (token, pair, masked, sequence), lengths)
    return Load(relative.mean * unit, relative.slowest * unit)


@lru_cache(maxsize=512)
def _load(dealing: Dealing, coefficients: Coefficients, lengths: Lengths) -> Load:
    batch, strategy = dealing.global_batch_size, STRATEGIES[dealing.strategy]
    token, pair, masked, sequence = coefficients
    pair_cost, sequence_cost = StepCosts(0.0, token, pair, masked, sequence).relative() or (0.0, 0.0)
    deal = Deal(dealing.ranks, dealing.ranks_per_node, pair_cost=pair_cost, sequence_cost=sequence_cost)
    costs = lengths.costs(coefficients, padded=strategy.pads)
    steps = min(MOST_STEPS, max(FEWEST_STEPS, DRAWN // batch))
    local = batch // (dealing.ranks * dealing.accumulation_steps)
    order = (
        StratifiedSampler(lengths.tokens, batch=local, seed=SEED, max_length=lengths.longest)
        if strategy.strata
        else Sampler(len(lengths.tokens), SEED)
    )
    slowest = []
    for step in range(steps):
        drawn = order.samples(step * batch, batch)
        assignment = assign(dealing.strategy, lengths.tokens[drawn], deal, dealing.accumulation_steps)
        micro_batches = assignment.loads(costs[drawn])
        ranks = micro_batches.reshape(dealing.ranks, dealing.accumulation_steps).sum(axis=1)
        slowest.append(ranks.max() / ranks.mean())
    mean = float(costs.mean()) * batch / dealing.ranks
    return Load(mean, mean * float(np.mean(slowest)))
