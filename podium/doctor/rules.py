"""Checks of MLPerf's requirements for a submission, and of whether the configured run can reach its target."""

import math
import os
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

from benchmarks.bert.published.hyperparameters import hyperparameter_sets
from benchmarks.bert.published.reading import SamplesToTarget, read_runs, read_samples, read_tiny_samples
from benchmarks.bert.rules import RULESETS, TARGET_ACCURACY
from podium.config.schema import MAY_BE_EMPTY, is_stated
from podium.core.finding import Finding, Severity, check_result
from podium.core.paths import INSTALLED
from podium.doctor.context import DiagnosticContext
from podium.run.source import ADD_LICENCE, NO_LICENCE, has_licence

# Samples to target are compared between batch sizes up to this ratio: beyond it they differ by the batch size itself.
MAX_BATCH_RATIO = 1.5


@dataclass(frozen=True)
class SamplesNeeded:
    """Samples to target of published runs near a batch size."""

    least: float  # minimum over all runs
    mean: float  # of the published hyper-parameters for it, or of the system with the lowest mean
    greatest: float  # median over systems of each system's maximum
    systems: int  # number of systems


def check_description(context: DiagnosticContext) -> Iterable[Finding]:
    """Fields of the description without a value; only a submission, which has a submitter, needs them."""
    described = context.config.description.model_dump(by_alias=True)
    missing = [
        key
        for key, value in described.items()
        if not is_stated(str(value)) and (str(value).strip() or key not in MAY_BE_EMPTY)
    ]
    found = f"{len(missing)} fields not stated: {', '.join(missing)}" if missing else f"all {len(described)} fields"
    advice = "a run does not need them; state them under description: before a submission"
    if context.config.description.submitter:
        yield check_result("description", not missing, found, "all fields stated", advice, "warning")
    else:
        yield Finding("description", "ok", f"no submitter; {found}", "none for a run; all fields for a submission")


def check_counts(context: DiagnosticContext) -> Iterable[Finding]:
    """Numbers of the description that differ from the configuration or this machine."""
    config = context.config
    known: list[tuple[str, int, Severity]] = [("number_of_nodes", config.launch.nodes, "error")]
    if context.machine:
        known.append(("host_processor_vcpu_count", os.cpu_count() or 0, "warning"))
    for key, actual, fault in known:
        stated = str(getattr(config.description, key)).strip()
        if stated.isdecimal() and int(stated) != actual:
            found, advice = f"description.{key} is {stated}", "describe the system that is used"
            yield Finding(key.replace("_", " "), fault, found, f"the actual number, {actual}", advice)


def check_division(context: DiagnosticContext) -> Iterable[Finding]:
    """The rules of the closed division, which were checked when the configuration was read."""
    if context.config.division == "closed":
        yield Finding("closed division", "ok", "no rule is broken", f"rules of {RULESETS[0]} to {RULESETS[-1]}")


def check_seed(context: DiagnosticContext) -> Iterable[Finding]:
    """A fixed seed, with which the runs of a set would share it."""
    seed = context.config.seed
    advice = "leave seed out: rulesets from 4.1.0 on refuse runs of one set that share a seed"
    found = "drawn for every run" if seed is None else f"{seed} for every run"
    yield check_result("seed", seed is None, found, "a different one for every run", advice, "warning")


def check_licence(context: DiagnosticContext) -> Iterable[Finding]:
    """The licence file of the code, which a submission contains. Skipped in an installation, without a repository."""
    if not INSTALLED:
        licensed = has_licence(context.places.project.parent)
        found = "present" if licensed else NO_LICENCE
        yield check_result("licence", licensed, found, "a licence file", ADD_LICENCE, "warning")


def check_target(context: DiagnosticContext) -> Iterable[Finding]:
    """A target accuracy below MLPerf's: a run ends at its first evaluation that reaches the target."""
    target = context.config.target_accuracy
    if target is not None:
        found = f"target_accuracy is {target:g}"
        wanted = f"{TARGET_ACCURACY:g} or more, which MLPerf requires in both divisions"
        advice = "leave bert.target_accuracy out: a run that ends below MLPerf's target can never be submitted"
        yield check_result("target", target >= TARGET_ACCURACY, found, wanted, advice, "warning")


