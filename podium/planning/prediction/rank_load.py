"""Mean and slowest rank's cost of a step, computed by running the balancing strategy."""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from podium.planning.balancing.interface import Deal
from podium.planning.balancing.strategies import STRATEGIES, assign
from podium.planning.costs import StepCosts
from podium.planning.prediction.plan import Coefficients, Lengths, Plan
from podium.planning.samplers import Order, Sampler, StratifiedSampler

FEWEST_STEPS, MOST_STEPS, DRAWN = 4, 64, 65_536  # steps: until DRAWN samples are drawn, within these bounds
SEED = 0


@dataclass(frozen=True)
class Load:
    """Seconds that the samples of one step take a rank, over all its micro-batches."""

    mean: float
    slowest: float  # the greatest of all ranks, averaged over steps
    busiest_tokens: float = 0.0  # token slots of the largest micro-batch of any rank and step


def load(plan: Plan) -> Load:
    """Deal out steps with samples of the plan's lengths and weigh what each rank got. `costs.step` is left out.

    Stratified samples are drawn by the plan's counts, and weigh what those that are drawn do: their mean is not that of
    the data. Raises UsageError where they and the local batch or the counts do not go together, and ValueError where
    ranks and micro-batches cannot share the global batch.
    """
    costs, machine = plan.costs, plan.machine
    coefficients = (costs.token, costs.pair, costs.masked, costs.sequence)
    unit = float(plan.lengths.means @ coefficients)
    if unit == 0:
        return Load(0.0, 0.0)
    token, pair, masked, sequence = (float(f"{value / unit:.9g}") for value in coefficients)
    dealt = plan.strategy, plan.global_batch_size, machine.ranks, machine.gpus_per_node, plan.accumulation_steps
    relative = _load(*dealt, plan.strata_counts, (token, pair, masked, sequence), plan.lengths)
    return Load(relative.mean * unit, relative.slowest * unit, relative.busiest_tokens)


@lru_cache(maxsize=512)
def _load(
    name: str,
    batch: int,
    ranks: int,
    ranks_per_node: int,
    accumulation_steps: int,
    strata_counts: tuple[int, ...] | None,
    coefficients: Coefficients,
    lengths: Lengths,
) -> Load:
    strategy = STRATEGIES[name]
    token, pair, masked, sequence = coefficients
    pair_cost, sequence_cost = StepCosts(0.0, token, pair, masked, sequence).relative() or (0.0, 0.0)
    deal = Deal(ranks, ranks_per_node, pair_cost=pair_cost, sequence_cost=sequence_cost)
    costs = lengths.costs(coefficients, padded=strategy.pads)
    steps = min(MOST_STEPS, max(FEWEST_STEPS, DRAWN // batch))
    local = batch // (ranks * accumulation_steps)
    order: Order = Sampler(len(lengths.tokens), SEED)
    mean = float(costs.mean())
    if strategy.strata:
        order = StratifiedSampler(
            lengths.tokens, batch=local, seed=SEED, max_length=lengths.longest, counts=strata_counts
        )
        mean = order.mean_of(costs)
    slots = np.full(len(lengths.tokens), lengths.longest) if strategy.pads else lengths.tokens
    slowest, busiest = [], 0.0
    for step in range(steps):
        drawn = order.samples(step * batch, batch)
        assignment = assign(name, lengths.tokens[drawn], deal, accumulation_steps)
        of_ranks = assignment.loads(costs[drawn]).reshape(ranks, accumulation_steps).sum(axis=1)
        slowest.append(of_ranks.max() / of_ranks.mean())
        busiest = max(busiest, float(assignment.loads(slots[drawn]).max()))
    mean *= batch / ranks
    return Load(mean, mean * float(np.mean(slowest)), busiest)
