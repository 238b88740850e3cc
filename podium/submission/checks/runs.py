"""Checks of single runs: evaluations, logged settings, the configuration, and the integrity of the log."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from itertools import pairwise
from pathlib import Path
from typing import Any

from mlperf_logging.mllog import constants

from benchmarks.bert.rules import CLOSED_EVALUATION_SAMPLES, TARGET_ACCURACY, evaluation_interval
from podium.config.schema import RunConfig
from podium.core.errors import UsageError
from podium.core.text import quoted
from podium.mllog.rulesets import Ruleset
from podium.mllog.run import as_number
from podium.mllog.write import UsedOptimizer
from podium.run.records import runs_of_system
from podium.submission.checks.context import CheckedRun, Findings

GRANULE = 25_000  # samples in which the schedule's formula is rounded


def _evaluation_samples(run: CheckedRun, ruleset: Ruleset) -> Findings:
    event = run.log.first("eval_samples")
    if event is None:
        if log_is_whole(run):
            yield run.error("eval_samples", "there is no eval_samples; a log says on how many samples was evaluated")
    elif (samples := as_number(event.value)) is None:
        yield run.error("eval_samples", f"eval_samples is {quoted(event.value)}, which is no number of samples", event)
    elif run.closed and samples != CLOSED_EVALUATION_SAMPLES:
        message = f"eval_samples is {samples:,.0f}; in the closed division it is {CLOSED_EVALUATION_SAMPLES:,}"
        yield run.error("eval_samples", message, event)


def log_is_whole(run: CheckedRun) -> bool:
    """Whether the run was logged to its end: of a truncated one `run_stop_missing` says enough."""
    return run.log.first("run_stop") is not None


def _accuracies(run: CheckedRun, ruleset: Ruleset) -> Findings:
    log = run.log
    events = log.all("eval_accuracy")
    if not events:
        yield run.error("eval_accuracy", "there is no eval_accuracy; a run is evaluated at least once")
    for event in events:
        accuracy = as_number(event.value)
        if accuracy is None or not 0 <= accuracy <= 1:
            yield run.error("eval_accuracy", f"eval_accuracy is {quoted(event.value)}; it is between 0 and 1", event)
        elif accuracy == 1:
            message = f"eval_accuracy is 1.0, which does not count: the target is {TARGET_ACCURACY} ≤ accuracy < 1"
            yield run.warning("eval_accuracy", message, event)
    same = [after for before, after in pairwise(log.evaluations) if before.accuracy == after.accuracy]
    if same:
        repeated = f"the accuracy {same[0].accuracy!r} is logged for two evaluations in a row"
        yield run.warning("eval_accuracy_repeated", f"{repeated}; see whether one is logged twice", same[0].line)


def _unit(run: CheckedRun, ruleset: Ruleset) -> Findings:
    if run.log.evaluations and run.log.epoch_doubt:
        message = (
            f"epoch_num {run.log.epoch_doubt}; put the samples trained so far into it: neither samples to target nor "
            f"the schedule can be checked otherwise, and the reference check takes it for samples"
        )
        yield run.warning("epoch_num", message, run.log.evaluations[0].line)


def _schedule(run: CheckedRun, ruleset: Ruleset) -> Findings:
    """In closed. A whole number of batches is as near to the schedule as anybody can be: one batch off, or a hundredth
    of the interval, is right.

    More than a step of the formula's rounding beyond that, in whole batches, breaks the rule; less, as of a
    neighbouring batch size or where the first evaluation comes late, was accepted in both rounds: a question.
    """
    log, batch = run.log, run.log.number("global_batch_size")
    if not run.closed or batch is None or batch < 1 or not log.epochs_are_samples or not log.evaluations:
        return
    interval = evaluation_interval(int(batch))
    at = [0.0, *(evaluation.samples or 0.0 for evaluation in log.evaluations)]
    distances = [after - before - interval for before, after in pairwise(at)]
    off = zip(distances, log.evaluations, strict=True)
    late = [(distance, found) for distance, found in off if abs(distance) > max(batch, interval / 100)]
    if not late:
        return
    distance, found = max(late, key=lambda pair: abs(pair[0]))
    message = (
        f"an evaluation comes {interval + distance:,.0f} samples after the one before it or after the start; for batch "
        f"size {batch:,.0f} the rules say every {interval:,}; so far off are {len(late)} of {len(distances)}"
    )
    make = run.error if abs(distance) > GRANULE + 2 * batch else run.warning
    yield make("evaluation_schedule", message, found.line)


def _train_samples(run: CheckedRun, ruleset: Ruleset) -> Findings:
    """Submitters whose training ran ahead of its evaluation were accepted with more: a question, not a breach.

    With less than the passing evaluation says, one of the two is false, and samples to target are one of them.
    """
    log, event = run.log, run.log.first("train_samples")
    if event is None:
        if log_is_whole(run):
            yield run.error("train_samples", "there is no train_samples; a log says how many samples were trained on")
        return
    trained = as_number(event.value)
    if trained is None or trained <= 0:
        message = f"train_samples is {quoted(event.value)}, which is no number of samples"
        yield run.error("train_samples", message, event)
        return
    reached = log.passing or (log.evaluations[-1] if log.evaluations else None)
    if reached is None or reached.samples is None:
        return
    batch = log.number("global_batch_size") or 0
    if abs(trained - reached.samples) > batch:
        which = "that reaches the target" if log.passing else "that is the last"
        less = reached.samples - trained
        false = run.closed and log.passing is not None and less > max(batch, reached.samples / 100)
        message = (
            f"train_samples is {trained:,.0f}, but the evaluation {which} (line {reached.line}) comes after "
            f"{reached.samples:,.0f}; it is the samples trained on until the target, not the data's size"
        )
        yield (run.error if false else run.warning)("train_samples", message, event)


EVALUATING = (_evaluation_samples, _accuracies, _unit, _schedule, _train_samples)


DIVISIONS = ("closed", "open")
PLACEHOLDER = "PLACEHOLDER"
# submission_status → what a system's description then says, in the spellings of all rounds.
STATUS_OF_LOG = {
    "onprem": ("available on-premise", "onprem", "available", "available on-prem", "on-premise"),
    "cloud": ("available cloud", "cloud", "available"),
    "preview": ("preview",),
    "research": ("research, development, or internal (rdi)", "research", "rdi"),
}
RANGES: dict[str, tuple[str, Callable[[float], bool]]] = {
    "global_batch_size": ("a whole number from 1", lambda x: x >= 1 and x == int(x)),
    "gradient_accumulation_steps": ("a whole number from 1", lambda x: x >= 1 and x == int(x)),
    "opt_base_learning_rate": ("above 0", lambda x: x > 0),
    "opt_learning_rate_training_steps": ("0 or more", lambda x: x >= 0),
    "opt_learning_rate_warmup_steps": ("0 or more", lambda x: x >= 0),
    "num_warmup_steps": ("0 or more", lambda x: x >= 0),
    "opt_lamb_beta_1": ("from 0 to below 1", lambda x: 0 <= x < 1),
    "opt_lamb_beta_2": ("from 0 to below 1", lambda x: 0 <= x < 1),
    "opt_epsilon": ("above 0", lambda x: x > 0),
    "opt_lamb_epsilon": ("above 0", lambda x: x > 0),
    "opt_lamb_weight_decay_rate": ("0 or more", lambda x: x >= 0),
}
# Keys of different rounds for one thing.
TWINS = (("opt_learning_rate_warmup_steps", "num_warmup_steps"), ("opt_epsilon", "opt_lamb_epsilon"))


def _division(run: CheckedRun, ruleset: Ruleset) -> Findings:
    """A closed package's log that says open was held to the open rules alone; the other way, to the harder ones."""
    event = run.log.first("submission_division")
    found, described = run.log.text("submission_division"), (run.system or {}).get("division")
    if event is None:
        yield run.error("division", "there is no submission_division; a log says closed or open")
    elif found not in DIVISIONS:
        message = f"submission_division is {quoted(event.value)}; allowed are closed and open, so spelled"
        yield run.error("division", message, event)
    elif described in DIVISIONS and found != described:
        message = f"submission_division is {found}, but the system's description says {described}"
        if described == "closed":
            yield run.error("division_differs", f"{message}; the log is held to the open rules", event)
        else:
            yield run.warning("division_differs", message, event)


