"""From a run's resolved configuration to the predictor's plan, with a sentence for each uncertain assumption."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.bert.lengths import reference_masked_counts
from benchmarks.bert.manifest import LENGTH_INDEX_ONLY
from benchmarks.bert.preparation.settings import SHORTEST_LENGTH
from benchmarks.bert.published.reading import SamplesToTarget, read_runs, read_tiny_samples
from benchmarks.bert.rules import TARGET_ACCURACY
from benchmarks.bert.store import SampleStore
from podium.config.schema import RunConfig
from podium.core.errors import UsageError
from podium.planning.costs import TERMS, StepCosts, differing, load_costs
from podium.planning.prediction.constants import Constants
from podium.planning.prediction.doubts import optimizer_doubts
from podium.planning.prediction.memory import memory_doubt, stated_bytes
from podium.planning.prediction.plan import (
    FULL,
    HALF,
    PROCESSORS,
    Lengths,
    Machine,
    Plan,
    adapters_named,
    counted_costs,
    optimizer_seconds,
    processor_named,
    published_costs,
)
from podium.planning.prediction.published import POOL, all_samples, wikipedia
from podium.planning.prediction.samples_to_target import Estimate, curve

# Assumed of a node whose description names none.
ADAPTERS = {
    "a100_sxm": (8, 200.0),
    "a100_pcie": (1, 100.0),
    "h100_sxm": (8, 400.0),
    "h200": (8, 400.0),
    "t4": (1, 10.0),
}
BETWEEN_NODES = "how much of their adapters' rate nodes reach is fitted on A100 systems alone"
UNFITTED_ERROR = 0.3  # assumed of rates that no published run is fitted on
WITHOUT_BF16 = ("t4",)  # there `precision: auto` is fp16
FITTED_PROCESSORS = ("a100_sxm", "a100_pcie")


def plan_of_config(config: RunConfig, costs_file: Path | None, constants: Constants) -> Plan:
    """The plan of a configured run. `costs_file` is what `podium bench` left of this system, if it did.

    Raises UsageError where neither measured nor published figures say what a step takes, or how many samples the
    target needs.
    """
    accelerator = config.description.accelerator_model_name
    processor = "cpu" if config.launch.device == "cpu" else processor_named(accelerator)
    unsure: list[str] = []
    machine = _machine(config, processor or "cpu", unsure)
    samples = _samples(config, unsure)
    if costs_file is not None:
        costs = _measured_costs(config, costs_file, constants, unsure)
    elif processor is None or processor == "cpu":
        device = "a CPU" if processor else f"accelerator {accelerator!r}"
        raise UsageError(
            f"{config.system}: found no step costs, and no published runs to fit them on for {device}; measure them "
            f"with `podium bench {config.system}`"
        )
    else:
        costs = _fitted_costs(config, processor, constants, unsure)
    sharded_from = config.optimizer.sharded_from
    lengths = _lengths(config, unsure)
    *phases, (_, last) = _phases(config, lengths, unsure) or [(0, lengths)]
    half = config.launch.device != "cpu" and not _multiplies_in_fp32(config, machine.processor)
    plan = Plan(
        machine=machine,
        global_batch_size=config.global_batch_size,
        lengths=last,
        costs=costs,
        samples=samples,
        strategy=config.balancing,
        accumulation_steps=config.gradient_accumulation_steps,
        strata_counts=config.strata_counts,
        optimizer=config.optimizer.algorithm,
        sharing="whole_tensors" if sharded_from is not None and machine.ranks >= max(2, sharded_from) else "none",
        gradient_bytes=FULL if config.wire == "fp32" else HALF,
        bucket_mib=config.gradient_bucket_mib,
        clipping=None if config.clipping is None else config.clipping.when,
        phases=tuple(phases),
        code="other" if costs_file is None else "measured",
        half_precision=half,
        dense_attention=config.attention == "padded",
        size=config.model_size,
        evaluation_samples=config.evaluation_samples,
        evaluation_interval=config.evaluation_interval,
        start_seconds=None if costs_file is None else 0.0,
    )
    if config.launch.device != "cpu":
        memory = stated_bytes(config.description.accelerator_memory_capacity, accelerator, machine.processor)
        plan = replace(plan, memory_bytes=memory)
        unsure += memory_doubt(plan, config.system, accelerator)
    unsure += optimizer_doubts(config, samples)
    if costs_file is not None:  # measured steps have the optimizer in them
        without_optimizer = max(0.0, costs.step - optimizer_seconds(plan, constants))
        plan = replace(plan, costs=replace(costs, step=without_optimizer), clipping=None)
    elif half:
        counted = counted_costs(machine.processor, constants, wikipedia(), config.model_size, config.last_layer)
        plan = replace(plan, counted=counted)
    return replace(plan, unsure=tuple(unsure))


def _multiplies_in_fp32(config: RunConfig, processor: str) -> bool:
    return config.precision == "fp32" or (config.precision == "bf16" and processor in WITHOUT_BF16)


def _machine(config: RunConfig, processor: str, unsure: list[str]) -> Machine:
    nodes, per_node = config.launch.nodes, config.launch.processes_per_node
    adapters = adapters_named(config.description.host_networking)
    if nodes > 1 and adapters is None:
        adapters = ADAPTERS.get(processor, (1, 100.0))
        found = config.description.host_networking
        unsure.append(
            f"the network is not known (description.host_networking: {found!r}): "
            f"{adapters[0]} adapters of {adapters[1]:g} Gb/s a node are assumed"
        )
    if nodes > 1 and processor not in FITTED_PROCESSORS:
        unsure.append(BETWEEN_NODES)
    if processor == "cpu" and nodes * per_node > 1:
        unsure.append("how fast processes on a CPU exchange gradients is assumed, not measured")
    return Machine(processor, nodes, per_node, adapters)


def _lengths(config: RunConfig, unsure: list[str]) -> Lengths:
    """Of the prepared store; without one, or where it is not on this machine, Wikipedia's."""
    path = config.data.store
    if path is not None and path.exists():
        return _of_store(SampleStore(path, LENGTH_INDEX_ONLY))
    if path is not None:
        unsure.append(f"data.store {path} is not on this machine, so lengths are taken to be Wikipedia's")
    elif config.size == "tiny" or config.data.kind == "text":
        unsure.append("the data is not prepared, so lengths are taken to be Wikipedia's")
    return wikipedia()


