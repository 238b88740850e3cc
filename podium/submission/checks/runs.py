"""Checks of single runs: evaluations, logged settings, the configuration, and the integrity of the log."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from mlperf_logging.mllog import constants

from benchmarks.bert.rules import CLOSED_EVALUATION_SAMPLES, evaluation_interval
from podium.config.schema import RunConfig
from podium.core.errors import UsageError
from podium.core.text import printable, short_repr, truncate
from podium.mllog import rcp
from podium.mllog.benchmarks import Target
from podium.mllog.lines import Event
from podium.mllog.rulesets import Ruleset
from podium.mllog.run import HYPERPARAMETERS, as_number
from podium.mllog.write import PARALLELISM, OptimizerHyperparameters
from podium.run.records import runs_of_system
from podium.submission.checks.context import CheckedRun, Findings

ROUNDING_SAMPLES = 25_000  # step to which the formula of the evaluation schedule is rounded


def _check_evaluation_samples(run: CheckedRun, ruleset: Ruleset) -> Findings:
    event = run.log.first("eval_samples")
    if event is None:
        if log_is_whole(run):
            yield run.error("eval_samples", "there is no eval_samples; log the number of evaluation samples")
    elif (samples := as_number(event.value)) is None:
        yield run.error(
            "eval_samples", f"eval_samples is {short_repr(event.value)}; it must be a number of samples", event
        )
    elif samples <= 0:
        yield run.error("eval_samples", f"eval_samples is {samples:g}; it must be above 0", event)
    elif run.closed and run.is_bert and samples != CLOSED_EVALUATION_SAMPLES:
        message = f"eval_samples is {samples:,.0f}; in the closed division it is {CLOSED_EVALUATION_SAMPLES:,}"
        # More are accepted: the last batch is filled up.
        make = run.error if samples < CLOSED_EVALUATION_SAMPLES else run.warning
        yield make("eval_samples", message, event)


def log_is_whole(run: CheckedRun) -> bool:
    """Whether the log has run_stop; of a truncated log only `run_stop_missing` is reported."""
    return run.log.first("run_stop") is not None


def _check_accuracies(run: CheckedRun, ruleset: Ruleset) -> Findings:
    log = run.log
    events = log.all("eval_accuracy")
    if not events and log_is_whole(run):
        yield run.error("eval_accuracy", "there is no eval_accuracy; a run must be evaluated at least once")
    for event in events:
        yield from _check_metrics(run, event)
    same = [after for before, after in pairwise(log.evaluations) if before.accuracy == after.accuracy]
    if same:
        repeated = f"the value {same[0].accuracy!r} is logged for two evaluations in a row"
        yield run.warning("eval_accuracy_repeated", f"{repeated}; check whether one was logged twice", same[0].line)


def _check_metrics(run: CheckedRun, event: Event) -> Findings:
    """Check the values of one eval_accuracy; of several metrics it has one, or an object with all."""
    targets = run.log.targets
    if len(targets) < 2:
        yield from _check_metric(run, event, event.value, targets[0] if targets else None)
        return
    names = ", ".join(target.name for target in targets)
    if isinstance(event.value, dict):
        for target in targets:
            yield from _check_metric(run, event, event.value.get(target.name), target)
        return
    named = event.metadata.get("metric")
    known = next((target for target in targets if target.name == named), None)
    if known is None:
        found = "no metric" if named is None else f"the metric {short_repr(named)}"
        yield run.error("eval_accuracy", f"eval_accuracy has {found} in its metadata; it must be one of {names}", event)
    else:
        yield from _check_metric(run, event, event.value, known)


def _check_metric(run: CheckedRun, event: Event, logged: Any, target: Target | None) -> Findings:
    value, name = as_number(logged), "" if target is None or not target.name else f" ({target.name})"
    if value is None or (target is not None and not target.is_plausible(value)):
        allowed = "a number" if target is None else "0 or more" if target.lower_is_better else "from 0 to 1"
        message = f"eval_accuracy{name} is {short_repr(logged)}; it must be {allowed}"
        yield run.error("eval_accuracy", message, event)
    elif target is not None and target.is_beyond_bounds(value):
        message = f"eval_accuracy{name} is {value:g}, which is not counted: the target is {target.bounds}"
        yield run.warning("eval_accuracy", message, event)


def _check_progress(run: CheckedRun, ruleset: Ruleset) -> Findings:
    """Check what counts the samples of evaluations: numbers that increase, but for checkpoints evaluated later."""
    if run.is_bert:
        yield from _check_epoch_unit(run)
        return
    rules = run.log.rules
    progress = None if rules is None else rules.progress_in(ruleset.round)
    if progress is None:
        return
    counts = [(event, as_number(event.metadata.get(progress.key))) for event in run.log.all("eval_accuracy")]
    missing = next((event for event, count in counts if count is None), None)
    if missing is not None:
        found = short_repr(missing.metadata[progress.key]) if progress.key in missing.metadata else "missing"
        message = f"{progress.key} of an evaluation is {found}; log it as a number: samples to target are counted by it"
        yield run.error("progress", message, missing)
    if run.offline_evaluation:
        return
    numbers = [(event, count) for event, count in counts if count is not None]
    steps = [(before, after) for before, after in pairwise(numbers) if after[1] <= before[1]]
    for (before, earlier), (event, count) in steps[:1]:
        message = (
            f"{progress.key} of an evaluation is {count:,.12g}, after {earlier:,.12g} in line {before.line}; it must "
            f"increase, since samples to target are counted by it"
        )
        # Accepted logs have the last evaluation of an epoch twice.
        yield (run.error if any(after < before for (_, before), (_, after) in steps) else run.warning)(
            "progress", message, event
        )


def _check_epoch_unit(run: CheckedRun) -> Findings:
    if run.log.evaluations and run.log.epoch_doubt:
        message = (
            f"epoch_num {run.log.epoch_doubt}; log the samples trained so far in it: otherwise neither samples to "
            f"target nor the schedule can be checked, and the reference check takes it for samples"
        )
        yield run.warning("epoch_num", message, run.log.evaluations[0].line)


def _check_schedule(run: CheckedRun, ruleset: Ruleset) -> Findings:
    """Check the evaluation schedule of the closed division."""
    log, batch = run.log, run.log.number("global_batch_size")
    if not run.closed or batch is None or batch < 1 or not log.evaluations:
        return
    if run.is_bert:
        yield from _check_bert_schedule(run, batch)
        return
    schedule = None if log.rules is None else log.rules.evaluation_interval_in(ruleset.round)
    if schedule is None or any(evaluation.samples is None for evaluation in log.evaluations):
        return
    interval, first = schedule.interval(batch), schedule.first(batch)
    at = [evaluation.samples or 0.0 for evaluation in log.evaluations]
    distances = [at[0] - first, *(after - before - interval for before, after in pairwise(at))]
    # A batch off is a rounding. Larger deviations, up to four times the interval, were accepted: a warning.
    pairs = zip(distances, log.evaluations, strict=True)
    wrong = [(distance, found) for distance, found in pairs if abs(distance) > max(batch, interval / 100)]
    if not wrong:
        return
    distance, found = max(wrong, key=lambda pair: abs(pair[0]))
    is_first = found is log.evaluations[0]
    expected = first if is_first else interval
    where = "the start" if is_first else "the one before it"
    rule = f"the first after {first:,.0f}" if is_first else f"one every {interval:,.0f}"
    message = (
        f"an evaluation comes {expected + distance:,.0f} samples after {where}; the rules require {rule} for batch "
        f"size {batch:,.0f}; {len(wrong)} of {len(distances)} deviate"
    )
    yield run.warning("evaluation_schedule", message, found.line)


def _check_bert_schedule(run: CheckedRun, batch: float) -> Findings:
    """Check BERT's evaluation schedule.

    Evaluations come after whole batches, so that a deviation of one batch, or of a hundredth of the interval, is right.
    A deviation within one rounding step of the formula and two batches was accepted in both rounds (the schedule of a
    neighbouring batch size, a late first evaluation), and is a warning; a larger one breaks the rule.
    """
    log = run.log
    if not log.epochs_are_samples:
        return
    interval = evaluation_interval(int(batch))
    at = [0.0, *(evaluation.samples or 0.0 for evaluation in log.evaluations)]
    distances = [after - before - interval for before, after in pairwise(at)]
    pairs = zip(distances, log.evaluations, strict=True)
    wrong = [(distance, found) for distance, found in pairs if abs(distance) > max(batch, interval / 100)]
    if not wrong:
        return
    distance, found = max(wrong, key=lambda pair: abs(pair[0]))
    message = (
        f"an evaluation comes {interval + distance:,.0f} samples after the one before it or after the start; the rules "
        f"require one every {interval:,} for batch size {batch:,.0f}; {len(wrong)} of {len(distances)} deviate"
    )
    make = run.error if abs(distance) > ROUNDING_SAMPLES + 2 * batch else run.warning
    yield make("evaluation_schedule", message, found.line)


def _check_train_samples(run: CheckedRun, ruleset: Ruleset) -> Findings:
    """Check train_samples. BERT's is compared with the samples of the passing evaluation, or of the last one.

    More is a warning: submitters whose training ran ahead of the evaluation were accepted. Less in the closed division
    is an error: train_samples or the samples to target are wrong.
    """
    log, event = run.log, run.log.first("train_samples")
    if event is None:
        if log_is_whole(run):
            yield run.error("train_samples", "there is no train_samples; log the number of training samples")
        return
    trained = as_number(event.value)
    if trained is None or trained <= 0:
        message = f"train_samples is {short_repr(event.value)}; it must be a number of samples above 0"
        yield run.error("train_samples", message, event)
        return
    reached = log.passing or (log.evaluations[-1] if log.evaluations else None)
    if not run.is_bert:  # log the size of the data, or the samples trained on
        return
    if reached is None or reached.samples is None:
        return
    batch = log.number("global_batch_size") or 0
    if abs(trained - reached.samples) > batch:
        which = "that reaches the target" if log.passing else "that is the last"
        missing = reached.samples - trained
        is_wrong = run.closed and log.passing is not None and missing > max(batch, reached.samples / 100)
        message = (
            f"train_samples is {trained:,.0f}, but the evaluation {which} (line {reached.line}) comes after "
            f"{reached.samples:,.0f}; log the samples trained on until the target, not the size of the data"
        )
        yield (run.error if is_wrong else run.warning)("train_samples", message, event)


MAX_REFERENCE_RATIO = 20  # between progress to the target and the reference's mean; more is another unit


def _check_unit(run: CheckedRun, ruleset: Ruleset) -> Findings:
    """Check that progress is in the unit of the benchmark's reference points, by its order of magnitude."""
    log, name = run.log, run.log.benchmark
    known = name is not None and ruleset.name in rcp.rulesets()
    points = rcp.reference(name, ruleset.name) if known and name is not None else None
    if points is None or not log.progress or run.is_bert:
        return
    mean = median(record.mean for record in points.points)
    if not mean / MAX_REFERENCE_RATIO < log.progress < mean * MAX_REFERENCE_RATIO:
        message = (
            f"the target is reached at {points.log_key} {log.progress:,.6g}, and the reference needs {mean:,.6g} "
            f"{points.unit}; log {points.log_key} in {points.unit}"
        )
        yield run.error("progress", message, log.evaluations[-1].line if log.evaluations else None)


