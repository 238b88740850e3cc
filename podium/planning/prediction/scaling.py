"""Predicted time by number of GPUs, each at its best batch size, beside the published results."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from benchmarks.bert.published.reading import read_runs
from podium.core.errors import UsageError
from podium.planning.prediction.constants import Constants
from podium.planning.prediction.from_config import ADAPTERS, BETWEEN_NODES, FITTED_PROCESSORS
from podium.planning.prediction.memory import needed_bytes
from podium.planning.prediction.plan import Machine, Plan
from podium.planning.prediction.predict import Prediction, predict
from podium.planning.prediction.published import all_samples, is_fitted
from podium.planning.prediction.samples_to_target import Curve, curve

NODE = 8
LOCAL = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 56)  # micro-batches tried; 56: the largest published (80 GB)
SMALLEST_BATCH, LARGEST_BATCH = 256, 16_416  # global batch sizes that were published


@dataclass(frozen=True)
class Scaled:
    """A prediction at a number of GPUs."""

    gpus: int
    global_batch_size: int
    accumulation_steps: int
    prediction: Prediction


def scale(plan: Plan, gpus: Sequence[int], constants: Constants) -> list[Scaled]:
    """The fastest predicted batch size at each number of GPUs, in nodes of up to eight.

    Raises UsageError for a plan without GPUs or published batch sizes, and for numbers that are no whole nodes.
    """
    if plan.machine.processor == "cpu" or plan.size.name != "large":
        raise UsageError("--scale: published points are of BERT-large on GPUs; name a system with GPUs and size large")
    samples = curve(all_samples(read_runs()), plan.optimizer)
    if samples is None:
        raise UsageError(f"--scale: no samples to target are known with {plan.optimizer}; use lamb or adamw")
    return [_best(plan, count, samples, constants) for count in gpus]


def machine_of(machine: Machine, gpus: int) -> Machine:
    """So many GPUs of this machine's kind: one node up to eight, else whole nodes of eight."""
    if gpus < 1 or (gpus > NODE and gpus % NODE):
        raise UsageError(f"--scale: found {gpus} GPUs, allowed are 1 to {NODE} and multiples of {NODE}")
    nodes = max(1, gpus // NODE)
    adapters = machine.adapters or ADAPTERS[machine.processor]
    return Machine(machine.processor, nodes, gpus // nodes, adapters)


def _best(plan: Plan, gpus: int, samples: Curve, constants: Constants) -> Scaled:
    machine = machine_of(plan.machine, gpus)
    unsure = tuple(plan.unsure)
    if machine.nodes > 1 and machine.processor not in FITTED_PROCESSORS and BETWEEN_NODES not in unsure:
        unsure += (BETWEEN_NODES,)
    if machine.nodes > 1 and plan.machine.adapters is None:
        count, speed = ADAPTERS[machine.processor]
        unsure += (f"nodes of {NODE} GPUs with {count} adapters of {speed:g} Gb/s are assumed",)
    tried: list[Scaled] = []
    short_of_memory = False
    for local, parts in _local_batches(gpus, plan.optimizer, samples):
        changed = replace(
            plan,
            machine=machine,
            global_batch_size=gpus * local,
            accumulation_steps=parts,
            evaluation_interval=None,
            samples=samples.at(gpus * local),
            unsure=unsure,
        )
        try:
            fitting = _in_memory(changed, local)
            if fitting is None:
                short_of_memory = True
                continue
            prediction = predict(fitting, constants)
            tried.append(Scaled(gpus, gpus * local, fitting.accumulation_steps, prediction))
        except UsageError:
            continue  # a local batch too small for the strategy's strata
    if not tried and short_of_memory:
        assert plan.memory_bytes is not None
        raise UsageError(
            f"--scale: found {gpus:,} GPUs of {plan.memory_bytes / 1e9:.0f} GB, which by an estimate hold no "
            "micro-batch of any batch size that samples to target are known of; name a system of GPUs with more memory"
        )
    if not tried:
        raise UsageError(
            f"--scale: found {gpus:,} GPUs, which with {plan.strategy} balancing can share no batch of a size that "
            f"samples to target are known of, up to {max(samples.points[-1].batch, LARGEST_BATCH):,}; ask for fewer"
        )
    return min(tried, key=lambda scaled: scaled.prediction.seconds)


def _local_batches(gpus: int, optimizer: str, samples: Curve) -> list[tuple[int, int]]:
    """Local batch sizes that make a published global one, and in how many parts at least each is trained on.

    With an optimizer that is known at one batch size alone, near that one.
    """
    low, high = samples.points[0].batch, max(samples.points[-1].batch, LARGEST_BATCH)
    low = SMALLEST_BATCH if optimizer == "lamb" else low
    found = [(local, 1) for local in LOCAL if low <= gpus * local <= high]
    if found or gpus > high:
        return found
    parts = {micro: -(-low // (gpus * micro)) for micro in LOCAL}
    return [(micro * count, count) for micro, count in parts.items()]


def _in_memory(plan: Plan, local: int) -> Plan | None:
    """The plan with its local batch in the fewest parts that fit into memory, by doublings; None if none does."""
    if plan.memory_bytes is None or needed_bytes(plan) <= plan.memory_bytes:
        return plan
    parts = 2 * plan.accumulation_steps
    return None if local % parts else _in_memory(replace(plan, accumulation_steps=parts), local)


def published_points() -> list[dict[str, object]]:
    """What A100 systems took, for the picture."""
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
