"""Checks against MLPerf's requirements for a submission, and whether a run as configured can reach its target."""

import math
import os
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

from benchmarks.bert.published.reading import SamplesToTarget, read_runs, read_samples, read_tiny_samples
from benchmarks.bert.rules import RULESETS, TARGET_ACCURACY
from podium.core.finding import Finding, Severity, check_result
from podium.core.paths import INSTALLED
from podium.doctor.context import Examination
from podium.run.source import ADD_LICENCE, NO_LICENCE, has_licence

NOT_STATED = ("", "not stated", "unknown", "todo", "tbd", "?")
MAY_BE_EMPTY = ("hw_notes", "sw_notes", "other_software_stack")
NEAR = 1.5  # batch sizes that are this many times as large or small tell something of each other's samples to target


@dataclass(frozen=True)
class Needed:
    """Samples that published runs at about a batch size trained on until the target."""

    least: float  # of any run
    mean: float  # of the system that needed fewest
    greatest: float  # the median over systems of what their slowest run needed
    systems: int


def is_stated(text: str) -> bool:
    """Whether a field of a description says something."""
    return text.strip().lower() not in NOT_STATED


def check_description(examination: Examination) -> Iterable[Finding]:
    """Fields that say nothing."""
    described = examination.config.description.model_dump(by_alias=True)
    silent = [
        key
        for key, value in described.items()
        if not is_stated(str(value)) and (str(value).strip() or key not in MAY_BE_EMPTY)
    ]
    found = f"{len(silent)} fields say nothing: {', '.join(silent)}" if silent else f"all {len(described)} fields"
    advice = "fill them in under description: before a result is published"
    yield check_result("description", not silent, found, "all fields stated", advice, "warning")


def check_counts(examination: Examination) -> Iterable[Finding]:
    """Numbers that the configuration or this machine contradicts."""
    config = examination.config
    known: list[tuple[str, int, Severity]] = [("number_of_nodes", config.launch.nodes, "error")]
    if examination.machine:
        known.append(("host_processor_vcpu_count", os.cpu_count() or 0, "warning"))
    for key, there, fault in known:
        stated = str(getattr(config.description, key)).strip()
        if stated.isdecimal() and int(stated) != there:
            found, advice = f"description.{key} is {stated}", "describe the system that is used"
            yield Finding(key.replace("_", " "), fault, found, f"{there}, as is found", advice)


def check_division(examination: Examination) -> Iterable[Finding]:
    """The configuration was refused where it breaks a rule of the closed division; here is what is left to say."""
    if examination.config.division == "closed":
        yield Finding("closed division", "ok", "no rule is broken", f"rules of {RULESETS[0]} to {RULESETS[-1]}")


def check_seed(examination: Examination) -> Iterable[Finding]:
    seed = examination.config.seed
    advice = "leave seed out: rulesets from 4.1.0 on refuse runs of one set that share a seed"
    found = "drawn for every run" if seed is None else f"{seed} for every run"
    yield check_result("seed", seed is None, found, "another for every run", advice, "warning")


def check_licence(examination: Examination) -> Iterable[Finding]:
    """A submission holds the code of its runs. An installation has no repository, and cannot be submitted from."""
    if not INSTALLED:
        licensed = has_licence(examination.places.project.parent)
        found = "there is one" if licensed else NO_LICENCE
        yield check_result("licence", licensed, found, "a licence file", ADD_LICENCE, "warning")


def check_target(examination: Examination) -> Iterable[Finding]:
    """A run ends at its first evaluation that reaches the target, and its log is judged by that one."""
    target = examination.config.target_accuracy
    if target is not None:
        found = f"target_accuracy is {target:g}"
        wanted = f"{TARGET_ACCURACY:g} or more, as MLPerf asks of both divisions"
        advice = "leave bert.target_accuracy out: a run that ends below MLPerf's target can never be submitted"
        yield check_result("target", target >= TARGET_ACCURACY, found, wanted, advice, "warning")


def check_max_samples(examination: Examination) -> Iterable[Finding]:
    """Against what published runs of that size and about that batch size needed, and what the store holds."""
    config = examination.config
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
        f"{known.least:,.0f} to {known.greatest:,.0f}, as {known.systems} published "
        f"system{'s' if known.systems > 1 else ''} with about that batch"
    )
    advice = "set max_samples above what any run needed, else runs end as aborted"
    good = config.max_samples >= known.greatest
    fault: Severity = "error" if config.max_samples < known.least else "warning"
    yield check_result("max_samples", good, f"{config.max_samples:,}", wanted, advice, fault)
    decayed = config.optimizer.decay_steps * config.global_batch_size
    if config.optimizer.end_learning_rate == 0 and decayed < known.mean:
        found = f"the rate is 0 from {decayed:,} samples on"
        advice = "set optimizer.decay_steps to more, or optimizer.end_learning_rate above 0"
        yield Finding("schedule", "error", found, f"a rate until {known.mean:,.0f} samples", advice)


def check_sample_count(examination: Examination) -> Iterable[Finding]:
    """Whether samples come more than once before the target, which the closed division does not allow."""
    config, store = examination.config, examination.store
    if store is None:
        return
    needed = math.ceil(config.max_samples / config.global_batch_size) * config.global_batch_size
    known = needed_samples(config.size, config.global_batch_size)
    if known is not None and config.target_accuracy is not None:
        needed = min(needed, math.ceil(known.greatest))
    times = f", so they come up to {needed / len(store):.1f} times" if needed > len(store) else ""
    fault: Severity = "error" if config.division == "closed" else "warning"
    found, advice = f"{len(store):,}{times}", "prepare more text, all of it for the closed division"
    yield check_result("samples", len(store) >= needed, found, f"{needed:,} until the target", advice, fault)


def needed_samples(size: str, batch: int) -> Needed | None:
    """What is published of batch sizes near this one; None where nothing is."""
    if size == "tiny":
        every = list(read_tiny_samples())
    else:
        every = [*read_samples(), *(SamplesToTarget.of(run) for run in read_runs() if run.converged)]
    near = [one for one in every if 1 / NEAR <= one.global_batch_size / batch <= NEAR]
    if not near:
        return None
    return Needed(
        min(one.least for one in near),
        min(one.mean for one in near),
        median(one.greatest for one in near),
        len(near),
    )
