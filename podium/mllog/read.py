"""Reads the log of one run: its events, its run, and anomalies that a reader should know; none breaks a rule."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from podium.mllog.lines import Event, Oddity, read_lines
from podium.mllog.run import RunLog, as_number, run_log

LATEST_MS = 1e13  # in the year 2286: a time_ms of 14 digits is none
NUMBERS = ("train_samples", "eval_samples", "global_batch_size", "seed")
INTERVALS = tuple(f"{name}_{end}" for name in ("init", "run", "block", "epoch", "eval") for end in ("start", "stop"))


def _empty(log: RunLog) -> Iterator[Oddity]:
    if not log.events:
        yield Oddity(0, "holds no event", "empty")


def _truncated(log: RunLog) -> Iterator[Oddity]:
    if log.start_ms is not None and log.stop_ms is None:
        last = log.events[-1].line
        yield Oddity(last, "is the last event, and there is no run_stop: the log is truncated", "truncated")


def _times(log: RunLog) -> Iterator[Oddity]:
    wrong = [event for event in log.events if not _is_time(event)]
    if wrong:
        what = f"has the time_ms {wrong[0].time_ms:.0f}, which are no milliseconds since 1970"
        yield Oddity(wrong[0].line, f"{what}{_of(len(wrong))}", "time")


def _is_time(event: Event) -> bool:
    return 0 < event.time_ms < LATEST_MS


def _backwards(log: RunLog) -> Iterator[Oddity]:
    steps = [(after.time_ms - before.time_ms, after) for before, after in pairwise(filter(_is_time, log.events))]
    back = [(step, event) for step, event in steps if step < 0]
    if back:
        step, event = min(back, key=lambda pair: pair[0])
        what = f"is {-step:,.0f} ms earlier than the line before it, the most of {len(back):,} such line(s)"
        yield Oddity(event.line, what, "backwards")


def _numbers(log: RunLog) -> Iterator[Oddity]:
    for key in NUMBERS:
        for event in log.all(key)[:1]:
            if isinstance(event.value, bool) or not isinstance(event.value, int):
                kind = type(event.value).__name__
                yield Oddity(event.line, f"has {key} {str(event.value)[:40]!r} ({kind}), not an integer", "number")


def _points(log: RunLog) -> Iterator[Oddity]:
    wrong = [event for event in log.events if event.key in INTERVALS and event.kind == "POINT_IN_TIME"]
    if wrong:
        what = f"logs {wrong[0].key}, an end of an interval, as POINT_IN_TIME"
        yield Oddity(wrong[0].line, f"{what}{_of(len(wrong))}", "point_in_time")


def _after_target(log: RunLog) -> Iterator[Oddity]:
    if log.passing is not None and log.evaluations[-1] is not log.passing:
        later = [evaluation for evaluation in log.evaluations if evaluation.line > log.passing.line]
        if later:
            what = f"evaluates although line {log.passing.line} has reached the target{_of(len(later))}"
            yield Oddity(later[0].line, what, "after_target")


def _after_block(log: RunLog) -> Iterator[Oddity]:
    """Evaluations that are printed outside of every block, and whose time is inside one."""
    inside, late, stop = False, [], None
    for event in log.events:
        if event.key == "block_start":
            inside = True
        elif event.key == "block_stop":
            inside, stop = False, event
        elif event.key == "eval_accuracy" and not inside and stop is not None and event.time_ms < stop.time_ms:
            late.append(event)
    if late:
        what = f"is an evaluation after block_stop, with an earlier time than that{_of(len(late))}"
        yield Oddity(late[0].line, what, "after_block")


def _epochs(log: RunLog) -> Iterator[Oddity]:
    evaluations = log.all("eval_accuracy")
    if evaluations and log.epoch_doubt:
        told = "they are taken for steps of a global batch" if log.epochs_are_steps else "they do not tell samples"
        what = f"begins evaluations whose epoch_num {log.epoch_doubt}: {told}"
        yield Oddity(evaluations[0].line, what, "epoch_num")


def _accuracies(log: RunLog) -> Iterator[Oddity]:
    wrong = [event for event in log.all("eval_accuracy") if as_number(event.value) is None]
    if wrong:
        what = f"has the accuracy {str(wrong[0].value)[:40]!r}, which is no number"
        yield Oddity(wrong[0].line, f"{what}{_of(len(wrong))}", "accuracy")


def _of(count: int) -> str:
    return "" if count == 1 else f"; there are {count:,} such lines"


ODDITIES: tuple[Callable[[RunLog], Iterator[Oddity]], ...] = (
    _empty,
    _truncated,
    _times,
    _backwards,
    _numbers,
    _points,
    _after_target,
    _after_block,
    _epochs,
    _accuracies,
)


MAX_EVENTS = 20_000  # of one log; published ones have up to 5,054
# Characters in the values and metadata of one log's events; published logs have up to 1.5 MB in all.
MAX_CONTENT = 8 << 20


def read_log(path: Path) -> RunLog:
    """Read a log of any origin. Raises UsageError where there is none and WorkError where it cannot be read.

    A log that holds more than any run would log is read up to there, and an oddity tells of it.
    """
    events: list[Event] = []
    oddities: list[Oddity] = []
    content = 0
    for item in read_lines(path):
        if isinstance(item, Oddity):
            oddities.append(item)
            continue
        content += _size(item)
        if len(events) == MAX_EVENTS or content > MAX_CONTENT:
            limits = f"{MAX_EVENTS:,} events or {MAX_CONTENT:,} characters"
            oddities.append(Oddity(item.line, f"ends what was read: the log holds more than {limits}", "too_long"))
            break
        events.append(item)
    log = run_log(path, events, oddities)
    told = [oddity for find in ODDITIES for oddity in find(log)]
    return replace(log, oddities=tuple(sorted([*oddities, *told])))


def _size(event: Event) -> int:
    """Characters that an event's value and metadata would have as JSON, about, and no less than their containers."""
    size, level = len(event.key), [event.value, *event.metadata.values()]
    while level:
        below: list[Any] = []
        for item in level:
            if isinstance(item, str):
                size += len(item)
            elif isinstance(item, dict):
                size += 64 + sum(map(len, item))
                below.extend(item.values())
            elif isinstance(item, list):
                size += 64
                below.extend(item)
            else:
                size += 8
        level = below
    return size