def _check_checkpoint(run: CheckedRun, ruleset: Ruleset) -> Findings:
    """Check that training did not resume from a later checkpoint; only GPT-3's reference starts from one with steps."""
    event = run.log.first("init_checkpoint_step")
    if event is not None and run.closed and event.value != 0 and run.log.benchmark != "gpt3":
        message = f"init_checkpoint_step is {short_repr(event.value)}; in the closed division training starts at step 0"
        yield run.error("resumed", message, event)


EVALUATION_CHECKS = (
    _check_unit,
    _check_checkpoint,
    _check_evaluation_samples,
    _check_accuracies,
    _check_progress,
    _check_schedule,
    _check_train_samples,
)


DIVISIONS = ("closed", "open")
PLACEHOLDER = "PLACEHOLDER"
# submission_status → the status in the system's description, in the spellings of all rounds.
STATUS_OF_LOG = {
    "onprem": ("available on-premise", "onprem", "available", "available on-prem", "on-premise"),
    "cloud": ("available cloud", "cloud", "available"),
    "preview": ("preview",),
    "research": ("research, development, or internal (rdi)", "research", "rdi"),
}
# Pattern of keys → what is allowed.
RANGES: tuple[tuple[re.Pattern[str], str, Callable[[float], bool]], ...] = tuple(
    (re.compile(pattern), allowed, is_allowed)
    for pattern, allowed, is_allowed in (
        (
            "global_batch_size|gradient_accumulation_steps|micro_batch_size|lora_rank|max_sequence_length|max_steps"
            "|(tensor|pipeline|context|expert)_parallelism",
            "a whole number from 1",
            lambda x: x >= 1 and x == int(x),
        ),
        ("opt_base_learning_rate|lora_alpha", "above 0", lambda x: x > 0),
        ("opt(_[a-z0-9]+)?_beta_[12]", "from 0 to below 1", lambda x: 0 <= x < 1),
        ("opt(_[a-z0-9]+)?_epsilon", "above 0", lambda x: x > 0),
        (
            "opt(_[a-z0-9]+)?_weight_decay(_rate)?|opt_end_learning_rate|opt_gradient_clip_norm|num_warmup_steps"
            "|opt_learning_rate_warmup_steps",
            "0 or more",
            lambda x: x >= 0,
        ),
        ("opt_learning_rate_training_steps", "0 or more, or -1 where there is no end", lambda x: x >= 0 or x == -1),
    )
)
# Keys of different rounds with the same meaning.
SYNONYMOUS_KEYS = (("opt_learning_rate_warmup_steps", "num_warmup_steps"), ("opt_epsilon", "opt_lamb_epsilon"))


