"""Evaluations: on what, how often, to which target; and the samples that the run says it was trained on."""

from collections.abc import Callable, Mapping
from itertools import pairwise
from types import MappingProxyType

from benchmarks.bert.rules import CLOSED_EVALUATION_SAMPLES, TARGET_ACCURACY, evaluation_interval
from benchmarks.text import quoted
from podium.reading.run_log import Evaluation, as_number
from podium.submission.checks.subjects import CheckedRun, Findings
from podium.submission.rulesets import Ruleset

GRANULE = 25_000
"""Samples in which the schedule's formula is rounded."""


def _evaluation_samples(run: CheckedRun, ruleset: Ruleset) -> Findings:
    event = run.log.first("eval_samples")
    if event is None:
        if log_is_whole(run):
            yield run.error("eval_samples", "there is no eval_samples; a log says on how many samples was evaluated")
    elif (samples := as_number(event.value)) is None:
        yield run.error("eval_samples", f"eval_samples is {quoted(event.value)}, which is no number of samples", event)
    elif run.closed and samples != CLOSED_EVALUATION_SAMPLES:
        allowed = f"{CLOSED_EVALUATION_SAMPLES:,}"
        yield run.error(
            "eval_samples", f"eval_samples is {samples:,.0f}; in the closed division it is {allowed}", event
        )


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
        yield run.warning(
            "eval_accuracy_repeated",
            f"the accuracy {same[0].accuracy!r} is logged for two evaluations in a row; see whether one is "
            f"logged twice",
            same[0].line,
        )


def _unit(run: CheckedRun, ruleset: Ruleset) -> Findings:
    if run.log.evaluations and run.log.epoch_doubt:
        yield run.warning(
            "epoch_num",
            f"epoch_num {run.log.epoch_doubt}; put the samples trained so far into it: neither samples to target nor "
            f"the schedule can be checked otherwise, and the reference check takes it for samples",
            run.log.evaluations[0].line,
        )


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
    off = [
        (after - before - interval, found) for (before, after), found in zip(pairwise(at), log.evaluations, strict=True)
    ]
    late = [(distance, found) for distance, found in off if abs(distance) > max(batch, interval / 100)]
    if not late:
        return
    distance, found = max(late, key=lambda pair: abs(pair[0]))
    message = (
        f"an evaluation comes {interval + distance:,.0f} samples after the one before it or after the start; for batch "
        f"size {batch:,.0f} the rules say every {interval:,}; so far off are {len(late)} of {len(off)}"
    )
    if abs(distance) > GRANULE + 2 * batch:
        yield run.error("evaluation_schedule", message, found.line)
    else:
        yield run.warning("evaluation_schedule", message, found.line)


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
        yield run.error(
            "train_samples", f"train_samples is {quoted(event.value)}, which is no number of samples", event
        )
        return
    reached: Evaluation | None = log.passing or (log.evaluations[-1] if log.evaluations else None)
    if reached is None or reached.samples is None:
        return
    batch = log.number("global_batch_size") or 0
    if abs(trained - reached.samples) > batch:
        which = "that reaches the target" if log.passing else "that is the last"
        less = reached.samples - trained
        false = run.closed and log.passing is not None and less > max(batch, reached.samples / 100)
        yield (run.error if false else run.warning)(
            "train_samples",
            f"train_samples is {trained:,.0f}, but the evaluation {which} (line {reached.line}) comes after "
            f"{reached.samples:,.0f}; it is the samples trained on until the target, not the data's size",
            event,
        )


EVALUATING: Mapping[str, Callable[[CheckedRun, Ruleset], Findings]] = MappingProxyType(
    {
        "evaluation_samples": _evaluation_samples,
        "accuracies": _accuracies,
        "unit": _unit,
        "schedule": _schedule,
        "train_samples": _train_samples,
    }
)
