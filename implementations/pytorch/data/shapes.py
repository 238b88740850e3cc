"""Every shape that a rank's batches take in a run, known before the run starts from the length index alone.

Each shape costs something once: a CUDA graph is captured for it, libraries prepare their kernels. Since a rank knows
the lengths of all samples to come, it can meet every shape before the clock starts and never meet a new one on it; no
capacity is guessed, so none can overflow.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from implementations.pytorch.data.batch import round_up
from implementations.pytorch.data.loader import TrainingOrder


@dataclass(frozen=True)
class RunShapes:
    """Token slots of a batch → how many masked positions batches of so many have at most, and a step that has one."""

    masked_slots: Mapping[int, int]
    examples: Mapping[int, int]


def run_shapes(order: TrainingOrder, rank: int, steps: int) -> RunShapes:
    """The shapes of a rank's micro-batches in the first `steps` steps.

    Masked positions are rounded up to eighths of the order's shape step.
    """
    masked_slots: dict[int, int] = {}
    examples: dict[int, int] = {}
    rounding = max(1, order.shape_step // 8)
    for step in range(steps):
        indices = order.global_batch(step).indices[rank]
        masked = order.store.masked_counts[indices].sum(axis=-1, dtype=np.int64)
        for slots, count in zip(order.slots(indices), masked, strict=True):
            key, needed = int(slots), round_up(int(count), rounding)
            examples.setdefault(key, step)
            masked_slots[key] = max(needed, masked_slots.get(key, 0))
    return RunShapes(masked_slots, examples)