def _of_store(store: SampleStore) -> Lengths:
    """Of a store's samples. Where there are more than POOL, those at evenly spaced quantiles stand for all."""
    index = store.index
    if len(index) > POOL:
        places = ((np.arange(POOL) + 0.5) / POOL * len(index)).astype("int64")
        index = replace(index, entries=np.sort(index.entries)[places])
    tokens, masked = np.asarray(index.lengths, "int64"), np.asarray(index.masked_counts, "int64")
    return Lengths(tokens, masked, store.max_sequence_length)


def _phases(config: RunConfig, lengths: Lengths, unsure: list[str]) -> list[tuple[int, Lengths]]:
    """Samples and lengths of each phase, by what it trains on; the last has 0 for its samples."""
    found = []
    for number, phase in enumerate(config.phases):
        if phase.store is not None and phase.store.exists():
            own = _of_store(SampleStore(phase.store, LENGTH_INDEX_ONLY))
        elif phase.max_sequence_length is not None and phase.max_sequence_length < lengths.longest:
            unsure.append(
                f"samples of phases.{number} are taken to be those of {lengths.longest} tokens, cut into pieces of "
                f"{phase.max_sequence_length}"
            )
            own = _cut(lengths, phase.max_sequence_length, phase.generation.max_predictions)
        else:
            own = lengths
        found.append((config.phase_samples(phase) or 0, own))
    if len(found) > 1 and config.target_accuracy is not None:
        unsure.append("samples to target are of runs without phases of shorter sequences")
    return found


def _cut(lengths: Lengths, longest: int, most_masked: int) -> Lengths:
    """Samples made of the same text for a shorter length: as many whole ones as fit, and what remains."""
    whole, rest = np.divmod(lengths.tokens, longest)
    tokens = np.concatenate([np.full(int(whole.sum()), longest), rest[rest >= SHORTEST_LENGTH]])
    return Lengths(tokens, np.minimum(reference_masked_counts(tokens), most_masked), longest)