def _check_division(run: CheckedRun, ruleset: Ruleset) -> Findings:
    """Check submission_division; the official checker applies its rules to the log, the looser ones of open as well."""
    event = run.log.first("submission_division")
    found, described = run.log.text("submission_division"), (run.system or {}).get("division")
    if event is None:
        yield run.error("division", "there is no submission_division; log closed or open")
    elif found not in DIVISIONS:
        message = f"submission_division is {short_repr(event.value)}; allowed are closed and open in lower case"
        yield run.error("division", message, event)
    elif described in DIVISIONS and found != described:
        message = f"submission_division is {found}, but the system's description has {described}"
        if described == "closed":
            yield run.error(
                "division_differs",
                f"{message}; the official checker applied the rules of the open division to the log",
                event,
            )
        else:
            yield run.warning("division_differs", message, event)


def _check_logged_names(run: CheckedRun, ruleset: Ruleset) -> Findings:
    """Check submission_benchmark, _org, _platform and _status, and compare them with the system's description."""
    log, system = run.log, run.system or {}
    yield from _check_benchmark(run, ruleset)
    for key, rule, required in (
        ("submission_org", "org", ruleset.log_names),
        ("submission_platform", "platform", ruleset.log_names),
        ("submission_status", "log_status", ruleset.log_status),
    ):
        event = log.first(key)
        if event is None:
            if required:
                yield run.error(rule, f"there is no {key}; ruleset {ruleset.name} requires it")
        elif not isinstance(event.value, str) or not event.value.strip():
            yield run.error(rule, f"{key} is {short_repr(event.value)}; log a name", event)
        elif PLACEHOLDER in event.value:
            yield run.warning(rule, f"{key} is {short_repr(event.value)}: a placeholder; log the actual name", event)
    org, submitter = log.text("submission_org"), system.get("submitter")
    if org and isinstance(submitter, str) and PLACEHOLDER not in org and org.casefold() != submitter.casefold():
        message = f"submission_org is {short_repr(org)}, but the system's submitter is {short_repr(submitter)}"
        yield run.warning("org_differs", message, log.first("submission_org"))
    status, described = log.text("submission_status"), system.get("status")
    if status is not None and status not in STATUS_OF_LOG:
        allowed = ", ".join(STATUS_OF_LOG)
        message = f"submission_status is {short_repr(status)}; allowed are {allowed}"
        yield run.error("log_status", message, log.first("submission_status"))
    elif status is not None and isinstance(described, str) and described.casefold() not in STATUS_OF_LOG[status]:
        message = f"submission_status is {status}, but the system's description has {short_repr(described)}"
        yield run.warning("status_differs", message, log.first("submission_status"))


