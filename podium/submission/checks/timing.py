"""Checks of the timed run: its end, a status that agrees with its evaluations, and plausible times."""

import time
from itertools import pairwise
from statistics import median

from podium.mllog.lines import Event
from podium.mllog.read import LATEST_MS
from podium.mllog.rulesets import Ruleset
from podium.mllog.run import as_number
from podium.mllog.write import ABORTED, PROFILED, RESTARTED, SUCCESS, SWEPT
from podium.submission.checks.context import CheckedRun, Findings

# Allowed difference between clocks of ranks. In rounds 2.0 and 2.1 the largest is 1,687 ms, on 171 nodes, except in the
# 50 logs of a submitter whose evaluations ran beside the training (67 s and more).
SKEW_MS = 2_000
SKEW_SHARE = 0.01  # of the run
MIN_SKEW_MS = 50  # between clocks synchronised by NTP
TRAINING = ("block_start", "block_stop", "epoch_start", "epoch_stop", "eval_start")
# Logged after the run where checkpoints are evaluated then; run_stop has the time of the checkpoint that passed.
OFFLINE = ("eval_start", "eval_accuracy", "eval_stop", "run_stop")
CLOSED_INIT_MINUTES = 30
MAX_RUN_HOURS = 24 * 14
EARLIEST_MS = 1_514_764_800_000  # the beginning of 2018, MLPerf's first year: earlier times are in another unit
FUTURE_MS = 86_400_000  # by how much a time may be ahead of this machine's clock
# How much faster than later ones the first interval of samples may be trained, by the logged times.
MAX_FIRST_PACE = 3.0


def _check_run_stop(run: CheckedRun, ruleset: Ruleset) -> Findings:
    """Check for one run_start and one run_stop; a log without run_stop did not converge, and a set may have one."""
    log = run.log
    if log.start_ms is None:
        yield run.error(
            "run_start_missing", "there is no run_start: the run was not timed; submit the log of a complete run"
        )
    if log.first("run_stop") is None:
        message = "there is no run_stop: the log is truncated, and the run counts as one that did not converge"
        yield run.warning("run_stop_missing", message)
    for key in ("run_start", "run_stop"):
        for event in log.all(key)[1:]:
            yield run.error(f"{key}_twice", f"{key} is logged again; a log has one run, with one {key}", event)


def _check_status(run: CheckedRun, ruleset: Ruleset) -> Findings:
    log, stop = run.log, run.log.first("run_stop")
    if stop is None:
        return
    if log.status not in (SUCCESS, ABORTED):
        status = stop.metadata.get("status")
        found = "none" if status is None else repr(status)[:40]
        message = f"run_stop has the status {found}; allowed are {SUCCESS} and {ABORTED}"
    elif log.status == SUCCESS and log.passing is None and log.targets:
        message = f"run_stop has the status success, but no evaluation reaches {run.target} ({_best(run)}); " + (
            "the status of such a run is aborted"
            if run.closed
            else "in the open division, state the quality that was reached"
        )
        if not run.closed:
            yield run.warning("run_stop_status", message, stop)
            return
    elif log.status == ABORTED and log.passing is not None:
        message = (
            f"run_stop has the status aborted, but the evaluation in line {log.passing.line} reaches {run.target} "
            f"with {log.passing.accuracy:.6g}; the status of such a run is success"
        )
    else:
        return
    yield run.error("run_stop_status", message, stop)


def _best(run: CheckedRun) -> str:
    """The best value of the first metric, for a message."""
    values = [evaluation.accuracy for evaluation in run.log.evaluations]
    if not values:
        return "there is none"
    best = min(values) if run.log.targets[0].lower_is_better else max(values)
    return f"the best {run.log.targets[0].metric} is {best!r}"


def _allowed_skew_ms(run: CheckedRun) -> float:
    """Tolerance in ms for run_start after training or evaluations, and for run_stop before the passing evaluation.

    It shortens the score, so that it is bounded by the run too: at most 2 s and a hundredth of the run, at least 50 ms.
    None of the 999 timed logs of rounds 2.0 and 2.1 with runs of at least 10 s needs any tolerance. Times of other
    ranks, which differ by more, are not compared with it.
    """
    length = SKEW_MS / SKEW_SHARE if run.log.elapsed_seconds is None else 1e3 * run.log.elapsed_seconds
    return max(MIN_SKEW_MS, min(SKEW_MS, SKEW_SHARE * length))


