"""Power of runs, from the power logs of a result: power/RESULT/node_N.txt and sw_N.txt for the log RESULT.txt.

As the official summarizer: the mean power of a node is that of its readings, each weighted with the time since the one
before, times its conversion efficiency; that of a switch is its estimate times its conversion efficiency. The energy of
a run is the sum of all mean powers times the run's duration. Links and special files are not opened.
"""

import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from mlperf_logging.mllog import constants

from podium.core.errors import PodiumError
from podium.core.files import sha256_of
from podium.core.text import one_line, short_repr
from podium.mllog.anomaly_kinds import DAMAGED
from podium.mllog.lines import Anomaly, Event, read_lines
from podium.mllog.run import as_number

POWER = "power"  # the folder of power logs, beside the logs of the runs
# Bounds for untrusted files; a published run has up to 64 nodes, and a log of up to 3 MB.
MAX_ENTRIES = 10_000
MAX_LOG_BYTES = 64 << 20
MAX_RUN_BYTES = 1 << 30
MAX_EVENTS = 500_000  # of one log: almost six days of one reading per second
MAX_WATTS = 1e9
EVENT_KIND = "event"  # metadata and event_type do not matter here, and published logs have metadata that are texts
KEYS = (
    constants.POWER_MEASUREMENT_START,
    constants.POWER_MEASUREMENT_STOP,
    constants.POWER_READING,
    constants.CONVERTION_EFF,
    constants.INTERCONNECT_POWER_EST,
)


class PowerFolder(NamedTuple):
    """The files in the folder of one run's power logs."""

    path: Path
    nodes: tuple[Path, ...] = ()
    switches: tuple[Path, ...] = ()
    others: tuple[Path, ...] = ()  # neither node_*.txt nor sw_*.txt
    problem: str | None = None  # why the folder cannot be used, as a sentence fragment


class RunPower(NamedTuple):
    """The mean power of a run, in watts."""

    digest: str  # of the names and contents of the power logs; empty where they are not read
    watts: float | None
    problems: tuple[str, ...]  # sentence fragments: why the power is unknown, or what is wrong in the logs

    def joules(self, seconds: float) -> float | None:
        """The energy of a run of this duration."""
        return None if self.watts is None else self.watts * seconds


def power_from_json(fields: Mapping[str, Any]) -> RunPower:
    """Rebuild a power from the JSON of its fields. TypeError, ValueError or KeyError for anything else."""
    watts = None if fields["watts"] is None else float(fields["watts"])
    return RunPower(str(fields["digest"]), watts, tuple(map(str, fields["problems"])))


def power_folder(log: Path) -> Path:
    """Return the folder of the power logs of the run with this log: its name up to the first dot, as officially."""
    return log.parent / POWER / log.name.split(".")[0]


def list_power_folder(log: Path) -> PowerFolder:
    """List the power logs of the run with this log. Raises no error: `problem` has the reason."""
    path = power_folder(log)
    where = f"{POWER}/{one_line(path.name)}"
    if path.is_symlink() or path.parent.is_symlink() or not path.is_dir():
        there = os.path.lexists(path) or path.parent.is_symlink()
        return PowerFolder(path, problem=f"{where} is not a folder" if there else f"has no {where}")
    try:
        with os.scandir(path) as entries:
            found = list(islice(entries, MAX_ENTRIES + 1))
    except OSError as error:
        return PowerFolder(path, problem=f"{where} cannot be read ({error.strerror})")
    if len(found) > MAX_ENTRIES:
        return PowerFolder(path, problem=f"{where} has more than {MAX_ENTRIES:,} files")
    paths: dict[str, list[Path]] = {"node_*.txt": [], "sw_*.txt": [], "*": []}
    problem = None
    for entry in sorted(found, key=lambda one: one.name):
        pattern = next(pattern for pattern in paths if Path(entry.name).match(pattern))
        paths[pattern].append(path / entry.name)
        if pattern != "*" and not entry.is_file(follow_symlinks=False):
            problem = f"{where}/{one_line(entry.name)} is not a regular file"
    nodes, switches, others = map(tuple, paths.values())
    if not nodes and problem is None:
        problem = f"{where} has no node_*.txt"
    return PowerFolder(path, nodes, switches, others, problem)


def digest_of(folder: PowerFolder) -> str:
    """Return a hash of the names and contents of the power logs. Raises WorkError."""
    names = "".join(f"{log.name}\0{sha256_of(log)}\0" for log in (*folder.nodes, *folder.switches))
    return hashlib.sha256(names.encode("utf-8", errors="surrogateescape")).hexdigest()


