"""From a plan to a predicted time-to-train, and the parts that it consists of."""

from dataclasses import asdict, dataclass

from podium.planning.prediction.constants import Constants
from podium.planning.prediction.network import Network, buckets, exposed
from podium.planning.prediction.plan import FULL, HALF, PROCESSORS, Plan, optimizer_seconds
from podium.planning.prediction.rank_load import load

BACKWARD_SHARE = 2 / 3  # backward's part of a micro-batch's time
EVALUATED_AT_ONCE = 64  # samples of an evaluation's micro-batch


@dataclass(frozen=True)
class Split:
    """Seconds of a run (or of a step), by what they are spent on; together they are all of it."""

    compute: float  # forward and backward of a rank with the mean load
    imbalance: float  # waiting for the rank with the greatest load
    communication: float  # of gradients and values, as far as backward does not hide it
    optimizer: float
    evaluation: float
    data: float  # start: from run_start until steps go at their full rate

    @property
    def seconds(self) -> float:
        return float(sum(asdict(self).values()))


@dataclass(frozen=True)
class Prediction:
    """A run's time with an interval: low and high are for the luckiest and the unluckiest of ten runs, and by the
    error of predicted rates."""

    seconds: float
    low: float
    high: float
    split: Split
    samples_to_target: float
    step_milliseconds: float
    unsure: tuple[str, ...]

    @property
    def sequences_per_second(self) -> float:
        return self.samples_to_target / self.seconds


def network_of(plan: Plan, constants: Constants) -> Network:
    """Links inside a node at the efficiency that collectives reach; adapters in series with the way to them.

    An unknown network is taken to be eight adapters of 200 Gb/s.
    """
    machine = plan.machine
    count, gigabits = machine.adapters or (8, 200.0)
    path = constants.host_path_switched if machine.is_switched else constants.host_path_direct
    nominal = count * gigabits * 1e9 / 8
    return Network(
        nodes=machine.nodes,
        gpus_per_node=machine.gpus_per_node,
        inside=PROCESSORS[machine.processor].link_bytes_per_second * constants.link_efficiency,
        between=1 / (1 / nominal + 1 / path),
        hop_inside=constants.hop_inside,
        hop_between=constants.hop_between,
    )


def step_of(plan: Plan, network: Network, constants: Constants) -> Split:
    """Seconds of one training step."""
    samples = load(plan)
    compute = plan.accumulation_steps * plan.costs.step + samples.mean
    gradients = plan.gradient_bytes * plan.parameters
    count = buckets(gradients)
    reduce = network.reduce_scatter if plan.sharing == "slices" else network.all_reduce
    backward = BACKWARD_SHARE * compute / plan.accumulation_steps  # no_sync: only the last micro-batch's hides any
    communication = exposed(count, reduce(gradients / count), backward)
    if plan.sharing == "slices":
        communication += network.reduce_scatter(HALF * plan.parameters)
    if plan.sharing == "whole_tensors":
        communication += sum(network.broadcast(FULL * size) for size in plan.shared_tensors)
    optimizer = optimizer_seconds(plan, constants)
    return Split(compute, samples.slowest - samples.mean, communication, optimizer, evaluation=0.0, data=0.0)


def evaluation_seconds(plan: Plan, constants: Constants) -> float:
    """Of one evaluation: every rank goes forward over its share of the samples."""
    share = -(-plan.evaluation_samples // plan.machine.ranks)
    sample = load(plan).slowest * plan.machine.ranks / plan.global_batch_size
    micro_batches = -(-share // EVALUATED_AT_ONCE)
    return constants.evaluation_share * (share * sample + micro_batches * plan.costs.step)


def predict(plan: Plan, constants: Constants, samples: float | None = None) -> Prediction:
    """Time to the target, or until so many `samples` are trained on. Raises UsageError where the strategy cannot deal
    the plan's batch out."""
    step = step_of(plan, network_of(plan, constants), constants)
    trained = samples if samples is not None else plan.samples.mean
    steps = trained / plan.global_batch_size
    evaluations = trained / plan.samples_between_evaluations
    start = plan.start_seconds
    split = Split(
        compute=steps * step.compute,
        imbalance=steps * step.imbalance,
        communication=steps * step.communication,
        optimizer=steps * step.optimizer,
        evaluation=evaluations * evaluation_seconds(plan, constants),
        data=constants.start_seconds(plan.machine.ranks) if start is None else start,
    )
    error = plan.costs.median_relative_error
    going = split.seconds - split.data
    return Prediction(
        seconds=split.seconds,
        low=split.data + going * min(1.0, plan.samples.least / plan.samples.mean) / (1 + error),
        high=split.data + going * max(1.0, plan.samples.greatest / plan.samples.mean) * (1 + error),
        split=split,
        samples_to_target=trained,
        step_milliseconds=1000 * step.seconds,
        unsure=(*plan.unsure, *plan.samples.unsure),
    )
