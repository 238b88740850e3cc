"""Published scores that lie outside a predicted interval, and in what their systems differ from the plan."""

from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.bert.published.reading import PublishedRun, read_runs
from podium.planning.prediction.constants import Constants
from podium.planning.prediction.plan import PROCESSORS, Machine, Plan, Sharing
from podium.planning.prediction.predict import Prediction, predict
from podium.planning.prediction.published import OTHER_CODE, all_samples, plan_of

SHARED: dict[Sharing, str] = {
    "none": "gradients are all-reduced and the whole optimizer runs on every GPU",
    "slices": "gradients are reduce-scattered and each GPU runs its slice of the optimizer",
    "whole_tensors": "gradients are all-reduced and each GPU runs the optimizer of its own tensors",
}
FAR = 0.05  # from samples to target, as a share, so that they are named as a difference


@dataclass(frozen=True)
class Outside:
    """A published score that a prediction's interval does not reach."""

    system: str
    seconds: float
    side: str  # of the interval: below or above
    why: str  # as far as it is known


def outside(plan: Plan, prediction: Prediction, constants: Constants) -> list[Outside]:
    """Of as many GPUs as the plan's, in the order of their scores."""
    found = []
    for run in sorted(read_runs(), key=lambda run: run.score_seconds):
        if run.republished_from is not None or run.gpus != plan.machine.ranks:
            continue
        if not prediction.low <= run.score_seconds <= prediction.high:
            side = "below" if run.score_seconds < prediction.low else "above"
            found.append(Outside(run.name, run.score_seconds, side, _why(run, plan, prediction, constants)))
    return found


def _why(run: PublishedRun, plan: Plan, prediction: Prediction, constants: Constants) -> str:
    if run.family in OTHER_CODE:
        return "it trains another model code, of which the prediction knows nothing"
    its = plan_of(run, constants, all_samples(read_runs()))
    differing = "; ".join(_differences(run, its, plan, prediction))
    as_run = predict(its, constants).seconds
    return f"{differing or 'no difference is known'}; predicted as it was run: {as_run:.3g} s"


def _differences(run: PublishedRun, its: Plan, plan: Plan, prediction: Prediction) -> Iterator[str]:
    """What is published of it and otherwise in the plan."""
    if its.machine.processor != plan.machine.processor:
        yield f"its GPUs are {PROCESSORS[its.machine.processor].name} (here {PROCESSORS[plan.machine.processor].name})"
    if its.machine.nodes > 1 and _network(its.machine) != _network(plan.machine):
        yield f"its nodes have {_network(its.machine)} (here {_network(plan.machine)})"
    if its.sharing != plan.sharing:
        yield f"{SHARED[its.sharing]} there (here {SHARED[plan.sharing]})"
    if its.optimizer != plan.optimizer:
        yield f"it trains with {its.optimizer} (here {plan.optimizer})"
    if its.global_batch_size != plan.global_batch_size:
        yield f"its batch size is {its.global_batch_size:,} (here {plan.global_batch_size:,})"
    if its.accumulation_steps != plan.accumulation_steps:
        yield f"micro-batches a step are {its.accumulation_steps} there (here {plan.accumulation_steps})"
    if abs(prediction.samples_to_target / run.mean_samples - 1) > FAR:
        yield f"it took {run.mean_samples:,.0f} samples (here {prediction.samples_to_target:,.0f})"


def _network(machine: Machine) -> str:
    if machine.adapters is None:
        return f"{machine.gpus_per_node} GPUs and adapters that are not known"
    count, gigabits = machine.adapters
    return f"{machine.gpus_per_node} GPUs and {count} adapters of {gigabits:g} Gb/s"