def read_power(folder: PowerFolder, digest: str) -> RunPower:
    """Read the power logs of a run; what is wrong with them becomes problems, without an exception."""
    if folder.problem is not None:
        return RunPower(digest, None, (folder.problem,))
    watts, size, problems = 0.0, 0, list[str]()
    for log in (*folder.nodes, *folder.switches):
        where = f"{POWER}/{one_line(folder.path.name)}/{one_line(log.name)}"
        try:
            bytes_of_log = log.stat().st_size
            size += bytes_of_log
            if bytes_of_log > MAX_LOG_BYTES or size > MAX_RUN_BYTES:
                raise ValueError(f"is too large: {MAX_LOG_BYTES:,} bytes a log and {MAX_RUN_BYTES:,} a run are read")
            events, damage = _read_events(log)
            power, odd = (_node_watts if log in folder.nodes else _switch_watts)(events)
            watts += power
            problems += [f"{where} {what}" for what in (*damage[:1], *odd)]
        except (OSError, PodiumError) as error:
            reason = error.strerror if isinstance(error, OSError) else one_line(str(error))
            return RunPower(digest, None, (*problems, f"{where} cannot be read ({reason})"))
        except ValueError as error:
            return RunPower(digest, None, (*problems, f"{where} {error}"))
    return RunPower(digest, watts, tuple(problems))


def _read_events(log: Path) -> tuple[list[Event], list[str]]:
    """Return the events that matter, in the order of the log, and what is wrong with its lines."""
    events, damage = list[Event](), list[str]()
    for item in read_lines(log):
        if isinstance(item, Anomaly):
            if item.kind in DAMAGED and item.kind != EVENT_KIND and len(damage) < 1:
                damage.append(f"line {item.line:,} {item.message}")
        elif item.key in KEYS:
            events.append(item._replace(metadata={}))
            if len(events) > MAX_EVENTS:
                raise ValueError(f"has more than {MAX_EVENTS:,} events")
    return events, damage


def _node_watts(events: Iterable[Event]) -> tuple[float, Sequence[str]]:
    """Return the mean power of a node's log, and what is odd in it. Raises ValueError where there is none."""
    start = stop = previous = None
    joules, efficiency, readings, starts, unused = 0.0, 1.0, 0, 0, 0
    for event in sorted(events, key=lambda one: one.time_ms):
        if event.key == constants.POWER_MEASUREMENT_START:
            start = previous = event.time_ms
            starts += 1
        elif event.key == constants.POWER_READING:
            if previous is None or stop is not None:
                unused += 1
                continue
            joules += _checked_number(event, MAX_WATTS) * (event.time_ms - previous) / 1e3
            previous = event.time_ms
            readings += 1
        elif event.key == constants.POWER_MEASUREMENT_STOP:
            stop = event.time_ms
        elif event.key == constants.CONVERTION_EFF:
            efficiency = _checked_number(event, MAX_WATTS)
    if start is None or previous is None:
        raise ValueError(f"has no {constants.POWER_MEASUREMENT_START}")
    odd = list[str]()
    if stop is not None and stop <= start:
        raise ValueError(
            f"has its {constants.POWER_MEASUREMENT_STOP} not after its {constants.POWER_MEASUREMENT_START}"
        )
    if not readings:
        raise ValueError(f"has no {constants.POWER_READING} in the measurement")
    if stop is None:
        odd.append(f"has no {constants.POWER_MEASUREMENT_STOP}: its last reading counts as the end")
    if (stop if stop is not None else previous) <= start:
        raise ValueError("has all its readings at one time")
    if starts > 1:
        odd.append(f"has {starts:,} {constants.POWER_MEASUREMENT_START}")
    if unused:
        odd.append(f"has {unused:,} reading(s) outside of the measurement, which do not count")
    seconds = ((stop if stop is not None else previous) - start) / 1e3
    return efficiency * joules / seconds, (*odd, *_check_efficiency(efficiency))


def _switch_watts(events: Iterable[Event]) -> tuple[float, Sequence[str]]:
    """Return the estimated power of a switch's log, and what is odd in it. Raises ValueError if it is no number."""
    efficiency = 1.0
    for event in events:
        if event.key == constants.CONVERTION_EFF:
            efficiency = _checked_number(event, MAX_WATTS)
        elif event.key == constants.INTERCONNECT_POWER_EST:
            return efficiency * _checked_number(event, MAX_WATTS), _check_efficiency(efficiency)
    # As in the official value: a published result has measured switches, whose readings are not in its energy.
    return 0.0, (f"has no {constants.INTERCONNECT_POWER_EST}: as in the official energy, it counts as 0 W",)


def _checked_number(event: Event, largest: float) -> float:
    value = None if isinstance(event.value, list) else as_number(event.value)
    if value is None or not 0 <= value <= largest:
        found = short_repr(event.value)
        raise ValueError(f"has {event.key} {found} in line {event.line:,}, not a number from 0 to {largest:g}")
    return value


def _check_efficiency(efficiency: float) -> Sequence[str]:
    if 0 < efficiency <= 1:
        return ()
    return (f"has {constants.CONVERTION_EFF} {efficiency:g}, which is not above 0 and at most 1",)
