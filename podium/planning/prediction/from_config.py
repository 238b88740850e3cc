"""Conversion of a run's resolved configuration to the predictor's plan, with a warning for each assumption."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.bert.lengths import reference_masked_counts
from benchmarks.bert.manifest import LENGTH_INDEX_ONLY
from benchmarks.bert.preparation.settings import MIN_SEQUENCE_LENGTH
from benchmarks.bert.published.hyperparameters import hyperparameter_sets
from benchmarks.bert.published.reading import SamplesToTarget, read_runs, read_tiny_samples
from benchmarks.bert.rules import TARGET_ACCURACY
from benchmarks.bert.store import SampleStore
from podium.config.schema import RunConfig
from podium.core.errors import UsageError
from podium.core.text import short_repr
from podium.planning.accelerators import find_accelerator
from podium.planning.costs import TERMS, CostsOrigin, StepCosts, costs_origin, find_differences, load_costs
from podium.planning.prediction.constants import Constants
from podium.planning.prediction.doubts import optimizer_warnings
from podium.planning.prediction.memory import accelerator_memory_bytes, memory_warnings
from podium.planning.prediction.plan import (
    FULL_BYTES,
    HALF_BYTES,
    PROCESSORS,
    Lengths,
    Machine,
    Plan,
    counted_costs,
    find_processor,
    optimizer_seconds,
    parse_adapters,
    published_costs,
)
from podium.planning.prediction.published import POOL_SAMPLES, all_samples, wikipedia_lengths
from podium.planning.prediction.samples_to_target import Estimate, fit_curve

# Number of adapters and Gb/s of each that are assumed for a node whose description states none.
ASSUMED_ADAPTERS = {
    "a100_sxm": (8, 200.0),
    "a100_pcie": (1, 100.0),
    "h100_sxm": (8, 400.0),
    "h200": (8, 400.0),
    "t4": (1, 10.0),
}
INTER_NODE_WARNING = "the share of their adapters' rate that nodes reach is fitted on A100 systems only"
# Assumed relative error of steps measured on another machine: they may take half or twice as long. Steps measured on
# one CPU took 1.79 times as long on another with two cores too.
OTHER_MACHINE_ERROR = 1.0
UNFITTED_ERROR = 0.3  # assumed relative error of rates for which no published run is in the fit
SET_TOLERANCE = 0.05  # relative difference from the samples to target of a named set, above which both are stated
WITHOUT_BF16 = ("t4",)  # on these `precision: auto` is fp16
FITTED_PROCESSORS = ("a100_sxm", "a100_pcie")


def plan_from_config(
    config: RunConfig,
    costs_file: Path | None,
    constants: Constants,
    locate: Callable[[tuple[str, ...]], str] | None = None,
) -> Plan:
    """Return the plan of a configured run. `costs_file` has the step costs that `podium bench` measured; None: no file.

    `locate` returns where a key is set, for messages, as for `require_hardware`. Raises UsageError if neither measured
    nor published figures give the time of a step or the samples to the target.
    """
    accelerator = config.description.accelerator_model_name
    processor = "cpu" if config.launch.device == "cpu" else find_processor(accelerator)
    unsure: list[str] = []
    machine = _build_machine(config, processor or "cpu", unsure)
    samples = estimate_samples(config, unsure)
    origin = None
    if costs_file is not None:
        costs, origin = _measured_costs(config, costs_file, constants, unsure)
    elif processor is None:
        key = ("description", "accelerator_model_name")
        place = locate(key) if locate else f"{config.system}: {'.'.join(key)}"
        raise UsageError(
            f"{place}: found {short_repr(accelerator)}, of which there are no published runs to fit step costs on, and "
            f"no costs file; measure them with `podium bench {config.system}`"
        )
    elif processor == "cpu":
        raise UsageError(
            f"{config.system}: found no step costs, and no published runs of a CPU to fit them on; measure them with "
            f"`podium bench {config.system}`"
        )
    else:
        costs = _fitted_costs(config, processor, constants, unsure)
        named, used = find_accelerator(accelerator), PROCESSORS[processor]
        if named is not None and named.peak_flops not in (None, used.peak_flops):
            unsure.append(
                f"{named.name} is predicted as {used.name}, whose bf16 peak is {used.peak_flops / 1e12:g} TFLOP/s in "
                f"place of {named.peak_flops / 1e12:g}"
            )
    sharded_from = config.optimizer.sharded_from
    lengths = _choose_lengths(config, unsure)
    *phases, (_, last) = _phase_lengths(config, lengths, unsure) or [(0, lengths)]
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
        sharding="whole_tensors" if sharded_from is not None and machine.ranks >= max(2, sharded_from) else "none",
        gradient_bytes=FULL_BYTES if config.wire == "fp32" else HALF_BYTES,
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
        costs_origin=origin,
    )
    if config.launch.device != "cpu":
        memory = accelerator_memory_bytes(
            config.description.accelerator_memory_capacity, accelerator, machine.processor
        )
        plan = replace(plan, memory_bytes=memory)
        unsure += memory_warnings(plan, config.system, accelerator)
    unsure += optimizer_warnings(config, samples)
    if costs_file is not None:  # measured steps include the optimizer and clipping, which the plan adds separately
        plan = replace(plan, longest_optimizer=costs.step)
        without_optimizer = costs.step - optimizer_seconds(plan, constants)
        plan = replace(plan, costs=replace(costs, step=without_optimizer), clipping=None)
    elif half:
        counted = counted_costs(machine.processor, constants, wikipedia_lengths(), config.model_size, config.last_layer)
        plan = replace(plan, counted=counted)
    return replace(plan, unsure=tuple(unsure))


def _multiplies_in_fp32(config: RunConfig, processor: str) -> bool:
    return config.precision == "fp32" or (config.precision == "bf16" and processor in WITHOUT_BF16)


def _build_machine(config: RunConfig, processor: str, unsure: list[str]) -> Machine:
    nodes, per_node = config.launch.nodes, config.launch.processes_per_node
    adapters = parse_adapters(config.description.host_networking)
    if nodes > 1 and adapters is None:
        adapters = ASSUMED_ADAPTERS.get(processor, (1, 100.0))
        networking = config.description.host_networking
        unsure.append(
            f"the network is not known (description.host_networking: {networking!r}): "
            f"{adapters[0]} adapters of {adapters[1]:g} Gb/s per node are assumed"
        )
    if nodes > 1 and processor not in FITTED_PROCESSORS:
        unsure.append(INTER_NODE_WARNING)
    if processor == "cpu" and nodes * per_node > 1:
        unsure.append("the rate at which CPU processes exchange gradients is assumed, not measured")
    return Machine(processor, nodes, per_node, adapters)


def _choose_lengths(config: RunConfig, unsure: list[str]) -> Lengths:
    """Return the lengths of the prepared store; Wikipedia's without one, or if it is not on this machine."""
    path = config.data.store
    if path is not None and path.exists():
        return _store_lengths(SampleStore(path, LENGTH_INDEX_ONLY))
    if path is not None:
        unsure.append(f"data.store {path} is not on this machine, so Wikipedia's lengths are assumed")
    elif config.size == "tiny" or config.data.kind == "text":
        unsure.append("the data is not prepared, so Wikipedia's lengths are assumed")
    return wikipedia_lengths()