def check_max_samples(context: DiagnosticContext) -> Iterable[Finding]:
    """`max_samples` and the learning rate's decay, compared with published samples to target near this batch size."""
    config = context.config
    if config.target_accuracy is None:
        yield Finding("max_samples", "warning", "no target accuracy", "a target", "no result counts without one")
        return
    if config.max_samples < config.evaluation_interval:
        wanted = f"at least one evaluation interval, {config.evaluation_interval:,}"
        advice = "set max_samples to what a run needs"
        yield Finding("max_samples", "error", f"{config.max_samples:,}", wanted, advice)
        return
    known = needed_samples(config.size, config.global_batch_size)
    if known is None:
        yield Finding("max_samples", "ok", f"{config.max_samples:,}", "nothing is published near this batch size")
        return
    wanted = (
        f"{known.least:,.0f} to {known.greatest:,.0f}, from {known.systems} published "
        f"system{'s' if known.systems > 1 else ''} with about that batch size"
    )
    advice = "set max_samples above what any of these runs needed, else runs end as aborted"
    good = config.max_samples >= known.greatest
    fault: Severity = "error" if config.max_samples < known.least else "warning"
    yield check_result("max_samples", good, f"{config.max_samples:,}", wanted, advice, fault)
    decayed = config.optimizer.decay_steps * config.global_batch_size
    if config.optimizer.end_learning_rate == 0 and decayed < known.mean:
        found = f"the rate is 0 from {decayed:,} samples on"
        advice = "set optimizer.decay_steps to more, or optimizer.end_learning_rate above 0"
        named = hyperparameter_sets().get(config.hyperparameters or "")
        published = (
            named is not None
            and named.is_published
            and named.fits(config.size, config.optimizer.algorithm, config.global_batch_size)
        )
        fault = "warning" if published else "error"  # runs with these values reached the target
        yield Finding("schedule", fault, found, f"a rate until {known.mean:,.0f} samples", advice)


def check_sample_count(context: DiagnosticContext) -> Iterable[Finding]:
    """Whether samples repeat before the target, which the closed division does not allow."""
    config, store = context.config, context.store
    if store is None:
        return
    needed = math.ceil(config.max_samples / config.global_batch_size) * config.global_batch_size
    known = needed_samples(config.size, config.global_batch_size)
    if known is not None and config.target_accuracy is not None:
        needed = min(needed, math.ceil(known.greatest))
    times = f", so each is used up to {needed / len(store):.1f} times" if needed > len(store) else ""
    fault: Severity = "error" if config.division == "closed" else "warning"
    found, advice = f"{len(store):,}{times}", "prepare more text, all of it for the closed division"
    yield check_result("samples", len(store) >= needed, found, f"{needed:,} until the target", advice, fault)


def needed_samples(size: str, batch: int) -> SamplesNeeded | None:
    """Published samples to target of a model size near this global batch size; None if there are none.

    The mean is that of the published hyper-parameters for this batch size, where there are any.
    """
    if size == "tiny":
        every = list(read_tiny_samples())
    else:
        every = [*read_samples(), *(SamplesToTarget.of(run) for run in read_runs() if run.converged)]
    near = [one for one in every if 1 / MAX_BATCH_RATIO <= one.global_batch_size / batch <= MAX_BATCH_RATIO]
    sets = [one for one in hyperparameter_sets().values() if one.is_published and one.fits(size, one.algorithm, batch)]
    of_sets = [float(one.samples) for one in sets if one.samples is not None]
    if not near and not of_sets:
        return None
    means = of_sets or [one.mean for one in near]
    return SamplesNeeded(
        min([*means, *(one.least for one in near)]),
        min(means),
        median(one.greatest for one in near) if near else max(means),
        len(near) or len(of_sets),
    )