def _check_benchmark(run: CheckedRun, ruleset: Ruleset) -> Findings:
    """Check that the log names the benchmark of its folder, which is one of the ruleset."""
    event, logged = run.log.first("submission_benchmark"), run.log.text("submission_benchmark")
    found = short_repr(event.value) if event is not None else "missing"
    folder = run.log.path.parent.name
    if folder in ruleset.benchmarks and logged != folder:
        message = f"submission_benchmark is {found}; it must be {folder}, as the folder"
        yield run.error("benchmark", message, event)
    elif logged not in ruleset.benchmarks:
        allowed = ", ".join(sorted(ruleset.benchmarks))
        yield run.error("benchmark", f"submission_benchmark is {found}; those of {ruleset.name} are {allowed}", event)


def _check_seeds(run: CheckedRun, ruleset: Ruleset) -> Findings:
    events = run.log.all("seed")
    make = run.error if ruleset.seeds_checked else run.warning
    if not events:
        yield make("seed_missing", "no seed is logged; each run must log its seed")
    for event in events:
        number = as_number(event.value)
        if number is None or number != int(number):
            yield make("seed_missing", f"the seed {short_repr(event.value)} is not an integer", event)


# Keys with one value in a log, besides submission_* and opt_*.
SINGLE_KEYS = frozenset({"global_batch_size", "train_samples", "eval_samples", *HYPERPARAMETERS})