def _store_lengths(store: SampleStore) -> Lengths:
    """Return the lengths of a store's samples; more than POOL_SAMPLES are represented by evenly spaced quantiles."""
    index = store.index
    if len(index) > POOL_SAMPLES:
        places = ((np.arange(POOL_SAMPLES) + 0.5) / POOL_SAMPLES * len(index)).astype("int64")
        index = replace(index, entries=np.sort(index.entries)[places])
    tokens, masked = np.asarray(index.lengths, "int64"), np.asarray(index.masked_counts, "int64")
    return Lengths(tokens, masked, store.max_sequence_length)


def _phase_lengths(config: RunConfig, lengths: Lengths, unsure: list[str]) -> list[tuple[int, Lengths]]:
    """Return the number of samples and the lengths of each phase; the last phase has 0 samples."""
    found = []
    for number, phase in enumerate(config.phases):
        if phase.store is not None and phase.store.exists():
            phase_lengths = _store_lengths(SampleStore(phase.store, LENGTH_INDEX_ONLY))
        elif phase.max_sequence_length is not None and phase.max_sequence_length < lengths.max_length:
            unsure.append(
                f"samples of phases.{number} are assumed to be those of {lengths.max_length} tokens, cut into pieces "
                f"of {phase.max_sequence_length}"
            )
            phase_lengths = _cut_to_length(lengths, phase.max_sequence_length, phase.generation.max_predictions)
        else:
            phase_lengths = lengths
        found.append((config.phase_samples(phase) or 0, phase_lengths))
    if len(found) > 1 and config.target_accuracy is not None:
        unsure.append("samples to target come from runs without phases of shorter sequences")
    return found


def _cut_to_length(lengths: Lengths, max_length: int, max_masked: int) -> Lengths:
    """Return the lengths of samples made from the same text for a shorter length: full ones, and the remainders."""
    whole, rest = np.divmod(lengths.tokens, max_length)
    tokens = np.concatenate([np.full(int(whole.sum()), max_length), rest[rest >= MIN_SEQUENCE_LENGTH]])
    return Lengths(tokens, np.minimum(reference_masked_counts(tokens), max_masked), max_length)


