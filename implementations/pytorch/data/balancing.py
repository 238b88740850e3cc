"""Who takes which samples of a global batch.

A strategy is a pure function in `STRATEGIES`: the lengths [G] of a global batch in the run's order and the number of
parts (ranks, or ranks times accumulation steps) give positions [parts, G / parts] into the batch. Every position
appears exactly once. No torch here: the same functions run for thousands of ranks on a laptop.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

Assign = Callable[[np.ndarray, int], np.ndarray]


@dataclass(frozen=True)
class Strategy:
    """How samples are dealt out, and whether each then takes a slot of the full sequence length."""

    assign: Assign
    pads: bool = False


def in_order(lengths: np.ndarray, parts: int) -> np.ndarray:
    """Part p takes the p-th run of consecutive samples. Communicates nothing; the load is as random as the order."""
    return np.arange(len(lengths)).reshape(parts, -1)


def snake(lengths: np.ndarray, parts: int) -> np.ndarray:
    """Sort the whole global batch by length, longest first, and deal it out in a snake: there and back again.

    Every part gets equally many samples and nearly equally many tokens. Computed by every rank from the length index,
    so it communicates nothing. Ties keep their order. It changes nothing in which samples a global batch holds,
    so the randomness of training is that of the order. Source: the snake of arXiv 2402.02447, over all ranks instead of
    one node.
    """
    order = np.argsort(-lengths.astype(np.int64), kind="stable").reshape(-1, parts)
    order[1::2] = order[1::2, ::-1]
    return np.ascontiguousarray(order.T)


STRATEGIES: dict[str, Strategy] = {
    "padded": Strategy(in_order, pads=True),
    "random": Strategy(in_order),
    "indexed": Strategy(snake),
}


def assign(strategy: str, lengths: np.ndarray, ranks: int, accumulation_steps: int) -> np.ndarray:
    """Positions [ranks, accumulation steps, micro-batch] of a global batch by a named strategy.

    Samples are dealt to ranks first, then within each rank to its micro-batches. Raises ValueError where the batch
    cannot be split evenly.
    """
    if len(lengths) % (ranks * accumulation_steps):
        raise ValueError(
            f"a global batch of {len(lengths)} cannot be split evenly over {ranks} ranks × {accumulation_steps} steps"
        )
    deal = STRATEGIES[strategy].assign
    by_rank = deal(lengths, ranks)
    return np.stack([mine[deal(lengths[mine], accumulation_steps)] for mine in by_rank])