def short_name(key: str) -> str:
    """A logged key in a message: printable and of bounded length."""
    return truncate(printable(key), 60)


def _check_conflicting_values(run: CheckedRun, ruleset: Ruleset) -> Findings:
    """Check for settings logged with different values; several ranks may log the same value."""
    for key, events in run.log.by_key.items():
        if key.startswith(("submission_", "opt_")) or key in SINGLE_KEYS:
            other = next((event for event in events if event.value != events[0].value), None)
            if other is not None:
                message = (
                    f"{short_name(key)} is {short_repr(other.value)} here and {short_repr(events[0].value)} in line "
                    f"{events[0].line}; log one value"
                )
                yield run.error("logged_twice", message, other)


def _check_ranges(run: CheckedRun, ruleset: Ruleset) -> Findings:
    for key, events in run.log.by_key.items():
        for pattern, allowed, is_allowed in RANGES:
            if pattern.fullmatch(key):
                number = as_number(events[0].value)
                if number is None or not is_allowed(number):
                    message = f"{short_name(key)} is {short_repr(events[0].value)}; it must be {allowed}"
                    yield run.error("setting", message, events[0])


def _check_weight_decay(run: CheckedRun, ruleset: Ruleset) -> Findings:
    event = run.log.first("opt_lamb_weight_decay_rate")
    if event is not None and as_number(event.value) == 0:
        message = (
            "opt_lamb_weight_decay_rate is 0: many logs have an optimizer's default instead of the value used; log "
            "the value of the parameter groups"
        )
        yield run.warning("weight_decay_zero", message, event)


def _check_contradictions(run: CheckedRun, ruleset: Ruleset) -> Findings:
    log = run.log
    for one, other in SYNONYMOUS_KEYS:
        a, b = log.number(one), log.number(other)
        if a is not None and b is not None and a != b:
            message = f"{other} is {b:g}, but {one} is {a:g}; both keys mean the same setting"
            yield run.warning("contradiction", message, log.first(other))
    batch = log.number("global_batch_size")
    for key in ("gradient_accumulation_steps", "micro_batch_size"):
        part = log.number(key)
        if batch and part and batch % part:
            message = f"global_batch_size {batch:g} is not a multiple of {key} {part:g}"
            yield run.warning("contradiction", message, log.first(key))
    warmup, decay = log.number("opt_learning_rate_warmup_steps"), log.number("opt_learning_rate_training_steps")
    if warmup and decay and warmup > decay > 0:
        message = f"{warmup:g} warm-up steps exceed the {decay:g} steps of the whole schedule"
        yield run.warning("contradiction", message, log.first("opt_learning_rate_warmup_steps"))
    if decay == 0:
        message = "opt_learning_rate_training_steps is 0; log the steps over which the learning rate decays"
        yield run.warning("contradiction", message, log.first("opt_learning_rate_training_steps"))
    if batch and decay and decay > 0 and log.samples and not log.number("opt_end_learning_rate"):
        steps = log.samples / batch
        if steps > decay * 1.001:
            message = (
                f"the run has {steps:,.0f} steps, but the learning rate is 0 from step {decay:,.0f} on; check "
                f"whether opt_learning_rate_training_steps is the value used"
            )
            yield run.warning("contradiction", message, log.first("opt_learning_rate_training_steps"))
    names = [event.value for event in log.all("opt_name") if isinstance(event.value, str)]
    if run.closed and run.is_bert and any(name.casefold() != "lamb" for name in names):
        message = f"opt_name is {short_repr(names[0])}; in the closed division it must be lamb"
        yield run.error("optimizer", message, log.first("opt_name"))


