"""How evenly each strategy assigns samples to ranks: the report of `podium balance`.

Global batches of samples of given lengths are assigned as in a run, for thousands of ranks in one process: no torch,
no ranks, no network.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.bert.lengths import quantiles, read_histogram, wikipedia_histogram
from benchmarks.bert.sizes import LARGE, VOCABULARY_SIZE
from podium.core.errors import UsageError
from podium.planning.balancing.interface import Deal, least_max_over_mean
from podium.planning.balancing.strategies import STRATEGIES, assign
from podium.planning.packing import Packs, least_squares_packs, longest_pack_first, shortest_pack_first
from podium.planning.samplers import Order, Sampler, StratifiedSampler

if TYPE_CHECKING:
    from podium.config.schema import RunConfig

POOL = 1_000_000  # samples that stand for a histogram, at evenly spaced quantiles of it
PACK_DEPTHS = (2, 3, 4, 8, 16, None)  # most sequences in a row
MOST_SAMPLES = 2**22  # largest global batch
DRAWN_SAMPLES = 2**17  # samples that are drawn at once, if they are not a single step's
FEWEST_STEPS, MOST_STEPS = 20, 400  # unless a number is given
USUAL_SAMPLES = 2**20  # of all steps together, as far as these bounds allow
GPUS_PER_NODE = 8


@dataclass(frozen=True)
class Cluster:
    """Among whom samples are dealt out, with the costs of BERT-large's matrix products where none are known, and how
    many each takes in a step."""

    deal: Deal
    local_batch: int
    accumulation_steps: int = 1
    strata_counts: tuple[int, ...] | None = None  # of a micro-batch; None: as lengths give them

    @classmethod
    def of_system(cls, config: "RunConfig") -> "Cluster":
        """A system under its recipe, with the costs that were measured on it."""
        # here, since numbers of ranks need no configuration's library
        from podium.planning.costs import with_measured_costs

        deal = Deal.of_config(with_measured_costs(config), LARGE.relative_costs(VOCABULARY_SIZE))
        local, steps, counts = config.local_batch_size, config.gradient_accumulation_steps, config.strata_counts
        # with a recipe that draws no strata, a system's counts may be of another batch size, which was not checked then
        return cls(deal, local, steps, counts if counts is not None and sum(counts) == local // steps else None)

    @classmethod
    def of_ranks(
        cls, ranks: int, local_batch: int, ranks_per_node: int | None, counts: str | None, scan: str | None
    ) -> "Cluster":
        """Nodes of eight, unless said otherwise or there is one that is not full."""
        per_node = ranks_per_node or (GPUS_PER_NODE if ranks % GPUS_PER_NODE == 0 else ranks)
        if ranks % per_node:
            raise UsageError(f"--ranks-per-node: found {per_node}, allowed are divisors of --ranks {ranks}")
        if counts not in (None, "equal", "free"):
            raise UsageError(f"--counts: found {counts}, allowed are equal, free")
        if scan not in (None, "stride", "snake"):
            raise UsageError(f"--scan: found {scan}, allowed are stride, snake")
        allowed: dict[str, Any] = {"counts": counts or "equal", "scan": scan}
        return cls(Deal(ranks, per_node, *LARGE.relative_costs(VOCABULARY_SIZE), **allowed), local_batch)


@dataclass(frozen=True)
class Balance:
    """A strategy's mean over steps of max/mean over ranks, its 99th percentile, and what it costs.

    Tokens are those that a rank computes, padding included.
    """

    max_over_mean_tokens: float
    max_over_mean_tokens_p99: float
    max_over_mean_cost: float
    max_over_mean_cost_p99: float
    padding_share: float
    least_cost: float  # lower bound of the mean of max/mean of cost with these samples and counts
    milliseconds: float  # to compute one step's assignment, the median
    communication: str
    bytes_per_step: float  # sent by a rank where ranks hold shards of their own, as the published system did


def balance_report(
    cluster: Cluster,
    strategies: Sequence[str] = (),
    lengths: Path | None = None,
    steps: int | None = None,
    packing: bool = False,
    seed: int = 0,
) -> dict[str, Any]:
    """Assign the samples of `steps` global batches by each strategy, or by all where none is named.

    Without a number of steps they are as many as have a million samples, from 20 to 400. Samples have the lengths of
    Wikipedia's, or of a file's histogram; `packing` packs a whole dataset too, in every way. Raises UsageError for what
    cannot be shared out.
    """
    size = cluster.deal.parts * cluster.local_batch
    if size > MOST_SAMPLES:
        raise UsageError(f"--ranks × --local-batch: found {size:,}, allowed are up to {MOST_SAMPLES:,} samples")
    if steps is None:
        steps = min(max(USUAL_SAMPLES // size, FEWEST_STEPS), MOST_STEPS)
    unknown = [name for name in strategies if name not in STRATEGIES]
    if unknown:
        raise UsageError(f"--strategy: found {unknown[0]}, allowed are all, {', '.join(STRATEGIES)}")
    histogram = wikipedia_histogram() if lengths is None else read_histogram(lengths.resolve())
    deal = replace(cluster.deal, row_tokens=len(histogram) - 1)
    found, impossible = balances_of(
        strategies or [*STRATEGIES],
        histogram,
        deal,
        cluster.local_batch,
        cluster.accumulation_steps,
        steps,
        seed,
        strata_counts=cluster.strata_counts,
    )
    if not found:
        raise UsageError(next(iter(impossible.values())))
    return {
        "strategies": {name: vars(balance) for name, balance in found.items()},
        "impossible": impossible,
        "steps": steps,
        "packing": packing_of(histogram) if packing else None,
        "pair_cost": deal.pair_cost,
        "sequence_cost": deal.sequence_cost,
    }


def balances_of(
    strategies: Sequence[str],
    histogram: np.ndarray,
    deal: Deal,
    local_batch: int,
    accumulation_steps: int = 1,
    steps: int = 100,
    seed: int = 0,
    pool: np.ndarray | None = None,
    strata_batch: int | None = None,
    strata_counts: Sequence[int] | None = None,
) -> tuple[dict[str, Balance], dict[str, str]]:
    """The balance of each strategy over the same `steps` global batches, and why others are impossible here.

    Lengths are distributed as a histogram of 0, 1, … tokens; `pool` [N] uint16 are those of all samples, instead of a
    million. Strategies with strata share batches of their own, in which so many samples (`strata_batch`; None: a
    micro-batch) have fixed counts of each stratum, `strata_counts` or those that the lengths give.
    """
    pool = quantiles(histogram, POOL).astype(np.uint16) if pool is None else pool
    longest, size = len(histogram) - 1, deal.parts * local_batch
    tallies: dict[str, _Tally] = {name: _Tally(name, deal, longest) for name in strategies}
    streams: dict[bool, Iterator[np.ndarray]] = {}
    impossible: dict[str, str] = {}
    for strata in {STRATEGIES[name].strata for name in strategies}:
        order: Order = Sampler(len(pool), seed)
        try:
            if strata:
                batch = strata_batch or local_batch // accumulation_steps
                order = StratifiedSampler(pool, batch=batch, seed=seed, max_length=longest, counts=strata_counts)
        except UsageError as error:
            impossible |= {name: str(error) for name in strategies if STRATEGIES[name].strata}
        else:
            streams[strata] = _global_batches(order, pool, size, steps)
    possible = {name: tally for name, tally in tallies.items() if name not in impossible}
    for _ in range(steps):
        drawn = {strata: next(stream) for strata, stream in streams.items()}
        shared: dict[tuple[object, ...], _Shared] = {}
        for tally in possible.values():
            tally.add(drawn[tally.strategy.strata], accumulation_steps, shared)
    return {name: tally.balance() for name, tally in possible.items()}, impossible


def _global_batches(order: Order, pool: np.ndarray, size: int, steps: int) -> Iterator[np.ndarray]:
    """Lengths [size] of step after step; many steps are drawn at once, since a draw costs little beside its call."""
    at_once = max(1, DRAWN_SAMPLES // size)
    for first in range(0, steps, at_once):
        yield from pool[order.samples(first * size, min(at_once, steps - first) * size)].reshape(-1, size)


# What is equal for several strategies in one step: tokens that are not padding; the cost of each sample without that of
# its tokens, padding included; and the bound of max/mean of cost.
_Shared = tuple[int, np.ndarray, float]


class _Tally:
    """What one strategy did in each step."""

    def __init__(self, name: str, deal: Deal, longest: int) -> None:
        self.name, self.strategy, self.deal, self.longest = name, STRATEGIES[name], deal, longest
        self.bounded = replace(deal, counts="equal" if self.strategy.has_equal_counts(deal) else "free")
        self.cost_of = deal.costs(np.arange(longest + 1))
        self.seconds: list[float] = []
        self.tokens: list[tuple[int, int]] = []
        self.costs: list[float] = []
        self.least: list[float] = []
        self.real, self.bytes_sent = 0, 0.0

    def add(self, lengths: np.ndarray, accumulation_steps: int, shared: dict[tuple[object, ...], _Shared]) -> None:
        """Assign a global batch of these lengths. `shared` keeps what strategies have in common."""
        kind, deal = self.strategy, self.deal
        started = time.perf_counter()
        assignment = assign(self.name, lengths, deal, accumulation_steps)
        self.seconds.append(time.perf_counter() - started)
        slots = self._by_rank(kind.slots(lengths, assignment, deal, self.longest))
        key = (kind.strata, kind.pads, self.bounded.counts)
        if key not in shared:
            computed = np.full_like(lengths, self.longest) if kind.pads else lengths
            longest_first = np.repeat(self.cost_of[::-1], np.bincount(computed, minlength=len(self.cost_of))[::-1])
            beyond_tokens = (self.cost_of - np.arange(len(self.cost_of)))[computed]
            least = least_max_over_mean(longest_first, self.bounded)
            shared[key] = int(lengths.sum(dtype=np.int64)), beyond_tokens, least
        real, beyond_tokens, least = shared[key]
        self.tokens.append((slots.sum(), slots.max()))
        cost = slots + self._by_rank(assignment.loads(beyond_tokens))
        self.costs.append(cost.max() / cost.mean())
        self.least.append(least)
        self.real += real
        self.bytes_sent += kind.bytes_per_step(lengths, deal)

    def _by_rank(self, of_micro_batches: np.ndarray) -> np.ndarray:
        """Sums [ranks]."""
        sums: np.ndarray = of_micro_batches.reshape(self.deal.parts, -1).sum(axis=1)
        return sums

    def balance(self) -> Balance:
        """All steps together."""
        summed, most = np.array(self.tokens, dtype=np.float64).T
        over = most * self.deal.parts / summed
        return Balance(
            max_over_mean_tokens=float(over.mean()),
            max_over_mean_tokens_p99=float(np.quantile(over, 0.99)),
            max_over_mean_cost=float(np.mean(self.costs)),
            max_over_mean_cost_p99=float(np.quantile(self.costs, 0.99)),
            padding_share=1 - self.real / float(summed.sum()),
            least_cost=float(np.mean(self.least)),
            milliseconds=1000 * median(self.seconds),
            communication=self.strategy.communication,
            bytes_per_step=self.bytes_sent / len(self.seconds),
        )


def packing_of(histogram: np.ndarray) -> list[dict[str, Any]]:
    """How full the rows are, and of how many sequences, when all of a histogram is packed ahead of a run."""
    whole, row_tokens = np.rint(histogram).astype(np.int64), len(histogram) - 1
    if not whole.any():
        raise UsageError("--lengths: found less than half a sample of each length; --packing takes whole samples")
    packings: list[tuple[str, int | None, Packs]] = [("least squares", 3, least_squares_packs(whole, row_tokens))]
    for name, pack in (("shortest pack first", shortest_pack_first), ("longest pack first", longest_pack_first)):
        packings += [(name, depth, pack(whole, row_tokens, depth)) for depth in PACK_DEPTHS]
    return [
        {
            "method": name,
            "depth": depth,
            "efficiency": packs.efficiency,
            "sequences_per_row": packs.sequences / packs.rows,
        }
        for name, depth, packs in packings
    ]
