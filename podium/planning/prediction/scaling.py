"""Predicted time by number of GPUs, each at its fastest batch size, and the published scores to compare with."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from benchmarks.bert.published.reading import read_runs
from podium.core.errors import UsageError
from podium.planning.balancing.strategies import STRATEGIES
from podium.planning.prediction.constants import Constants
from podium.planning.prediction.from_config import ASSUMED_ADAPTERS, FITTED_PROCESSORS, INTER_NODE_WARNING
from podium.planning.prediction.memory import estimate_memory_bytes
from podium.planning.prediction.plan import Machine, Plan
from podium.planning.prediction.predict import Prediction, predict
from podium.planning.prediction.published import all_samples, is_fitted
from podium.planning.prediction.samples_to_target import Curve, fit_curve

GPUS_PER_NODE = 8
MICRO_BATCHES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 56)  # samples; 56 is the largest published (80 GB)
OTHER_BATCHES_WARNING = "local batches of other sizes draw strata in proportion to the data"
SMALLEST_BATCH, LARGEST_BATCH = 256, 16_416  # published global batch sizes


@dataclass(frozen=True)
class ScaledPrediction:
    """A prediction at a number of GPUs."""

    gpus: int
    global_batch_size: int
    accumulation_steps: int
    prediction: Prediction
    plan: Plan


def predict_scaling(plan: Plan, gpus: Sequence[int], constants: Constants) -> list[ScaledPrediction]:
    """Predict each number of GPUs, in nodes of up to eight, at its fastest batch size.

    Raises UsageError for a plan without GPUs or without published batch sizes, for numbers of GPUs that are not whole
    nodes, and for too little memory.
    """
    if plan.machine.processor == "cpu" or plan.size.name != "large":
        raise UsageError("--scale: published scores are of BERT-large on GPUs; use a system with GPUs and size large")
    samples = fit_curve(all_samples(read_runs()), plan.optimizer)
    if samples is None:
        raise UsageError(f"--scale: no samples to target are known with {plan.optimizer}; use lamb or adamw")
    return [_predict_best_batch(plan, count, samples, constants) for count in gpus]


def machine_with_gpus(machine: Machine, gpus: int) -> Machine:
    """Return a machine with `gpus` GPUs of the same kind: one node up to eight GPUs, else whole nodes of eight.

    Raises UsageError for other numbers.
    """
    if gpus < 1 or (gpus > GPUS_PER_NODE and gpus % GPUS_PER_NODE):
        raise UsageError(
            f"--scale: found {gpus} GPUs, allowed are 1 to {GPUS_PER_NODE} and multiples of {GPUS_PER_NODE}"
        )
    nodes = max(1, gpus // GPUS_PER_NODE)
    adapters = machine.adapters or ASSUMED_ADAPTERS[machine.processor]
    return Machine(machine.processor, nodes, gpus // nodes, adapters)


def _predict_best_batch(plan: Plan, gpus: int, samples: Curve, constants: Constants) -> ScaledPrediction:
    machine = machine_with_gpus(plan.machine, gpus)
    unsure = tuple(plan.unsure)
    if plan.strata_counts is not None and STRATEGIES[plan.strategy].strata:
        unsure += (
            f"strata_counts {list(plan.strata_counts)} are for {sum(plan.strata_counts)} samples; "
            f"{OTHER_BATCHES_WARNING}",
        )
    if machine.nodes > 1 and machine.processor not in FITTED_PROCESSORS and INTER_NODE_WARNING not in unsure:
        unsure += (INTER_NODE_WARNING,)
    if machine.nodes > 1 and plan.machine.adapters is None:
        count, speed = ASSUMED_ADAPTERS[machine.processor]
        unsure += (f"nodes of {GPUS_PER_NODE} GPUs with {count} adapters of {speed:g} Gb/s are assumed",)
    tried: list[ScaledPrediction] = []
    is_short_of_memory = False
    for local, parts in _local_batches(gpus, plan.optimizer, samples):
        changed = replace(
            plan,
            machine=machine,
            global_batch_size=gpus * local,
            accumulation_steps=parts,
            strata_counts=_matching_strata_counts(plan.strata_counts, local // parts),
            evaluation_interval=None,
            samples=samples.estimate(gpus * local),
            unsure=unsure,
        )
        try:
            # Raises UsageError too: the strategy is run to find the largest micro-batch.
            fitting = _split_to_fit_memory(changed, local, plan.strata_counts)
            if fitting is None:
                is_short_of_memory = True
                continue
            prediction = predict(fitting, constants)
            tried.append(ScaledPrediction(gpus, gpus * local, fitting.accumulation_steps, prediction, fitting))
        except UsageError:
            continue  # the local batch is too small for the strategy's strata
    if not tried and is_short_of_memory:
        assert plan.memory_bytes is not None
        raise UsageError(
            f"--scale: found {gpus:,} GPUs of {plan.memory_bytes / 1e9:.0f} GB, by an estimate too little for a "
            "micro-batch of any batch size with known samples to target; use a system of GPUs with more memory"
        )
    if not tried:
        raise UsageError(
            f"--scale: found {gpus:,} GPUs, too many with {plan.strategy} balancing for every batch size with known "
            f"samples to target, up to {max(samples.points[-1].batch, LARGEST_BATCH):,}; use fewer GPUs"
        )
    return min(tried, key=lambda scaled: scaled.prediction.seconds)


def _local_batches(gpus: int, optimizer: str, samples: Curve) -> list[tuple[int, int]]:
    """Return (local batch size, least number of micro-batches) pairs whose global batch size is in the published range.

    With an optimizer other than LAMB the range starts at its smallest known batch size.
    """
    low, high = samples.points[0].batch, max(samples.points[-1].batch, LARGEST_BATCH)
    low = SMALLEST_BATCH if optimizer == "lamb" else low
    found = [(local, 1) for local in MICRO_BATCHES if low <= gpus * local <= high]
    if found or gpus > high:
        return found
    parts = {micro: -(-low // (gpus * micro)) for micro in MICRO_BATCHES}
    return [(micro * count, count) for micro, count in parts.items()]


def _split_to_fit_memory(plan: Plan, local: int, counts: tuple[int, ...] | None) -> Plan | None:
    """Return the plan with its local batch in as few micro-batches as memory allows; None if none fit.

    The number of micro-batches is doubled until one fits. `counts` are the strata counts of the system's micro-batch.
    """
    if plan.memory_bytes is None or estimate_memory_bytes(plan) <= plan.memory_bytes:
        return plan
    parts = 2 * plan.accumulation_steps
    if local % parts:
        return None
    divided = replace(plan, accumulation_steps=parts, strata_counts=_matching_strata_counts(counts, local // parts))
    return _split_to_fit_memory(divided, local, counts)


def _matching_strata_counts(counts: tuple[int, ...] | None, samples: int) -> tuple[int, ...] | None:
    """Return the strata counts if they sum to `samples`; else None, which draws strata in proportion to the data."""
    return counts if counts is not None and sum(counts) == samples else None


def published_points() -> list[dict[str, object]]:
    """Return the scores of all published A100 systems, by the names that `podium predict --json` prints."""
    return [
        {
            "gpus": run.gpus,
            "seconds": run.score_seconds,
            "global_batch_size": run.global_batch_size,
            "system": run.name,
            "gpu": run.gpu,
            "fitted": is_fitted(run),
        }
        for run in read_runs()
        if run.republished_from is None
    ]
