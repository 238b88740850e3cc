"""How evenly each strategy assigns samples to ranks: the report of `podium balance`.

Global batches of samples with given lengths are assigned as in a run. One process simulates thousands of ranks, without
torch and without a network.
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
from podium.planning.balancing.interface import AssignmentSpec, max_over_mean_lower_bound
from podium.planning.balancing.strategies import STRATEGIES, assign
from podium.planning.packing import Packs, least_squares_packs, longest_pack_first, shortest_pack_first
from podium.planning.samplers import Order, Sampler, StratifiedSampler

if TYPE_CHECKING:
    from podium.config.schema import RunConfig

POOL = 1_000_000  # samples that represent a histogram, at evenly spaced quantiles of it
PACK_DEPTHS = (2, 3, 4, 8, 16, None)  # maximum sequences in a row
MAX_SAMPLES = 2**22  # of a global batch
SAMPLES_PER_DRAW = 2**17  # in whole steps; a larger step is drawn alone
MIN_STEPS, MAX_STEPS = 20, 400  # bounds of the default number of steps
DEFAULT_SAMPLES = 2**20  # of all steps together, within these bounds
GPUS_PER_NODE = 8


@dataclass(frozen=True)
class Cluster:
    """The ranks that samples are assigned to, and the samples of each rank in a step.

    Costs are those of BERT-large's matrix products where none were measured.
    """

    spec: AssignmentSpec
    local_batch: int
    accumulation_steps: int = 1
    strata_counts: tuple[int, ...] | None = None  # of a micro-batch; None: in proportion to the lengths

    @classmethod
    def of_system(cls, config: "RunConfig") -> "Cluster":
        """The ranks of a system with its recipe, and the costs that were measured on it."""
        # Imported here: `of_ranks` works without the configuration's dependencies.
        from podium.planning.costs import with_measured_costs

        spec = AssignmentSpec.of_config(with_measured_costs(config), LARGE.relative_costs(VOCABULARY_SIZE))
        local, steps, counts = config.local_batch_size, config.gradient_accumulation_steps, config.strata_counts
        # The configuration checks strata counts against the batch size only for recipes that draw strata. With any
        # other recipe a system's counts may be for another batch size, and are ignored here.
        return cls(spec, local, steps, counts if counts is not None and sum(counts) == local // steps else None)

    @classmethod
    def of_ranks(
        cls, ranks: int, local_batch: int, ranks_per_node: int | None, counts: str | None, scan: str | None
    ) -> "Cluster":
        """Ranks in nodes of `ranks_per_node`: by default of eight, or one node if eight does not divide `ranks`.

        Raises UsageError for a value that is not allowed, naming its option.
        """
        per_node = ranks_per_node or (GPUS_PER_NODE if ranks % GPUS_PER_NODE == 0 else ranks)
        if ranks % per_node:
            raise UsageError(f"--ranks-per-node: found {per_node}, allowed are divisors of --ranks {ranks}")
        if counts not in (None, "equal", "free"):
            raise UsageError(f"--counts: found {counts}, allowed are equal, free")
        if scan not in (None, "stride", "snake"):
            raise UsageError(f"--scan: found {scan}, allowed are stride, snake")
        allowed: dict[str, Any] = {"counts": counts or "equal", "scan": scan}
        return cls(AssignmentSpec(ranks, per_node, *LARGE.relative_costs(VOCABULARY_SIZE), **allowed), local_batch)


@dataclass(frozen=True)
class Balance:
    """Balance of a strategy: mean and 99th percentile over steps of max/mean over ranks, and its overheads.

    Tokens are those that a rank computes, padding included.
    """

    max_over_mean_tokens: float
    max_over_mean_tokens_p99: float
    max_over_mean_cost: float
    max_over_mean_cost_p99: float
    padding_share: float
    lower_bound_cost: float  # lower bound on the mean of max/mean of cost for these samples and counts
    milliseconds: float  # median time to compute one step's assignment
    communication: str
    bytes_per_step: float  # sent by a rank if each rank stores other shards, as in the published system


def balance_report(
    cluster: Cluster,
    strategies: Sequence[str] = (),
    lengths: Path | None = None,
    steps: int | None = None,
    packing: bool = False,
    seed: int = 0,
) -> dict[str, Any]:
    """Assign the samples of `steps` global batches by each strategy, or by all where none is named.

    By default `steps` covers about a million samples, within 20 and 400 steps. Sample lengths are Wikipedia's, or those
    of the histogram in the file `lengths`; `packing` also packs a whole dataset by every method. Returns the JSON
    document of `podium balance`. Raises UsageError for options that are not allowed or batches that cannot be split.
    """
    size = cluster.spec.parts * cluster.local_batch
    if size > MAX_SAMPLES:
        raise UsageError(f"--ranks × --local-batch: found {size:,}, allowed are up to {MAX_SAMPLES:,} samples")
    if steps is None:
        steps = min(max(DEFAULT_SAMPLES // size, MIN_STEPS), MAX_STEPS)
    unknown = [name for name in strategies if name not in STRATEGIES]
    if unknown:
        raise UsageError(f"--strategy: found {unknown[0]}, allowed are all, {', '.join(STRATEGIES)}")
    histogram = wikipedia_histogram() if lengths is None else read_histogram(lengths.resolve())
    spec = replace(cluster.spec, row_tokens=len(histogram) - 1)
    found, impossible = measure_balances(
        strategies or [*STRATEGIES],
        histogram,
        spec,
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
        "infeasible": impossible,
        "steps": steps,
        "packing": packing_efficiencies(histogram) if packing else None,
        "pair_cost": spec.pair_cost,
        "sequence_cost": spec.sequence_cost,
    }


def measure_balances(
    strategies: Sequence[str],
    histogram: np.ndarray,
    spec: AssignmentSpec,
    local_batch: int,
    accumulation_steps: int = 1,
    steps: int = 100,
    seed: int = 0,
    pool: np.ndarray | None = None,
    strata_batch: int | None = None,
    strata_counts: Sequence[int] | None = None,
) -> tuple[dict[str, Balance], dict[str, str]]:
    """Return the balance of each strategy over the same `steps` global batches, and why others are impossible.

    `histogram` [longest + 1] has the numbers of samples of 0, 1, … tokens. `pool` [N] uint16 has the lengths of all
    samples; by default a million quantiles of the histogram. Stratified strategies have other batches than the rest: in
    each `strata_batch` samples (default: a micro-batch) the counts of the strata are `strata_counts`, by default in
    proportion to the lengths. The second result has the error message of each strategy that cannot draw its strata.
    """
    pool = quantiles(histogram, POOL).astype(np.uint16) if pool is None else pool
    longest, size = len(histogram) - 1, spec.parts * local_batch
    tallies: dict[str, _Tally] = {name: _Tally(name, spec, longest) for name in strategies}
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
        shared: dict[tuple[object, ...], _StepFigures] = {}
        for tally in possible.values():
            tally.add(drawn[tally.strategy.strata], accumulation_steps, shared)
    return {name: tally.balance() for name, tally in possible.items()}, impossible


def _global_batches(order: Order, pool: np.ndarray, size: int, steps: int) -> Iterator[np.ndarray]:
    """Yield the lengths [size] of each step. Several steps are drawn at once: a call costs more than its samples."""
    at_once = max(1, SAMPLES_PER_DRAW // size)
    for first in range(0, steps, at_once):
        yield from pool[order.samples(first * size, min(at_once, steps - first) * size)].reshape(-1, size)


# Figures of a step that several strategies share: tokens without padding; the cost of each sample beyond that of its
# tokens, padding included; and the lower bound on max/mean of cost.
_StepFigures = tuple[int, np.ndarray, float]


class _Tally:
    """Figures of one strategy, collected step by step."""

    def __init__(self, name: str, spec: AssignmentSpec, longest: int) -> None:
        self.name, self.strategy, self.spec, self.longest = name, STRATEGIES[name], spec, longest
        self.bound_spec = replace(spec, counts="equal" if self.strategy.has_equal_counts(spec) else "free")
        self.cost_of = spec.costs(np.arange(longest + 1))
        self.seconds: list[float] = []
        self.tokens: list[tuple[int, int]] = []
        self.costs: list[float] = []
        self.lower_bounds: list[float] = []
        self.real_tokens, self.bytes_sent = 0, 0.0

    def add(self, lengths: np.ndarray, accumulation_steps: int, shared: dict[tuple[object, ...], _StepFigures]) -> None:
        """Assign a global batch of these lengths [G] and record its balance; `shared` caches common figures."""
        strategy, spec = self.strategy, self.spec
        started = time.perf_counter()
        assignment = assign(self.name, lengths, spec, accumulation_steps)
        self.seconds.append(time.perf_counter() - started)
        slots = self._by_rank(strategy.slots(lengths, assignment, spec, self.longest))
        key = (strategy.strata, strategy.pads, self.bound_spec.counts)
        if key not in shared:
            computed = np.full_like(lengths, self.longest) if strategy.pads else lengths
            longest_first = np.repeat(self.cost_of[::-1], np.bincount(computed, minlength=len(self.cost_of))[::-1])
            beyond_tokens = (self.cost_of - np.arange(len(self.cost_of)))[computed]
            lower_bound = max_over_mean_lower_bound(longest_first, self.bound_spec)
            shared[key] = int(lengths.sum(dtype=np.int64)), beyond_tokens, lower_bound
        real, beyond_tokens, lower_bound = shared[key]
        self.tokens.append((slots.sum(), slots.max()))
        cost = slots + self._by_rank(assignment.loads(beyond_tokens))
        self.costs.append(cost.max() / cost.mean())
        self.lower_bounds.append(lower_bound)
        self.real_tokens += real
        self.bytes_sent += strategy.bytes_per_step(lengths, spec)

    def _by_rank(self, micro_batch_values: np.ndarray) -> np.ndarray:
        """Sum values of micro-batches [ranks · accumulation steps] for each rank: [ranks]."""
        sums: np.ndarray = micro_batch_values.reshape(self.spec.parts, -1).sum(axis=1)
        return sums

    def balance(self) -> Balance:
        """Summarise all recorded steps."""
        summed, most = np.array(self.tokens, dtype=np.float64).T
        over = most * self.spec.parts / summed
        return Balance(
            max_over_mean_tokens=float(over.mean()),
            max_over_mean_tokens_p99=float(np.quantile(over, 0.99)),
            max_over_mean_cost=float(np.mean(self.costs)),
            max_over_mean_cost_p99=float(np.quantile(self.costs, 0.99)),
            padding_share=1 - self.real_tokens / float(summed.sum()),
            lower_bound_cost=float(np.mean(self.lower_bounds)),
            milliseconds=1000 * median(self.seconds),
            communication=self.strategy.communication,
            bytes_per_step=self.bytes_sent / len(self.seconds),
        )


def packing_efficiencies(histogram: np.ndarray) -> list[dict[str, Any]]:
    """Return the efficiency and the sequences in a row of every method that packs a whole dataset ahead of a run."""
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
