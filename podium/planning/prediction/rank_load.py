"""Compute time of the mean and of the slowest rank in a step, from running the balancing strategy."""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from podium.planning.balancing.interface import AssignmentSpec
from podium.planning.balancing.strategies import STRATEGIES, assign
from podium.planning.costs import StepCosts
from podium.planning.prediction.plan import Coefficients, Lengths, Plan
from podium.planning.samplers import Order, Sampler, StratifiedSampler

# Steps are simulated until MIN_DRAWN_SAMPLES are drawn, within these bounds.
MIN_STEPS, MAX_STEPS, MIN_DRAWN_SAMPLES = 4, 64, 65_536
SEED = 0


@dataclass(frozen=True)
class RankLoad:
    """Seconds of one step's samples on a rank, summed over its micro-batches."""

    mean: float
    slowest: float  # of the slowest rank of each step, averaged over steps
    busiest_tokens: float = 0.0  # tokens, with padding, of the largest micro-batch of any rank and step


def compute_load(plan: Plan) -> RankLoad:
    """Return the load of the ranks, from simulated steps with samples of the plan's lengths.

    `costs.step` is not included. Stratified samples are drawn by the plan's counts, so their mean cost is not that of
    the data. Raises UsageError if the strata do not fit the local batch or the counts, and ValueError if the global
    batch is not divisible by ranks and micro-batches.
    """
    costs, machine = plan.costs, plan.machine
    coefficients = (costs.token, costs.pair, costs.masked, costs.sequence)
    unit = float(plan.lengths.means @ coefficients)
    if unit == 0:
        return RankLoad(0.0, 0.0)
    # Relative costs, rounded to 9 digits: plans that differ only in the device's speed share an entry of the cache.
    token, pair, masked, sequence = (float(f"{value / unit:.9g}") for value in coefficients)
    assignment = plan.strategy, plan.global_batch_size, machine.ranks, machine.gpus_per_node, plan.accumulation_steps
    relative = _compute_relative_load(*assignment, plan.strata_counts, (token, pair, masked, sequence), plan.lengths)
    return RankLoad(relative.mean * unit, relative.slowest * unit, relative.busiest_tokens)


@lru_cache(maxsize=512)
def _compute_relative_load(
    name: str,
    batch: int,
    ranks: int,
    ranks_per_node: int,
    accumulation_steps: int,
    strata_counts: tuple[int, ...] | None,
    coefficients: Coefficients,
    lengths: Lengths,
) -> RankLoad:
    strategy = STRATEGIES[name]
    token, pair, masked, sequence = coefficients
    pair_cost, sequence_cost = StepCosts(0.0, token, pair, masked, sequence).relative() or (0.0, 0.0)
    spec = AssignmentSpec(ranks, ranks_per_node, pair_cost=pair_cost, sequence_cost=sequence_cost)
    costs = lengths.costs(coefficients, padded=strategy.pads)
    steps = min(MAX_STEPS, max(MIN_STEPS, MIN_DRAWN_SAMPLES // batch))
    local = batch // (ranks * accumulation_steps)
    order: Order = Sampler(len(lengths.tokens), SEED)
    mean = float(costs.mean())
    if strategy.strata:
        order = StratifiedSampler(
            lengths.tokens, batch=local, seed=SEED, max_length=lengths.max_length, counts=strata_counts
        )
        mean = order.mean_of(costs)
    slots = np.full(len(lengths.tokens), lengths.max_length) if strategy.pads else lengths.tokens
    slowest, busiest = [], 0.0
    for step in range(steps):
        drawn = order.samples(step * batch, batch)
        assignment = assign(name, lengths.tokens[drawn], spec, accumulation_steps)
        of_ranks = assignment.loads(costs[drawn]).reshape(ranks, accumulation_steps).sum(axis=1)
        # Ranks wait for each other once per step, at the optimizer, and not after each micro-batch.
        slowest.append(of_ranks.max() / of_ranks.mean())
        busiest = max(busiest, float(assignment.loads(slots[drawn]).max()))
    mean *= batch / ranks
    return RankLoad(mean, mean * float(np.mean(slowest)), busiest)