def _names(run: CheckedRun, ruleset: Ruleset) -> Findings:
    """submission_benchmark, _org, _platform, _status: that they are said, and agree with the system's description."""
    log, system = run.log, run.system or {}
    if log.text("submission_benchmark") != "bert":
        event = log.first("submission_benchmark")
        found = quoted(event.value) if event is not None else "missing"
        yield run.error("benchmark", f"submission_benchmark is {found}; here it is bert", event)
    for key, rule, required in (
        ("submission_org", "org", ruleset.log_names),
        ("submission_platform", "platform", ruleset.log_names),
        ("submission_status", "log_status", ruleset.log_status),
    ):
        event = log.first(key)
        if event is None:
            if required:
                yield run.error(rule, f"there is no {key}; ruleset {ruleset.name} wants one")
        elif not isinstance(event.value, str) or not event.value.strip():
            yield run.error(rule, f"{key} is {quoted(event.value)}; name it", event)
        elif PLACEHOLDER in event.value:
            yield run.warning(rule, f"{key} is {quoted(event.value)}: a placeholder was left; name it", event)
    org, submitter = log.text("submission_org"), system.get("submitter")
    if org and isinstance(submitter, str) and PLACEHOLDER not in org and org.casefold() != submitter.casefold():
        message = f"submission_org is {quoted(org)}, but the system's submitter is {quoted(submitter)}"
        yield run.warning("org_differs", message, log.first("submission_org"))
    status, described = log.text("submission_status"), system.get("status")
    if status is not None and status not in STATUS_OF_LOG:
        allowed = ", ".join(STATUS_OF_LOG)
        message = f"submission_status is {quoted(status)}; allowed are {allowed}"
        yield run.error("log_status", message, log.first("submission_status"))
    elif status is not None and isinstance(described, str) and described.casefold() not in STATUS_OF_LOG[status]:
        message = f"submission_status is {status}, but the system's description says {quoted(described)}"
        yield run.warning("status_differs", message, log.first("submission_status"))


