"""Checks of the timed run: its end, a status that agrees with its evaluations, and plausible times."""

from itertools import pairwise
from statistics import median

from benchmarks.bert.rules import TARGET_ACCURACY
from podium.mllog.read import LATEST_MS
from podium.mllog.rulesets import Ruleset
from podium.mllog.write import ABORTED, RESTARTED, SUCCESS
from podium.submission.checks.context import CheckedRun, Findings

# How far times of ranks may be apart. In rounds 2.0 and 2.1 the most is 1,687 ms, on 171 nodes; what is beyond are the
# 50 logs of a submitter whose evaluations ran beside the training, by 67 s and more.
SKEW_MS = 2_000
SKEW_SHARE = 0.01
LEAST_SKEW_MS = 50  # of clocks that are kept by NTP
TRAINING = ("block_start", "block_stop", "epoch_start", "epoch_stop", "eval_start")
CLOSED_MINUTES = 30
MAX_HOURS = 24 * 14


def _run_stop(run: CheckedRun, ruleset: Ruleset) -> Findings:
    """A log that has none is a run that did not converge, of which a set may have one."""
    log = run.log
    if log.start_ms is None:
        yield run.error("run_start_missing", "there is no run_start: nothing was timed; submit a log of a whole run")
    if log.first("run_stop") is None:
        message = "there is no run_stop: the log is truncated, and the run counts as one that did not converge"
        yield run.warning("run_stop_missing", message)
    for key in ("run_start", "run_stop"):
        for event in log.all(key)[1:]:
            yield run.error(f"{key}_twice", f"{key} is logged again; a log holds one run, with one {key}", event)


def _status(run: CheckedRun, ruleset: Ruleset) -> Findings:
    log, stop = run.log, run.log.first("run_stop")
    if stop is None:
        return
    if log.status not in (SUCCESS, ABORTED):
        status = stop.metadata.get("status")
        found = "none" if status is None else repr(status)[:40]
        message = f"run_stop has the status {found}; allowed are {SUCCESS} and {ABORTED}"
    elif log.status == SUCCESS and log.passing is None:
        best = max((evaluation.accuracy for evaluation in log.evaluations), default=0.0)
        message = (
            f"run_stop says success, but no evaluation reaches {TARGET_ACCURACY} (the best is {best:.6g}); such a run "
            f"is aborted"
        )
    elif log.status == ABORTED and log.passing is not None:
        message = (
            f"run_stop says aborted, but the evaluation in line {log.passing.line} reaches {TARGET_ACCURACY} with "
            f"{log.passing.accuracy:.6g}; a run that reached the target says success"
        )
    else:
        return
    yield run.error("run_stop_status", message, stop)


def _skew_ms(run: CheckedRun) -> float:
    """By how much run_start and run_stop may be apart from what they must come before or after.

    It is part of the score, so that it is bounded by the run too: at most 2 s and a hundredth of the run, at least 50
    ms. None of the 999 timed logs of rounds 2.0 and 2.1 needs any of it, of runs from 10 s on: in each, initialisation
    ends at or before run_start, training and evaluations begin at or after it, and run_stop is not before the passing
    evaluation. Times of other ranks, which are apart by more, are not compared with it.
    """
    length = SKEW_MS / SKEW_SHARE if run.log.elapsed_seconds is None else 1e3 * run.log.elapsed_seconds
    return max(LEAST_SKEW_MS, min(SKEW_MS, SKEW_SHARE * length))


def _order(run: CheckedRun, ruleset: Ruleset) -> Findings:
    """run_start, then training and evaluations, then run_stop, by lines and by times beyond the skew of ranks."""
    log, start, stop, skew = run.log, run.log.first("run_start"), run.log.first("run_stop"), _skew_ms(run)
    if start is not None:
        for key in ("init_stop", "init_start", "cache_clear"):
            for event in log.all(key):
                if event.line > start.line and event.time_ms > start.time_ms + skew:
                    message = f"{key} comes after run_start (line {start.line}); it belongs before"
                    yield run.error("order", message, event)
        for evaluation in log.evaluations:
            if evaluation.time_ms < start.time_ms - skew or evaluation.line < start.line:
                message = f"an evaluation comes before run_start (line {start.line}); the clock starts first"
                yield run.error("order", message, evaluation.line)
                break
        begun = [event for key in TRAINING for event in log.all(key) if event.time_ms < start.time_ms - skew]
        begun += [event for key in TRAINING for event in log.all(key) if event.line < start.line]
        if begun:
            first = min(begun, key=lambda event: event.time_ms)
            ahead = (start.time_ms - first.time_ms) / 1e3
            by = f" by {ahead:,.2f} s" if ahead > 0 else ""
            message = f"{first.key} comes before run_start (line {start.line}){by}; the clock starts before training"
            yield run.error("order", message, first)
    if stop is None:
        return
    if start is not None and stop.line < start.line:
        yield run.error("order", f"run_stop comes before run_start (line {start.line})", stop)
    passing = log.passing
    if passing is None or log.status != SUCCESS:
        return
    early = passing.time_ms - stop.time_ms
    if early > skew:
        message = (
            f"run_stop is {early / 1e3:,.2f} s before the first evaluation that reaches the target (line "
            f"{passing.line}); the clock stops when the target is known to be reached"
        )
        yield run.error("run_stop_early", message, stop)
    elif stop.line < passing.line:
        yield run.error(
            "run_stop_early",
            f"run_stop comes before the first evaluation that reaches the target (line {passing.line}); it comes after",
            stop,
        )


