"""From a plan to a predicted time-to-train, and the parts that it consists of."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace

from podium.planning.prediction.buckets import exposed_seconds, fill_buckets, gradients_of
from podium.planning.prediction.constants import Constants
from podium.planning.prediction.interval import Interval, interval_for
from podium.planning.prediction.network import Network
from podium.planning.prediction.plan import (
    FULL,
    HALF,
    PROCESSORS,
    Plan,
    clipping_seconds,
    optimizer_seconds,
)
from podium.planning.prediction.rank_load import load

BACKWARD_SHARE = 2 / 3  # backward's part of a micro-batch's time
EVALUATED_AT_ONCE = 64  # samples of an evaluation's micro-batch


@dataclass(frozen=True)
class Split:
    """Seconds of a run (or of a step), by what they are spent on; together they are all of it."""

    compute: float  # forward and backward of a rank with the mean load
    imbalance: float  # waiting for the rank with the greatest load
    communication: float  # of gradients and values, as far as backward does not hide it
    optimizer: float  # and clipping
    evaluation: float
    data: float  # start: from run_start until steps go at their full rate

    @property
    def seconds(self) -> float:
        return float(sum(asdict(self).values()))


@dataclass(frozen=True)
class Prediction:
    """A run's time and the interval of a score, the mean of runs; `interval` is what the back-test says of it.

    low and high are no nearer than the luckiest and the unluckiest of ten published runs, nor than `as_counted`.
    """

    seconds: float
    low: float
    high: float
    split: Split
    samples_to_target: float
    step_milliseconds: float
    unsure: tuple[str, ...]
    interval: Interval
    # The time if Podium's step took what was counted of its kernels, without a run; None where nothing was counted.
    as_counted: float | None = None

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
    """Seconds of one training step.

    Gradients are sent bucket by bucket during the last micro-batch's backward; the others are under `no_sync`.
    Clipping passes over them after all have arrived, before any is sent (then nothing overlaps), or over each bucket
    before it is sent, which lengthens backward.
    """
    samples = load(plan)
    compute = plan.accumulation_steps * plan.costs.step + samples.mean
    buckets = fill_buckets(gradients_of(plan.size, float(plan.lengths.means[0])), plan.gradient_bytes, plan.bucket_mib)
    reduce = network.reduce_scatter if plan.sharing == "slices" else network.all_reduce
    sending = [reduce(bucket.size) for bucket in buckets]
    ready = [1.0 if plan.clipping == "before" else bucket.ready for bucket in buckets]
    clipping = clipping_seconds(plan, constants)
    backward = BACKWARD_SHARE * compute / plan.accumulation_steps + (clipping if plan.clipping == "bucket" else 0)
    communication = exposed_seconds(ready, sending, backward)
    if plan.sharing == "slices":
        communication += network.reduce_scatter(HALF * plan.parameters)
    if plan.sharing == "whole_tensors":
        communication += sum(network.broadcast(FULL * size) for size in plan.shared_tensors)
    optimizer = optimizer_seconds(plan, constants) + clipping
    return Split(compute, samples.slowest - samples.mean, communication, optimizer, evaluation=0.0, data=0.0)


def evaluation_seconds(plan: Plan, constants: Constants) -> float:
    """Of one evaluation: every rank goes forward over its share of the samples."""
    share = -(-plan.evaluation_samples // plan.machine.ranks)
    sample = load(plan).slowest * plan.machine.ranks / plan.global_batch_size
    micro_batches = -(-share // EVALUATED_AT_ONCE)
    return constants.evaluation_share * (share * sample + micro_batches * plan.costs.step)


def predict(plan: Plan, constants: Constants, samples: float | None = None) -> Prediction:
    """Time to the target, or until so many `samples` are trained on. Raises UsageError where the strategy cannot share
    the plan's batch."""
    trained = samples if samples is not None else plan.samples.mean
    split = _split(plan, constants, trained)
    training = split.seconds - split.evaluation - split.data
    known = plan.samples.least == plan.samples.greatest  # the samples, since the run has no target
    gpus = plan.machine.ranks
    interval = interval_for(
        constants.misses, plan.code, gpus, "rate" if known else "seconds", plan.costs.median_relative_error
    )
    lucky = min(1.0, plan.samples.least / plan.samples.mean)
    unlucky = max(1.0, plan.samples.greatest / plan.samples.mean)
    beyond = 1 + plan.samples.beyond
    low = split.seconds * min(lucky, 1 / (interval.low * beyond))
    high = split.seconds * max(unlucky, interval.high * beyond)
    if plan.code == "measured":  # no back-test: the spread of runs and the error of the measured steps
        going = split.seconds - split.data
        low, high = split.data + going * lucky / interval.low, split.data + going * unlucky * interval.high
    counted = as_counted(plan, constants, trained)
    return Prediction(
        seconds=split.seconds,
        low=low if counted is None else min(low, counted),
        high=high if counted is None else max(high, counted),
        split=split,
        samples_to_target=trained,
        step_milliseconds=1000 * training * plan.global_batch_size / trained,
        unsure=(*plan.unsure, *plan.samples.unsure),
        interval=interval,
        as_counted=counted,
    )


def as_counted(plan: Plan, constants: Constants, samples: float) -> float | None:
    """Seconds of the same run if each step took what was counted of Podium's kernels; None where nothing was."""
    if plan.counted is None:
        return None
    parameters, costs = plan.counted.step, replace(plan.counted, step=0.0)
    split = _split(replace(plan, costs=costs), constants, samples)
    steps = samples / plan.global_batch_size
    return split.seconds - split.optimizer + steps * parameters  # clipping is counted among these


def _split(plan: Plan, constants: Constants, samples: float) -> Split:
    network = network_of(plan, constants)
    compute = imbalance = communication = optimizer = 0.0
    for trained, phase in _phases(plan, samples):
        step, steps = step_of(phase, network, constants), trained / plan.global_batch_size
        compute += steps * step.compute
        imbalance += steps * step.imbalance
        communication += steps * step.communication
        optimizer += steps * step.optimizer
    evaluation = samples / plan.samples_between_evaluations * evaluation_seconds(plan, constants)
    start = plan.start_seconds
    data = constants.start_seconds(plan.machine.ranks) if start is None else start
    return Split(compute, imbalance, communication, optimizer, evaluation, data)


def _phases(plan: Plan, samples: float) -> Iterator[tuple[float, Plan]]:
    """Samples of each phase that is reached, in whole global batches but for the last, with the phase's lengths."""
    left = samples
    for asked, lengths in plan.phases:
        trained = min(left, -(-asked // plan.global_batch_size) * plan.global_batch_size)
        left -= trained
        if trained > 0:
            yield trained, replace(plan, lengths=lengths)
    if left > 0:
        yield left, plan
