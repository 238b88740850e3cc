"""Published scores outside a predicted interval, and how their systems differ from the plan."""

from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.bert.published.reading import PublishedRun, read_runs
from podium.planning.prediction.constants import Constants
from podium.planning.prediction.plan import PROCESSORS, Machine, OptimizerSharding, Plan
from podium.planning.prediction.predict import Prediction, predict
from podium.planning.prediction.published import OTHER_CODE_FAMILIES, all_samples, plan_from_published

SHARDING_DESCRIPTIONS: dict[OptimizerSharding, str] = {
    "none": "gradients are all-reduced and the whole optimizer runs on every GPU",
    "slices": "gradients are reduce-scattered and each GPU runs its slice of the optimizer",
    "whole_tensors": "gradients are all-reduced and each GPU runs the optimizer for the tensors that it owns",
}
SAMPLES_TOLERANCE = 0.05  # relative difference of samples to target above which it is reported


@dataclass(frozen=True)
class OutlyingScore:
    """A published score outside a prediction's interval. The field names are keys of `podium predict --json`."""

    system: str
    seconds: float
    side: str  # below or above the interval
    why: str  # known differences from the plan


def find_outlying_scores(plan: Plan, prediction: Prediction, constants: Constants) -> list[OutlyingScore]:
    """Return the published scores with the plan's number of GPUs that lie outside the interval, fastest first."""
    found = []
    for run in sorted(read_runs(), key=lambda run: run.score_seconds):
        if run.republished_from is not None or run.gpus != plan.machine.ranks:
            continue
        if not prediction.low <= run.score_seconds <= prediction.high:
            side = "below" if run.score_seconds < prediction.low else "above"
            found.append(OutlyingScore(run.name, run.score_seconds, side, _explain(run, plan, prediction, constants)))
    return found


def _explain(run: PublishedRun, plan: Plan, prediction: Prediction, constants: Constants) -> str:
    if run.family in OTHER_CODE_FAMILIES:
        return "it trains other model code, which the prediction does not cover"
    run_plan = plan_from_published(run, constants, all_samples(read_runs()))
    differing = "; ".join(_differences(run, run_plan, plan, prediction))
    as_run = predict(run_plan, constants).seconds
    return f"{differing or 'no difference is known'}; predicted as it was run: {as_run:.3g} s"


def _differences(run: PublishedRun, run_plan: Plan, plan: Plan, prediction: Prediction) -> Iterator[str]:
    """Yield a phrase for each setting of the published run that differs from the plan's."""
    if run_plan.machine.processor != plan.machine.processor:
        name, own = (PROCESSORS[one.machine.processor].name for one in (run_plan, plan))
        yield f"its GPUs are {name} (here {own})"
    if run_plan.machine.nodes > 1 and _describe_network(run_plan.machine) != _describe_network(plan.machine):
        yield f"its nodes have {_describe_network(run_plan.machine)} (here {_describe_network(plan.machine)})"
    if run_plan.sharding != plan.sharding:
        yield f"{SHARDING_DESCRIPTIONS[run_plan.sharding]} there (here {SHARDING_DESCRIPTIONS[plan.sharding]})"
    if run_plan.optimizer != plan.optimizer:
        yield f"it trains with {run_plan.optimizer} (here {plan.optimizer})"
    if run_plan.global_batch_size != plan.global_batch_size:
        yield f"its batch size is {run_plan.global_batch_size:,} (here {plan.global_batch_size:,})"
    if run_plan.accumulation_steps != plan.accumulation_steps:
        yield f"micro-batches a step are {run_plan.accumulation_steps} there (here {plan.accumulation_steps})"
    if abs(prediction.samples_to_target / run.mean_samples - 1) > SAMPLES_TOLERANCE:
        yield f"it took {run.mean_samples:,.0f} samples (here {prediction.samples_to_target:,.0f})"


def _describe_network(machine: Machine) -> str:
    if machine.adapters is None:
        return f"{machine.gpus_per_node} GPUs and unknown adapters"
    count, gigabits = machine.adapters
    return f"{machine.gpus_per_node} GPUs and {count} adapters of {gigabits:g} Gb/s"