def _samples(config: RunConfig, unsure: list[str]) -> Estimate:
    """From published runs, or for the tiny BERT from Podium's own; exactly `max_samples` where there is no target."""
    batch, algorithm = config.global_batch_size, config.optimizer.algorithm
    if config.target_accuracy is None:
        steps = -(-config.max_samples // batch)
        return Estimate(steps * batch, steps * batch, steps * batch)
    if config.target_accuracy != TARGET_ACCURACY:
        unsure.append(
            f"samples to target are of accuracy {TARGET_ACCURACY}, not of target_accuracy {config.target_accuracy}"
        )
    known: Sequence[SamplesToTarget] = all_samples(read_runs())
    if config.size == "tiny":
        known = read_tiny_samples()
        unsure.append("samples to target of the tiny BERT are Podium's own runs on a laptop, on the embedded text")
    found = curve(known, algorithm)
    if found is None:
        raise UsageError(
            f"{config.system}: optimizer.algorithm: found {algorithm}, with which it is not known how many samples "
            f"size {config.size} needs to the target; name another optimizer, or ask for the time of a number of "
            "samples: --set target_accuracy=null --set max_samples=N"
        )
    if config.size == "large" and config.initial_checkpoint is None:
        unsure.append("samples to target are of runs from MLPerf's checkpoint; initial_checkpoint is not set")
    estimate = found.at(batch)
    if estimate.mean > config.max_samples:
        unsure.append(f"max_samples {config.max_samples:,} would end the run before {estimate.mean:,.0f} samples")
    return estimate


def _measured_costs(config: RunConfig, path: Path, constants: Constants, unsure: list[str]) -> StepCosts:
    """Raises UsageError for costs of another model or another kind of device."""
    costs, measured = load_costs(path)
    others, doubts = differing(config, measured)
    if others:
        raise UsageError(
            f"{path}: was measured with {'; '.join(others)}; write a system file of its own for this and measure it "
            "with `podium bench FILE`"
        )
    if config.launch.device == "cpu":
        factor, threads = constants.cpu_run_over_bench, config.launch.threads
        shared = float(measured.get("threads", threads)) / threads
        costs = replace(costs, **{term: factor * shared * getattr(costs, term) for term in TERMS})
        unsure.append(f"steps are taken to be {factor:g} times as long as {path.name} says, as in runs on a laptop")
        if shared != 1:
            unsure.append(
                f"{path.name} was measured with {measured['threads']} threads, not {threads}: a step is taken to be "
                f"{shared:g} times as long for that"
            )
    if doubts:
        unsure.append(f"{path.name} was measured with {'; '.join(doubts)}")
    return costs


def _fitted_costs(config: RunConfig, processor: str, constants: Constants, unsure: list[str]) -> StepCosts:
    kind = PROCESSORS[processor]
    if processor in FITTED_PROCESSORS:
        unsure.append(
            "no costs file: Podium was not measured here, so a step takes what the best published code takes, fitted "
            f"on published {kind.name} runs; `podium bench` measures it"
        )
    else:
        unsure.append(
            f"no costs file, and no published run of {kind.name} is fitted on: Podium was not measured here, so a step "
            "takes what the best published code would take if this GPU sustained the share of its bf16 (fp16) peak "
            f"that an A100 SXM does, within {UNFITTED_ERROR:.0%}, which is assumed; `podium bench` measures it"
        )
    if processor == "t4":
        unsure.append(
            "NVIDIA T4: not fitted on any run; T4s are known to lower their clock under load, which is assumed to lie "
            "within the interval"
        )
    fp32 = _multiplies_in_fp32(config, processor)
    if fp32:
        stated = kind.fp32_flops
        without = "" if config.precision == "fp32" else f" (precision {config.precision}: the GPU has no bf16)"
        unsure.append(
            f"published runs were in half precision; fp32{without} is taken to run at the same share of "
            + (
                f"its peak of {stated / 1e12:g} TFLOP/s"
                if stated
                else "the half-precision peak, as none is stated for it"
            )
        )
    elif config.precision == "fp8":
        unsure.append("published runs were in half precision; what fp8 changes is not known")
    if config.size != "large":
        unsure.append(f"published runs are of BERT-large; how fast size {config.size} runs on {kind.name} is a guess")
    costs = published_costs(processor, constants, config.model_size, config.last_layer, fp32)
    if processor in FITTED_PROCESSORS and config.size == "large" and not fp32:
        return costs
    return replace(costs, median_relative_error=UNFITTED_ERROR)