def _late_stop(run: CheckedRun, ruleset: Ruleset) -> Findings:
    """The run goes on although the target is reached: the time counted is not the time to the target."""
    log = run.log
    if log.passing is None or log.stop_ms is None or log.start_ms is None:
        return
    later = [evaluation for evaluation in log.evaluations if evaluation.line > log.passing.line]
    if later:
        yield run.warning(
            "evaluation_after_target",
            f"{len(later)} evaluation(s) follow the one in line {log.passing.line} that reaches the target; the "
            f"official tools count samples to the last one",
            later[0].line,
        )
    times = [log.start_ms, *(evaluation.time_ms for evaluation in log.evaluations)]
    interval = median(after - before for before, after in pairwise(times))
    late = log.stop_ms - log.passing.time_ms
    if late > max(interval, 0) + SKEW_MS:
        message = (
            f"run_stop is {late / 1e3:,.1f} s after the first evaluation that reaches the target, and evaluations are "
            f"{interval / 1e3:,.1f} s apart; the clock stops when the target is known to be reached"
        )
        yield run.warning("run_stop_late", message, log.first("run_stop"))


def _times(run: CheckedRun, ruleset: Ruleset) -> Findings:
    log = run.log
    if log.elapsed_seconds is not None and log.elapsed_seconds <= 0:
        message = f"run_stop is {-log.elapsed_seconds:,.1f} s before run_start, or with it; a run takes time"
        yield run.error("run_time", message, log.first("run_stop"))
    elif log.elapsed_seconds is not None and log.elapsed_seconds > MAX_HOURS * 3600:
        hours = log.elapsed_seconds / 3600
        message = f"the run takes {hours:,.0f} hours; see whether its times are right"
        yield run.warning("run_time", message, log.first("run_stop"))
    wrong = [event for event in log.events if not 0 < event.time_ms < LATEST_MS]
    if wrong:
        what = f"time_ms {wrong[0].time_ms:.0f} is no time in milliseconds since 1970"
        message = f"{what} ({len(wrong)} line(s)); the clock of the run cannot be told"
        yield run.warning("time_digits", message, wrong[0])
    latest, back, at = 0.0, 0.0, None
    for event in log.events:
        if not 0 < event.time_ms < LATEST_MS:
            continue
        if latest - event.time_ms > back:
            back, at = latest - event.time_ms, event
        latest = max(latest, event.time_ms)
    if back > SKEW_MS:
        message = (
            f"{at.key if at else ''} is {back / 1e3:,.1f} s earlier than a line before it; ranks differ by up to "
            f"{SKEW_MS / 1e3:g} s; log events when they happen"
        )
        yield run.warning("times_backwards", message, at)


def _initialisation(run: CheckedRun, ruleset: Ruleset) -> Findings:
    """From the first init_start to run_start, which the official checker measures to init_stop alone."""
    log = run.log
    begins = [event.time_ms for event in log.all("init_start") if 0 < event.time_ms < LATEST_MS]
    if not begins or log.start_ms is None:
        return
    allowed = CLOSED_MINUTES if run.closed else ruleset.open_minutes
    minutes = (log.start_ms - min(begins)) / 60_000
    if allowed <= minutes < 1e6:
        message = f"{minutes:,.1f} minutes pass from init_start to run_start; allowed are {allowed}"
        yield run.error("initialisation", message, log.first("run_start"))


def _caches(run: CheckedRun, ruleset: Ruleset) -> Findings:
    cleared, start = run.log.all("cache_clear"), run.log.first("run_start")
    if not cleared:
        message = "there is no cache_clear; caches are cleared before each run, and the log says so"
        yield run.error("cache_clear", message)
    elif any(event.value is False for event in cleared):
        event = next(event for event in cleared if event.value is False)
        yield run.error("cache_clear", "cache_clear is false; caches are cleared before each run", event)
    elif any(event.value is not True for event in cleared):
        event = next(event for event in cleared if event.value is not True)
        message = f"cache_clear is {str(event.value)[:20]!r}, not true; say that they were"
        yield run.warning("cache_clear", message, event)
    elif start is not None and all(start.time_ms + _skew_ms(run) < event.time_ms < LATEST_MS for event in cleared):
        yield run.error("cache_clear", "cache_clear comes after run_start; caches are cleared before", cleared[0])


def _restarted(run: CheckedRun, ruleset: Ruleset) -> Findings:
    for event in run.log.all(RESTARTED):
        yield run.error("restarted", "the run was begun again from a checkpoint; such a run is no result", event)


CLOCK = (_run_stop, _status, _order, _late_stop, _times, _initialisation, _caches, _restarted)