def _seeds(run: CheckedRun, ruleset: Ruleset) -> Findings:
    events = run.log.all("seed")
    make = run.error if ruleset.seeds_checked else run.warning
    if not events:
        yield make("seed_missing", "no seed is logged; every run logs the one that it used")
    for event in events:
        number = as_number(event.value)
        if number is None or number != int(number):
            yield make("seed_missing", f"the seed {quoted(event.value)} is no integer", event)


def _twice(run: CheckedRun, ruleset: Ruleset) -> Findings:
    """Settings that are logged more than once, with different values; ranks may well say the same thing."""
    for key, events in run.log.by_key.items():
        if key.startswith(("submission_", "opt_")) or key in RANGES or key in ("train_samples", "eval_samples"):
            other = next((event for event in events if event.value != events[0].value), None)
            if other is not None:
                message = (
                    f"{key} is {quoted(other.value)} here and {quoted(events[0].value)} in line {events[0].line}; a "
                    f"log says one thing"
                )
                yield run.error("logged_twice", message, other)


def _ranges(run: CheckedRun, ruleset: Ruleset) -> Findings:
    for key, (allowed, is_allowed) in RANGES.items():
        event = run.log.first(key)
        if event is not None:
            number = as_number(event.value)
            if number is None or not is_allowed(number):
                yield run.error("setting", f"{key} is {quoted(event.value)}; it is {allowed}", event)


def _weight_decay(run: CheckedRun, ruleset: Ruleset) -> Findings:
    event = run.log.first("opt_lamb_weight_decay_rate")
    if event is not None and as_number(event.value) == 0:
        message = (
            "opt_lamb_weight_decay_rate is 0: many logs tell an optimizer's default and not the value that was used; "
            "log what the parameter groups hold"
        )
        yield run.warning("weight_decay_zero", message, event)