SETTING_CHECKS = (
    _check_division,
    _check_logged_names,
    _check_seeds,
    _check_conflicting_values,
    _check_ranges,
    _check_weight_decay,
    _check_contradictions,
)


def configurations_in(runs: Path) -> dict[int, RunConfig]:
    """Return the configurations of Podium's runs below a folder such as runs/SYSTEM by seed, the newest for each."""
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
    """Compare a log with the configuration that has its seed, where there is one."""
    config = next((configurations[seed] for seed in run.log.seeds if seed in configurations), None)
    if config is None:
        return
    for key, expected in _expected_lines(config):
        event = run.log.first(key)
        if event is None:
            yield run.error(
                "not_as_configured", f"{key} is not logged; the run was configured with {short_repr(expected)}"
            )
        elif event.value != expected:
            message = f"{key} is {short_repr(event.value)}, but the run was configured with {short_repr(expected)}"
            yield run.error("not_as_configured", message, event)
    for key, expected in _expected_disclosure(config):
        event = run.log.first(key)
        if event is not None and event.value != expected:
            message = f"{key} is {short_repr(event.value)}, but the run was configured with {short_repr(expected)}"
            yield run.error("not_as_configured", message, event)


def _expected_disclosure(config: RunConfig) -> Iterator[tuple[str, Any]]:
    """Yield key and value of the log lines that a configuration determines and older logs of Podium do not have."""
    yield constants.MICRO_BATCH_SIZE, config.local_batch_size // config.gradient_accumulation_steps
    yield constants.CONFIG_FILENAME, config.config_filename
    yield from PARALLELISM.items()


def _expected_lines(config: RunConfig) -> Iterator[tuple[str, Any]]:
    """Yield key and value of every log line that a configuration determines."""
    description = config.description
    yield constants.SUBMISSION_ORG, description.logged_submitter
    yield constants.SUBMISSION_DIVISION, description.division
    yield constants.SUBMISSION_PLATFORM, description.system_name
    yield constants.GLOBAL_BATCH_SIZE, config.global_batch_size
    yield constants.GRADIENT_ACCUMULATION_STEPS, config.gradient_accumulation_steps
    yield constants.EVAL_SAMPLES, config.evaluation_samples
    used = {field.name: getattr(config.optimizer, field.name) for field in fields(OptimizerHyperparameters)}
    yield from OptimizerHyperparameters(**used).log_entries()


# Kinds of anomalies; others are harmless. A line that no parser reads fails the official checker; a truncated one is
# the end of a broken run; a number that JSON does not have is an error where a check needs it.
ANOMALY_ERRORS = ("empty", "json", "fields", "long_line", "too_long")
ANOMALY_WARNINGS = (
    *("odd_json", "event", "cut_off", "token", "two_events", "not_utf8", "lone_cr", "keyboard"),
    *("number", "no_number", "point_in_time", "after_block"),
)


def check_integrity(run: CheckedRun, ruleset: Ruleset) -> Findings:
    """Report the anomalies that the reader found in the log's lines."""
    for anomaly in run.log.anomalies:
        if anomaly.kind in (*ANOMALY_ERRORS, *ANOMALY_WARNINGS):
            make = run.error if anomaly.kind in ANOMALY_ERRORS else run.warning
            message = f"{'this line ' if anomaly.line and anomaly.message[0].islower() else ''}{anomaly.message}"
            yield make(f"log_{anomaly.kind}", message, anomaly.line or None)
