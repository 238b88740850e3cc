"""Reads the log of one run: its events, the run, and anomalies of content, none of which breaks MLPerf's rules."""

import operator
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from podium.mllog.lines import Anomaly, Event, Limits, read_lines
from podium.mllog.run import BERT, RunLog, as_number, build_run_log

LATEST_MS = 1e13  # in the year 2286: upper bound on plausible times
INTEGER_KEYS = ("train_samples", "eval_samples", "global_batch_size", "seed")
FIGURE_KEYS = ("train_samples", "global_batch_size")  # the INTEGER_KEYS that a figure depends on
TIMED_KEYS = ("run_start", "run_stop", "eval_start", "eval_stop", "eval_accuracy")  # their times are in figures
# Larger steps back are errors of a clock. In rounds 4.1 and 5.1, those between the clocks of ranks are up to 117 ms.
MAX_CLOCK_STEP_MS = 1_000
INTERVAL_KEYS = tuple(
    f"{name}_{end}" for name in ("init", "run", "block", "epoch", "eval") for end in ("start", "stop")
)


def _check_empty(log: RunLog) -> Iterator[Anomaly]:
    if not log.events:
        yield Anomaly(0, "has no event", "empty")


def _check_truncated(log: RunLog) -> Iterator[Anomaly]:
    if log.start_ms is not None and log.stop_ms is None:
        last = log.events[-1].line
        yield Anomaly(last, "is the last event, and there is no run_stop: the log is truncated", "truncated")


def _check_times(log: RunLog) -> Iterator[Anomaly]:
    wrong = [event for event in log.events if not 0 < event.time_ms < LATEST_MS]
    if wrong:
        what = f"has the time_ms {wrong[0].time_ms:.0f}, which is not a plausible number of milliseconds since 1970"
        yield Anomaly(wrong[0].line, f"{what}{_count_suffix(len(wrong))}", "time")


def _check_order(log: RunLog) -> Iterator[Anomaly]:
    """Steps back in time: of more than MAX_CLOCK_STEP_MS between events that figures depend on, or any other."""
    plausible = [event for event in log.events if 0 < event.time_ms < LATEST_MS]
    # Checkpoints that are evaluated after the run, in any order, have later times than run_stop.
    during = log.rules is None or not log.rules.offline_evaluation
    timed = [event for event in plausible if event.key in TIMED_KEYS] if during else []
    for kind, events, smallest in (("clock", timed, MAX_CLOCK_STEP_MS), ("backwards", plausible, 0)):
        times = [event.time_ms for event in events]
        steps = map(operator.sub, times[1:], times)
        back = [(step, event) for step, event in zip(steps, events[1:], strict=True) if step < -smallest]
        if back:
            step, event = min(back, key=lambda pair: pair[0])
            before = "the line before it" if kind == "backwards" else "the event of a run's course before it"
            what = f"is {-step:,.0f} ms earlier than {before}, the largest of {len(back):,} such step(s)"
            yield Anomaly(event.line, what, kind)
            return


def _check_integers(log: RunLog) -> Iterator[Anomaly]:
    for key in INTEGER_KEYS:
        for event in log.all(key)[:1]:
            if isinstance(event.value, bool) or not isinstance(event.value, int):
                what = f"has {key} {_shown(event.value)} ({type(event.value).__name__}), not an integer"
                unread = key in FIGURE_KEYS and as_number(event.value) is None
                yield Anomaly(event.line, what, "no_number" if unread else "number")


def _check_interval_types(log: RunLog) -> Iterator[Anomaly]:
    ends = [event for key in INTERVAL_KEYS for event in log.all(key) if event.kind == "POINT_IN_TIME"]
    wrong = sorted(ends, key=lambda event: event.line)
    if wrong:
        what = f"logs {wrong[0].key}, an end of an interval, as POINT_IN_TIME"
        yield Anomaly(wrong[0].line, f"{what}{_count_suffix(len(wrong))}", "point_in_time")


def _check_after_target(log: RunLog) -> Iterator[Anomaly]:
    if log.passing is not None and log.evaluations[-1] is not log.passing:
        later = [evaluation for evaluation in log.evaluations if evaluation.line > log.passing.line]
        if later:
            what = f"is an evaluation after line {log.passing.line} reached the target{_count_suffix(len(later))}"
            yield Anomaly(later[0].line, what, "after_target")


def _check_after_block(log: RunLog) -> Iterator[Anomaly]:
    """Evaluations that are logged after block_stop with an earlier time than its own."""
    inside, late, stop = False, [], None
    edges = [event for key in ("block_start", "block_stop", "eval_accuracy") for event in log.all(key)]
    for event in sorted(edges, key=lambda event: event.line):
        if event.key == "block_start":
            inside = True
        elif event.key == "block_stop":
            inside, stop = False, event
        elif event.key == "eval_accuracy" and not inside and stop is not None and event.time_ms < stop.time_ms:
            late.append(event)
    if late:
        what = f"is an evaluation after block_stop, but with an earlier time{_count_suffix(len(late))}"
        yield Anomaly(late[0].line, what, "after_block")


def _check_epoch_num(log: RunLog) -> Iterator[Anomaly]:
    evaluations = log.all("eval_accuracy")
    if log.benchmark == BERT and evaluations and log.epoch_doubt:
        reading = "taken as steps of a global batch" if log.epochs_are_steps else "not used as numbers of samples"
        what = f"is the first of evaluations whose epoch_num {log.epoch_doubt}: {reading}"
        yield Anomaly(evaluations[0].line, what, "epoch_num")


def _check_accuracies(log: RunLog) -> Iterator[Anomaly]:
    several = len(log.targets) > 1  # the value may then be an object with a number for each metric
    wrong = [
        event
        for event in log.all("eval_accuracy")
        if as_number(event.value) is None and not (several and isinstance(event.value, dict))
    ]
    if wrong:
        what = f"has the accuracy {_shown(wrong[0].value)}, which is not a number"
        yield Anomaly(wrong[0].line, f"{what}{_count_suffix(len(wrong))}", "accuracy")


def _shown(value: Any) -> str:
    """Return a value for a message; a number that JSON does not have, such as NaN, was read as null."""
    return "null or a number that JSON does not have" if value is None else repr(str(value)[:40])


def _count_suffix(count: int) -> str:
    return "" if count == 1 else f"; there are {count:,} such lines"


CHECKS: tuple[Callable[[RunLog], Iterator[Anomaly]], ...] = (
    _check_empty,
    _check_truncated,
    _check_times,
    _check_order,
    _check_integers,
    _check_interval_types,
    _check_after_target,
    _check_after_block,
    _check_epoch_num,
    _check_accuracies,
)


LIMITS = Limits(
    events=20_000,  # published logs have up to 5,054
    content=8 << 20,  # published logs have up to 2 MB
)


def read_log(path: Path, round_name: str | None = None) -> RunLog:
    """Read an untrusted log. Raises UsageError if it does not exist, WorkError if it cannot be read.

    Targets and units are those of the round, by default of that at the date of the run.

    Reading stops at LIMITS, far above what a run logs; an anomaly reports that.
    """
    events: list[Event] = []
    anomalies: list[Anomaly] = []
    for item in read_lines(path, LIMITS):
        if isinstance(item, Anomaly):
            anomalies.append(item)
        else:
            events.append(item)
    log = build_run_log(path, events, anomalies, round_name)
    found = [anomaly for check in CHECKS for anomaly in check(log)]
    return replace(log, anomalies=tuple(sorted([*anomalies, *found])))