def _check_order(run: CheckedRun, ruleset: Ruleset) -> Findings:
    """Check the order run_start, training and evaluations, run_stop: by lines, and by times beyond the allowed skew."""
    log, start, stop, skew = run.log, run.log.first("run_start"), run.log.first("run_stop"), _allowed_skew_ms(run)
    if start is not None:
        for key in ("init_stop", "init_start", "cache_clear"):
            for event in log.all(key):
                if event.line > start.line and event.time_ms > start.time_ms + skew:
                    message = f"{key} comes after run_start (line {start.line}); it must come before"
                    yield run.error("order", message, event)
        for evaluation in log.evaluations:
            if evaluation.time_ms < start.time_ms - skew or evaluation.line < start.line:
                message = f"an evaluation comes before run_start (line {start.line}); it must come after"
                yield run.error("order", message, evaluation.line)
                break
        early = [event for key in TRAINING for event in log.all(key) if event.time_ms < start.time_ms - skew]
        early += [event for key in TRAINING for event in log.all(key) if event.line < start.line]
        if early:
            first = min(early, key=lambda event: event.time_ms)
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
    if run.offline_evaluation:
        yield from _check_stop_of_checkpoint(run, stop, skew)
        return
    ahead_ms = passing.time_ms - stop.time_ms
    if ahead_ms > skew:
        message = (
            f"run_stop is {ahead_ms / 1e3:,.2f} s before the first evaluation that reaches the target (line "
            f"{passing.line}); the clock stops when the target is known to be reached"
        )
        yield run.error("run_stop_early", message, stop)
    elif stop.line < passing.line:
        yield run.error(
            "run_stop_early",
            f"run_stop is logged before the first evaluation that reaches the target (line {passing.line})",
            stop,
        )


def _check_stop_of_checkpoint(run: CheckedRun, stop: Event, skew: float) -> Findings:
    """Check that run_stop does not come before the training that the first passing checkpoint needed.

    Blocks are logged with the samples at their start or at their end: all blocks with fewer samples than the checkpoint
    have ended when it is written, whichever of the two was logged.
    """
    counts = [(as_number(event.metadata.get("samples_count")), event) for event in run.log.all("block_stop")]
    before = [event for count, event in counts if count is not None and count < (run.log.samples or 0)]
    last = max(before, key=lambda event: event.time_ms, default=None)
    if last is not None and stop.time_ms < last.time_ms - skew:
        message = (
            f"run_stop is {(last.time_ms - stop.time_ms) / 1e3:,.2f} s before the block_stop in line {last.line}; the "
            f"checkpoint that passed ({run.log.samples:,.0f} samples) was written after that, and stops the clock"
        )
        yield run.error("run_stop_early", message, stop)


def _check_first_interval(run: CheckedRun, ruleset: Ruleset) -> Findings:
    """Warn of a first interval that was trained much faster than the later ones: the clock may have started late."""
    points = [(point.seconds, point.samples) for point in run.log.points if point.samples is not None]
    if run.offline_evaluation or len(points) < 4 or any(b <= a for (_, a), (_, b) in pairwise(points)):
        return
    paces = [(later[0] - earlier[0]) / (later[1] - earlier[1]) for earlier, later in pairwise(points)]
    usual, (seconds, samples) = median(paces), points[0]
    if usual > 0 and 0 < seconds < usual * samples / MAX_FIRST_PACE:
        message = (
            f"the first evaluation comes {seconds:,.1f} s after run_start, though its {samples:,.0f} samples take "
            f"{usual * samples:,.1f} s at the pace of the later ones; the clock starts before training"
        )
        yield run.warning("first_interval", message, run.log.evaluations[0].line)