def _contradictions(run: CheckedRun, ruleset: Ruleset) -> Findings:
    log = run.log
    for one, other in TWINS:
        a, b = log.number(one), log.number(other)
        if a is not None and b is not None and a != b:
            message = f"{other} is {b:g}, but {one} is {a:g}; both name one thing"
            yield run.warning("contradiction", message, log.first(other))
    batch, accumulated = log.number("global_batch_size"), log.number("gradient_accumulation_steps")
    if batch and accumulated and batch % accumulated:
        message = f"global_batch_size {batch:g} is no multiple of gradient_accumulation_steps {accumulated:g}"
        yield run.warning("contradiction", message, log.first("gradient_accumulation_steps"))
    warmup, decay = log.number("opt_learning_rate_warmup_steps"), log.number("opt_learning_rate_training_steps")
    if warmup and decay and warmup > decay:
        message = f"{warmup:g} warm-up steps are more than the {decay:g} of the whole schedule"
        yield run.warning("contradiction", message, log.first("opt_learning_rate_warmup_steps"))
    if decay == 0:
        message = "opt_learning_rate_training_steps is 0; log the steps over which the learning rate falls"
        yield run.warning("contradiction", message, log.first("opt_learning_rate_training_steps"))
    if batch and decay and log.samples and not log.number("opt_end_learning_rate"):
        steps = log.samples / batch
        if steps > decay * 1.001:
            message = (
                f"the run takes {steps:,.0f} steps, but the learning rate is 0 from step {decay:,.0f} on; see "
                f"whether opt_learning_rate_training_steps is the value used"
            )
            yield run.warning("contradiction", message, log.first("opt_learning_rate_training_steps"))
    names = [event.value for event in log.all("opt_name") if isinstance(event.value, str)]
    if run.closed and any(name.casefold() != "lamb" for name in names):
        message = f"opt_name is {quoted(names[0])}; in the closed division it is lamb"
        yield run.error("optimizer", message, log.first("opt_name"))


SETTINGS = (_division, _names, _seeds, _twice, _ranges, _weight_decay, _contradictions)


def configurations_in(runs: Path) -> dict[int, RunConfig]:
    """The configurations of Podium's runs under a folder such as runs/SYSTEM, by seed; of two with one the newest."""
    found = {}
    for record in runs_of_system(runs):
        try:
            config = record.config
        except UsageError:
            continue
        if config.seed is not None:
            found[config.seed] = config
    return found


def check_configured(run: CheckedRun, configurations: Mapping[int, RunConfig]) -> Findings:
    config = next((configurations[seed] for seed in run.log.seeds if seed in configurations), None)
    if config is None:
        return
    for key, expected in _expected(config):
        event = run.log.first(key)
        if event is None:
            yield run.error("not_as_configured", f"{key} is not logged; the run was configured with {quoted(expected)}")
        elif event.value != expected:
            message = f"{key} is {quoted(event.value)}, but the run was configured with {quoted(expected)}"
            yield run.error("not_as_configured", message, event)


def _expected(config: RunConfig) -> Iterator[tuple[str, Any]]:
    """Key and value of every line that a configuration determines."""
    description = config.description
    yield constants.SUBMISSION_ORG, description.submitter
    yield constants.SUBMISSION_DIVISION, description.division
    yield constants.SUBMISSION_PLATFORM, description.system_name
    yield constants.GLOBAL_BATCH_SIZE, config.global_batch_size
    yield constants.GRADIENT_ACCUMULATION_STEPS, config.gradient_accumulation_steps
    yield constants.EVAL_SAMPLES, config.evaluation_samples
    used = {field.name: getattr(config.optimizer, field.name) for field in fields(UsedOptimizer)}
    yield from UsedOptimizer(**used).lines()


# Kinds of oddities; others are harmless. A line that no parser reads fails the official checker; one cut off is the end
# of a broken run; a number that JSON does not have is an error where a check needs it.
ERRORS = ("empty", "json", "fields", "long_line", "too_long")
WARNINGS = (
    *("odd_json", "event", "cut_off", "token", "two_events", "not_utf8", "lone_cr", "keyboard"),
    *("number", "point_in_time", "after_block"),
)


def check_integrity(run: CheckedRun, ruleset: Ruleset) -> Findings:
    for oddity in run.log.oddities:
        if oddity.kind in (*ERRORS, *WARNINGS):
            make = run.error if oddity.kind in ERRORS else run.warning
            message = f"{'this line ' if oddity.line and oddity.what[0].islower() else ''}{oddity.what}"
            yield make(f"log_{oddity.kind}", message, oddity.line or None)
