"""Doubts about a plan: memory that its accelerators may not have, and learning rates far from the published ones."""

from math import log

from benchmarks.bert.published.reading import read_learning_rates
from podium.core.errors import UsageError
from podium.planning.prediction.memory import needed_bytes
from podium.planning.prediction.plan import Plan

FAR_BEYOND = 2.0  # times the memory from which a plan is refused: the estimate is nearer than that
RATE_FACTOR = 4.0  # between the nearest published learning rate and one that samples to target are not known of


def memory_doubt(plan: Plan, system: str, name: str) -> list[str]:
    """A sentence if the plan needs more memory than accelerators of this name have. UsageError if it needs far more."""
    needed, gb = needed_bytes(plan), 1e9
    if plan.memory_bytes is None:
        return [f"the memory of {name} is not stated; about {needed / gb:.0f} GB are needed"]
    if needed <= plan.memory_bytes:
        return []
    found = f"about {needed / gb:.0f} GB of the {plan.memory_bytes / gb:.0f} GB of {name}"
    local = plan.global_batch_size // (plan.machine.ranks * plan.accumulation_steps)
    if needed > FAR_BEYOND * plan.memory_bytes:
        raise UsageError(
            f"{system}: global_batch_size {plan.global_batch_size:,} needs {found} for micro-batches of {local:,} "
            "samples; use more gradient_accumulation_steps, or a smaller global_batch_size"
        )
    return [
        f"micro-batches of {local:,} samples need {found}, by an estimate; more gradient_accumulation_steps need less"
    ]


def learning_rate_doubt(optimizer: str, rate: float, batch: int) -> list[str]:
    """A sentence if the learning rate lies far from those published at the nearest batch size."""
    known = [row for row in read_learning_rates() if row.optimizer == optimizer]
    if not known:
        return []
    nearest = min((row.global_batch_size for row in known), key=lambda size: (abs(log(size / batch)), size))
    rates = [row.learning_rate for row in known if row.global_batch_size == nearest]
    if min(rates) / RATE_FACTOR <= rate <= max(rates) * RATE_FACTOR:
        return []
    published = f"{min(rates):.3g}" if min(rates) == max(rates) else f"{min(rates):.3g} to {max(rates):.3g}"
    return [
        f"optimizer.learning_rate {rate:g} is far from what was published with {optimizer} at the nearest batch size "
        f"({published} at {nearest:,}), so the samples to target need not hold, and training may not reach the target"
    ]