def _check_late_stop(run: CheckedRun, ruleset: Ruleset) -> Findings:
    """Warn of a run that continues after the target: the time counted is not the time to the target."""
    log = run.log
    if log.passing is None or log.stop_ms is None or log.start_ms is None or run.offline_evaluation:
        return
    later = [evaluation for evaluation in log.evaluations if evaluation.line > log.passing.line]
    if later:
        yield run.warning(
            "evaluation_after_target",
            f"{len(later)} evaluation(s) follow the one in line {log.passing.line} that reaches the target; the "
            f"official tools count samples until the last one",
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


def _check_times(run: CheckedRun, ruleset: Ruleset) -> Findings:
    log = run.log
    if log.elapsed_seconds is not None and log.elapsed_seconds <= 0:
        message = f"run_stop is {-log.elapsed_seconds:,.1f} s before run_start; it must be later"
        yield run.error("run_time", message, log.first("run_stop"))
    elif log.elapsed_seconds is not None and log.elapsed_seconds > MAX_RUN_HOURS * 3600:
        hours = log.elapsed_seconds / 3600
        message = f"the run takes {hours:,.0f} hours; check its times"
        yield run.warning("run_time", message, log.first("run_stop"))
    edges = [event for key in ("run_start", "run_stop") if (event := log.first(key)) is not None]
    early = next((event for event in edges if event.time_ms < EARLIEST_MS), None)
    if early is not None:
        message = f"{early.key} has the time_ms {early.time_ms:,.0f}, before MLPerf began; log milliseconds since 1970"
        yield run.error("run_time", message, early)
    elif any(event.time_ms > time.time() * 1e3 + FUTURE_MS for event in edges if event.time_ms < LATEST_MS):
        yield run.warning("run_time", "the run lies in the future; check the clock of the machine", edges[-1])
    wrong = [event for event in log.events if not 0 < event.time_ms < LATEST_MS]
    if wrong:
        what = f"time_ms {wrong[0].time_ms:.0f} is not a time in milliseconds since 1970"
        message = f"{what} ({len(wrong)} line(s)); the run's times cannot be checked"
        yield run.warning("time_digits", message, wrong[0])
    latest, back, at = 0.0, 0.0, None
    for event in log.events:
        if not 0 < event.time_ms < LATEST_MS or (run.offline_evaluation and event.key in OFFLINE):
            continue
        if latest - event.time_ms > back:
            back, at = latest - event.time_ms, event
        latest = max(latest, event.time_ms)
    if back > SKEW_MS:
        message = (
            f"{at.key if at else ''} is {back / 1e3:,.1f} s earlier than a line before it; clocks of ranks may differ "
            f"by up to {SKEW_MS / 1e3:g} s; log events when they happen"
        )
        yield run.warning("times_backwards", message, at)


def _check_initialisation(run: CheckedRun, ruleset: Ruleset) -> Findings:
    """Check the time from the first init_start to run_start; the official checker measures to init_stop only."""
    log = run.log
    begins = [event.time_ms for event in log.all("init_start") if 0 < event.time_ms < LATEST_MS]
    if not begins or log.start_ms is None:
        return
    allowed = CLOSED_INIT_MINUTES if run.closed else ruleset.open_minutes
    minutes = (log.start_ms - min(begins)) / 60_000
    if allowed <= minutes < 1e6:
        message = f"{minutes:,.1f} minutes pass from init_start to run_start; allowed are {allowed}"
        yield run.error("initialisation", message, log.first("run_start"))


def _check_caches(run: CheckedRun, ruleset: Ruleset) -> Findings:
    cleared, start = run.log.all("cache_clear"), run.log.first("run_start")
    if not cleared:
        message = "there is no cache_clear; caches must be cleared before each run, and this logged"
        yield run.error("cache_clear", message)
    elif any(event.value is False for event in cleared):
        event = next(event for event in cleared if event.value is False)
        yield run.error("cache_clear", "cache_clear is false; caches must be cleared before each run", event)
    elif any(event.value is not True for event in cleared):
        event = next(event for event in cleared if event.value is not True)
        message = f"cache_clear is {str(event.value)[:20]!r}, not true; log true where caches were cleared"
        yield run.warning("cache_clear", message, event)
    elif start is not None and all(
        start.time_ms + _allowed_skew_ms(run) < event.time_ms < LATEST_MS for event in cleared
    ):
        yield run.error("cache_clear", "cache_clear comes after run_start; caches must be cleared before", cleared[0])


def _check_restarted(run: CheckedRun, ruleset: Ruleset) -> Findings:
    for event in run.log.all(RESTARTED):
        yield run.error("restarted", "the run was restarted from a checkpoint; such a run is not a result", event)
    for event in run.log.all(PROFILED):
        yield run.error("profiled", "steps of the run were profiled; such a run is not a result", event)
    for event in run.log.all(SWEPT):
        yield run.error("swept", "the run is one of `podium sweep`, with a stated seed; it is not a result", event)


TIMING_CHECKS = (
    _check_run_stop,
    _check_status,
    _check_order,
    _check_late_stop,
    _check_first_interval,
    _check_times,
    _check_initialisation,
    _check_caches,
    _check_restarted,
)
