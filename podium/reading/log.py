"""Reads one run's log: its events, what they say about the run, and what is odd about it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from podium.reading.lines import Event, Oddity, read_lines
from podium.reading.oddities import ODDITIES
from podium.reading.run_log import RunLog, run_log

MAX_EVENTS = 20_000
"""Of one log; published ones have up to 5,054."""
MAX_CONTENT = 8 << 20
"""Characters in the values and metadata of one log's events; published logs have up to 1.5 MB in all."""


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
    told = [oddity for find in ODDITIES.values() for oddity in find(log)]
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