def estimate_samples(config: RunConfig, unsure: list[str]) -> Estimate:
    """Return the samples to the target from published runs, or from Podium's runs for the tiny BERT.

    Without a target it is `max_samples`, rounded up to whole steps.
    """
    batch, algorithm = config.global_batch_size, config.optimizer.algorithm
    if config.target_accuracy is None:
        steps = -(-config.max_samples // batch)
        return Estimate(steps * batch, steps * batch, steps * batch)
    if config.target_accuracy != TARGET_ACCURACY:
        unsure.append(
            f"samples to target are for accuracy {TARGET_ACCURACY}, not for target_accuracy {config.target_accuracy}"
        )
    known: Sequence[SamplesToTarget] = all_samples(read_runs())
    if config.size == "tiny":
        known = read_tiny_samples()
        unsure.append("samples to target of the tiny BERT come from Podium's runs on a laptop with the embedded text")
    found = fit_curve(known, algorithm)
    if found is None:
        raise UsageError(
            f"{config.system}: optimizer.algorithm: found {algorithm}, for which the samples to target of size "
            f"{config.size} are not known; use another optimizer, or predict the time of a given number of samples: "
            "--set target_accuracy=null --set max_samples=N"
        )
    if config.size == "large" and config.initial_checkpoint is None:
        unsure.append(
            "samples to target come from runs that start from MLPerf's checkpoint, and initial_checkpoint is not set"
        )
    estimate = found.estimate(batch)
    named = hyperparameter_sets().get(config.hyperparameters or "")
    published = named is not None and named.is_published and named.fits(config.size, algorithm, batch)
    if published and named and named.samples and abs(estimate.mean / named.samples - 1) > SET_TOLERANCE:
        unsure.append(
            f"samples to target, {estimate.mean:,.0f}, are of the fit over the batch sizes of published A100 systems; "
            f"{named.name} needed {named.samples:,} in {named.source}"
        )
    if estimate.mean > config.max_samples:
        unsure.append(
            f"max_samples {config.max_samples:,} would end the run before the predicted {estimate.mean:,.0f} samples"
        )
    return estimate


def _measured_costs(
    config: RunConfig, path: Path, constants: Constants, unsure: list[str]
) -> tuple[StepCosts, CostsOrigin]:
    """Read the measured step costs. Raises UsageError if they are of another model or another kind of device."""
    costs, measured = load_costs(path)
    origin = costs_origin(config, path, measured)
    others, doubts = find_differences(config, measured)
    if others:
        raise UsageError(
            f"{path}: was measured with {'; '.join(others)}; write a separate system file for this configuration and "
            "measure it with `podium bench FILE`"
        )
    if config.launch.device == "cpu":
        factor, threads = constants.cpu_run_over_bench, config.launch.threads
        shared = float(measured.get("threads", threads)) / threads
        costs = replace(costs, **{term: factor * shared * getattr(costs, term) for term in TERMS})
        unsure.append(f"steps are assumed to take {factor:g} times as long as in {path.name}, as in runs on a laptop")
        if shared != 1:
            unsure.append(
                f"{path.name} was measured with {measured['threads']} threads, not {threads}: a step is assumed to "
                f"take {shared:g} times as long for this"
            )
    if doubts:
        unsure.append(f"{path.name} was measured with {'; '.join(doubts)}")
    if not origin.is_comparable:
        costs = replace(costs, median_relative_error=max(costs.median_relative_error, OTHER_MACHINE_ERROR))
        where = "another machine" if origin.relation == "another machine" else "an unknown machine"
        unsure.append(
            f"{path.name} was measured on {where}: steps here may take half or twice as long, and the interval is "
            f"widened for this; measure them with `podium bench {config.system}`"
        )
    return costs, origin


def _fitted_costs(config: RunConfig, processor: str, constants: Constants, unsure: list[str]) -> StepCosts:
    kind = PROCESSORS[processor]
    if processor in FITTED_PROCESSORS:
        unsure.append(
            "no costs file: Podium was not measured here, so the step time of the best published code is assumed, "
            f"fitted on published {kind.name} runs; measure it with `podium bench`"
        )
    else:
        unsure.append(
            f"no costs file, and no published run of {kind.name} is in the fit: Podium was not measured here, so the "
            "step time assumes that the best published code sustains the share of the bf16 (fp16) peak that it does on "
            f"an A100 SXM, within {UNFITTED_ERROR:.0%}; measure it with `podium bench`"
        )
    if processor == "t4":
        unsure.append(
            "NVIDIA T4: not fitted on any run; T4s lower their clock under load, and the effect is assumed to lie "
            "within the interval"
        )
    fp32 = _multiplies_in_fp32(config, processor)
    if fp32:
        stated = kind.fp32_flops
        without = "" if config.precision == "fp32" else f" (precision {config.precision}: the GPU has no bf16)"
        unsure.append(
            f"published runs were in half precision; fp32{without} is assumed to run at the same share of "
            + (
                f"its peak of {stated / 1e12:g} TFLOP/s"
                if stated
                else "the half-precision peak, since no fp32 peak is known"
            )
        )
    elif config.precision == "fp8":
        unsure.append("published runs were in half precision; the effect of fp8 is not known")
    if config.size != "large":
        unsure.append(f"published runs are of BERT-large; the speed of size {config.size} on {kind.name} is a guess")
    costs = published_costs(processor, constants, config.model_size, config.last_layer, fp32)
    if processor in FITTED_PROCESSORS and config.size == "large" and not fp32:
        return costs
    return replace(costs, median_relative_error=UNFITTED_ERROR)
