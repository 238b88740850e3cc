"""Every shape that a rank's batches take in a run, known before the run starts from the length index alone.

Each shape costs something once: a CUDA graph is captured for it, libraries prepare their kernels. Since a rank knows
the lengths of all samples to come, it can meet every shape before the clock starts and never meet a new one on it.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from implementations.pytorch.data.batch_plan import TrainingOrder, round_up


@dataclass(frozen=True)
class RunShapes:
    """Token slots of a batch → how many masked positions batches of so many have at most, and the step of that one of
    them that has the fewest tokens: with it an attention launch is recorded whose room is enough for all."""

    masked_slots: Mapping[int, int]
    examples: Mapping[int, int]


def run_shapes(order: TrainingOrder, rank: int, steps: int) -> RunShapes:
    """The shapes of a rank's micro-batches in the first `steps` steps.

    Masked positions are rounded up to eighths of the order's shape step.
    """
    masked_slots: dict[int, int] = {}
    fewest: dict[int, tuple[int, int]] = {}
    rounding = max(1, order.shape_step // 8)
    for step in range(steps):
        whole = order.global_batch(step)
        for slots, part in zip(whole.micro_batch_slots[rank].tolist(), whole.micro_batches(rank), strict=True):
            found = (int(whole.lengths[part].sum()), step)
            fewest[slots] = min(found, fewest.get(slots, found))
            needed = round_up(int(whole.masked_counts[part].sum()), rounding)
            masked_slots[slots] = max(needed, masked_slots.get(slots, 0))
    if order.capacity is not None:
        masked_slots = {order.capacity.tokens: order.capacity.masked}
    return RunShapes(masked_slots, {slots: step for slots, (_, step) in fewest.items()})
