"""Predicted time-to-train of a plan, its parts and its interval."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace

from podium.planning.prediction.buckets import backward_gradients, exposed_seconds, fill_buckets
from podium.planning.prediction.constants import Constants
from podium.planning.prediction.interval import Interval, prediction_interval
from podium.planning.prediction.network import Network
from podium.planning.prediction.plan import (
    FULL_BYTES,
    HALF_BYTES,
    PROCESSORS,
    Plan,
    clipping_seconds,
    optimizer_seconds,
)
from podium.planning.prediction.rank_load import compute_load

BACKWARD_SHARE = 2 / 3  # of a micro-batch's time: backward has twice the FLOPs of forward
EVALUATION_MICRO_BATCH = 64  # samples


@dataclass(frozen=True)
class Split:
    """Seconds of a run (or of a step) by activity; the parts sum to the whole. The field names are JSON keys."""

    compute: float  # forward and backward of a rank with the mean load
    imbalance: float  # waiting for the rank with the greatest load
    communication: float  # of gradients and values, without what backward hides
    optimizer: float  # with clipping
    evaluation: float
    data: float  # from run_start until steps run at full rate

    @property
    def seconds(self) -> float:
        return float(sum(asdict(self).values()))


@dataclass(frozen=True)
class Prediction:
    """Predicted time of a run, and the interval of a score (a mean of runs). The field names are JSON keys.

    `low` and `high` are widened to include the fastest and the slowest of ten published runs, and `as_counted`.
    """

    seconds: float
    low: float
    high: float
    split: Split
    samples_to_target: float
    step_milliseconds: float
    unsure: tuple[str, ...]
    interval: Interval
    # Seconds with step costs counted from Podium's kernels, never run; None: nothing was counted.
    as_counted: float | None = None

    @property
    def sequences_per_second(self) -> float:
        return self.samples_to_target / self.seconds


def build_network(plan: Plan, constants: Constants) -> Network:
    """Return the network of the plan's machine.

    Links inside a node run at the efficiency that collectives reach. Between nodes the adapters are in series with the
    path from the GPUs to them. An unknown network is assumed to be eight adapters of 200 Gb/s.
    """
    machine = plan.machine
    count, gigabits = machine.adapters or (8, 200.0)
    path = constants.host_path_switched if machine.uses_pcie_switches else constants.host_path_direct
    nominal = count * gigabits * 1e9 / 8
    return Network(
        nodes=machine.nodes,
        gpus_per_node=machine.gpus_per_node,
        intra_node_bandwidth=PROCESSORS[machine.processor].link_bytes_per_second * constants.link_efficiency,
        inter_node_bandwidth=1 / (1 / nominal + 1 / path),
        intra_node_latency=constants.hop_inside,
        inter_node_latency=constants.hop_between,
    )


def predict_step(plan: Plan, network: Network, constants: Constants) -> Split:
    """Return the seconds of one training step; evaluation and data are 0.

    Gradients are sent bucket by bucket during backward of the last micro-batch; the others run under DDP's `no_sync`.
    Clipping passes over the gradients after all have arrived, before any is sent (then nothing overlaps), or over each
    bucket before it is sent, which lengthens backward.
    """
    samples = compute_load(plan)
    compute = plan.accumulation_steps * plan.costs.step + samples.mean
    buckets = fill_buckets(
        backward_gradients(plan.size, float(plan.lengths.means[0])), plan.gradient_bytes, plan.bucket_mib
    )
    reduce = network.reduce_scatter if plan.sharding == "slices" else network.all_reduce
    sending = [reduce(bucket.size) for bucket in buckets]
    ready = [1.0 if plan.clipping == "before" else bucket.ready for bucket in buckets]
    clipping = clipping_seconds(plan, constants)
    backward = BACKWARD_SHARE * compute / plan.accumulation_steps + (clipping if plan.clipping == "bucket" else 0)
    communication = exposed_seconds(ready, sending, backward)
    if plan.sharding == "slices":
        # All-gather of the half-precision values: as long as a reduce-scatter, and not overlapped.
        communication += network.reduce_scatter(HALF_BYTES * plan.parameters)
    if plan.sharding == "whole_tensors":
        # One broadcast per tensor, so the latency of each hop is paid for every tensor.
        communication += sum(network.broadcast(FULL_BYTES * size) for size in plan.sharded_tensors)
    optimizer = optimizer_seconds(plan, constants) + clipping
    return Split(compute, samples.slowest - samples.mean, communication, optimizer, evaluation=0.0, data=0.0)


def evaluation_seconds(plan: Plan, constants: Constants) -> float:
    """Return the seconds of one evaluation: every rank runs forward on its share of the samples."""
    share = -(-plan.evaluation_samples // plan.machine.ranks)
    sample = compute_load(plan).slowest * plan.machine.ranks / plan.global_batch_size
    micro_batches = -(-share // EVALUATION_MICRO_BATCH)
    return constants.evaluation_share * (share * sample + micro_batches * plan.costs.step)


def predict(plan: Plan, constants: Constants, samples: float | None = None) -> Prediction:
    """Predict the time to the target, or the time to train on `samples` samples.

    Raises UsageError if the strategy cannot assign the plan's batch to its ranks.
    """
    trained = samples if samples is not None else plan.samples.mean
    split = _predict_split(plan, constants, trained)
    training = split.seconds - split.evaluation - split.data
    samples_are_known = plan.samples.least == plan.samples.greatest  # a run without a target
    gpus = plan.machine.ranks
    interval = prediction_interval(
        constants.error_intervals,
        plan.code,
        gpus,
        "rate" if samples_are_known else "seconds",
        plan.costs.median_relative_error,
    )
    fewest = min(1.0, plan.samples.least / plan.samples.mean)
    most = max(1.0, plan.samples.greatest / plan.samples.mean)
    extrapolation = 1 + plan.samples.extrapolation
    low = split.seconds * min(fewest, 1 / (interval.low * extrapolation))
    high = split.seconds * max(most, interval.high * extrapolation)
    if plan.code == "measured":  # no back-test: the spread of runs and the error of the measured steps
        running = split.seconds - split.data
        low, high = split.data + running * fewest / interval.low, split.data + running * most * interval.high
    counted = counted_seconds(plan, constants, trained)
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


def counted_seconds(plan: Plan, constants: Constants, samples: float) -> float | None:
    """Return the seconds of the run with the counted costs of Podium's kernels; None if the plan has none."""
    if plan.counted is None:
        return None
    parameters, costs = plan.counted.step, replace(plan.counted, step=0.0)
    split = _predict_split(replace(plan, costs=costs), constants, samples)
    steps = samples / plan.global_batch_size
    return split.seconds - split.optimizer + steps * parameters  # these include clipping


def _predict_split(plan: Plan, constants: Constants, samples: float) -> Split:
    network = build_network(plan, constants)
    compute = imbalance = communication = optimizer = 0.0
    for trained, phase in _reached_phases(plan, samples):
        step, steps = predict_step(phase, network, constants), trained / plan.global_batch_size
        compute += steps * step.compute
        imbalance += steps * step.imbalance
        communication += steps * step.communication
        optimizer += steps * step.optimizer
    evaluation = samples / plan.samples_between_evaluations * evaluation_seconds(plan, constants)
    start = plan.start_seconds
    data = constants.start_seconds(plan.machine.ranks) if start is None else start
    return Split(compute, imbalance, communication, optimizer, evaluation, data)


def _reached_phases(plan: Plan, samples: float) -> Iterator[tuple[float, Plan]]:
    """Yield the samples of each phase that is reached, and the plan with the phase's lengths.

    All phases but the last are rounded up to whole global batches.
    """
    left = samples
    for phase_samples, lengths in plan.phases:
        trained = min(left, -(-phase_samples // plan.global_batch_size) * plan.global_batch_size)
        left -= trained
        if trained > 0:
            yield trained, replace(plan, lengths=lengths)
    if left > 0:
        yield left, plan
