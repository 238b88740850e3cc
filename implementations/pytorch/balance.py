"""How evenly each strategy shares out samples: `python -m implementations.pytorch.balance --ranks N --local-batch B …`.

Deals out global batches of samples of given lengths as a run would, and prints one JSON object. `podium balance` starts
it. No torch, no rank, no network: it does for thousands of ranks what each of them does for itself.
Exit codes: 0 done, 2 wrong use.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Literal

import numpy as np

from benchmarks.bert.lengths import quantiles, read_histogram, wikipedia_histogram
from benchmarks.bert.sizes import LARGE
from benchmarks.errors import PodiumError, UsageError
from implementations.pytorch.data.balancing import STRATEGIES, Deal, assign, least_max_over_mean
from implementations.pytorch.data.packing import Packs, least_squares_packs, longest_pack_first, shortest_pack_first
from implementations.pytorch.data.sampling import Order, Sampler, StratifiedSampler

POOL = 1_000_000
"""Samples that stand for a histogram, at evenly spaced quantiles of it."""
WORDS = 30_522
PACK_DEPTHS = (2, 3, 4, 8, 16, None)
"""Most sequences in a row."""
MOST_SAMPLES = 2**22
"""Of a global batch."""


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
    least_cost: float
    """What the mean of max/mean of cost cannot be below with these samples and counts, however they are dealt out."""
    milliseconds: float
    """To compute one step's assignment, the median."""
    communication: str
    bytes_per_step: float
    """That a rank sends where ranks hold shards of their own, as the published system did."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="implementations.pytorch.balance", description=__doc__)
    parser.add_argument("--ranks", type=int, required=True)
    parser.add_argument("--local-batch", type=int, required=True, help="samples of a rank in a step")
    parser.add_argument("--ranks-per-node", type=int, help="without it, all ranks are one node's")
    parser.add_argument("--accumulation-steps", type=int, default=1)
    parser.add_argument("--strategies", nargs="+", default=list(STRATEGIES))
    parser.add_argument("--counts", choices=["equal", "free"], default="equal")
    parser.add_argument("--scan", choices=["stride", "snake"], help="how those that sort deal out")
    default_pair, default_sequence = LARGE.relative_costs(WORDS)
    parser.add_argument("--pair-cost", type=float, default=default_pair, help="in units of a token's cost")
    parser.add_argument("--sequence-cost", type=float, default=default_sequence, help="in units of a token's cost")
    parser.add_argument("--lengths", type=Path, help="a JSON list: how many samples have 1, 2, … tokens")
    parser.add_argument("--steps", type=int, default=400, help="global batches to deal out")
    parser.add_argument("--packing", action="store_true", help="also pack a whole dataset ahead, in every way")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    try:
        print(json.dumps(_balance(arguments)))
    except PodiumError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


def _balance(arguments: argparse.Namespace) -> dict[str, Any]:
    for name in ("ranks", "local_batch", "ranks_per_node", "accumulation_steps", "steps"):
        value = getattr(arguments, name)
        if value is not None and value < 1:
            raise UsageError(f"--{name.replace('_', '-')}: found {value}, allowed is 1 or more")
    ranks, batch = arguments.ranks, arguments.local_batch
    per_node = arguments.ranks_per_node or ranks
    if ranks % per_node:
        raise UsageError(f"--ranks-per-node: found {per_node}, allowed are divisors of --ranks {ranks}")
    if batch % arguments.accumulation_steps:
        steps = arguments.accumulation_steps
        raise UsageError(f"--accumulation-steps: found {steps}, allowed are divisors of --local-batch {batch}")
    if ranks * batch > MOST_SAMPLES:
        raise UsageError(
            f"--ranks × --local-batch: found {ranks * batch:,}, allowed are up to {MOST_SAMPLES:,} samples"
        )
    unknown = [name for name in arguments.strategies if name not in STRATEGIES]
    if unknown:
        raise UsageError(f"--strategy: found {unknown[0]}, allowed are all, {', '.join(STRATEGIES)}")
    histogram = wikipedia_histogram() if arguments.lengths is None else read_histogram(arguments.lengths)
    deal = Deal(
        parts=ranks,
        parts_per_node=per_node,
        pair_cost=arguments.pair_cost,
        sequence_cost=arguments.sequence_cost,
        row_tokens=len(histogram) - 1,
        counts=arguments.counts,
        scan=arguments.scan,
    )
    rest = (histogram, deal, batch, arguments.accumulation_steps, arguments.steps, arguments.seed)
    balances: dict[str, Any] = {}
    impossible: dict[str, str] = {}
    for name in arguments.strategies:
        try:
            balances[name] = vars(balance_of(name, *rest))
        except UsageError as error:
            impossible[name] = str(error)
    if not balances:
        raise UsageError(next(iter(impossible.values())))
    costs = {"pair_cost": deal.pair_cost, "sequence_cost": deal.sequence_cost}
    packing = packing_of(histogram) if arguments.packing else None
    return {"strategies": balances, "impossible": impossible, "packing": packing, **costs}


def balance_of(
    strategy: str,
    histogram: np.ndarray,
    deal: Deal,
    local_batch: int,
    accumulation_steps: int = 1,
    steps: int = 100,
    seed: int = 0,
) -> Balance:
    """Deal out `steps` global batches of samples whose lengths are distributed as a histogram of 0, 1, … tokens.

    Raises UsageError where strata and the local batch do not go together.
    """
    pool = quantiles(histogram, POOL).astype(np.uint16)
    kind, longest, size = STRATEGIES[strategy], len(histogram) - 1, deal.parts * local_batch
    order: Order = Sampler(POOL, seed)
    if kind.strata:
        order = StratifiedSampler(pool, batch=local_batch // accumulation_steps, seed=seed, max_length=longest)
    seconds, tokens, costs, least, real, bytes_sent = [], [], [], [], 0, 0.0
    counts: Literal["equal", "free"] = "equal" if kind.has_equal_counts(deal) else "free"
    for step in range(steps):
        lengths = pool[order.samples(step * size, size)]
        started = time.perf_counter()
        assignment = assign(strategy, lengths, deal, accumulation_steps)
        seconds.append(time.perf_counter() - started)
        slots = kind.slots(lengths, assignment, deal, longest).reshape(deal.parts, -1).sum(axis=1)
        computed = np.full_like(lengths, longest) if kind.pads else lengths
        beyond_tokens = deal.costs(computed) - computed
        tokens.append((slots.sum(), slots.max()))
        cost = slots + assignment.loads(beyond_tokens).reshape(deal.parts, -1).sum(axis=1)
        costs.append(cost.max() / cost.mean())
        least.append(least_max_over_mean(deal.costs(computed), replace(deal, counts=counts)))
        real += int(lengths.sum(dtype=np.int64))
        bytes_sent += kind.bytes_per_step(lengths, deal)
    summed, most = np.array(tokens, dtype=np.float64).T
    over = most * deal.parts / summed
    return Balance(
        max_over_mean_tokens=float(over.mean()),
        max_over_mean_tokens_p99=float(np.quantile(over, 0.99)),
        max_over_mean_cost=float(np.mean(costs)),
        max_over_mean_cost_p99=float(np.quantile(costs, 0.99)),
        padding_share=1 - real / float(summed.sum()),
        least_cost=float(np.mean(least)),
        milliseconds=1000 * median(seconds),
        communication=kind.communication,
        bytes_per_step=bytes_sent / steps,
    )


def packing_of(histogram: np.ndarray) -> list[dict[str, Any]]:
    """How full the rows are, and of how many sequences, when all of a histogram is packed ahead of a run."""
    whole, row_tokens = np.rint(histogram).astype(np.int64), len(histogram) - 1
    if not whole.any():
        raise UsageError("--lengths: found less than half a sample of each length; --packing takes whole samples")
    ways: list[tuple[str, int | None, Callable[[], Packs]]] = [
        ("least squares", 3, lambda: least_squares_packs(whole, row_tokens))
    ]
    for name, pack in (("shortest pack first", shortest_pack_first), ("longest pack first", longest_pack_first)):
        ways += [(name, depth, partial(pack, whole, row_tokens, depth)) for depth in PACK_DEPTHS]
    rows = []
    for name, depth, packed in ways:
        packs = packed()
        per_row = packs.sequences / packs.rows
        rows.append({"method": name, "depth": depth, "efficiency": packs.efficiency, "sequences_per_row": per_row})
    return rows


if __name__ == "__main__":
    sys.exit(main())
