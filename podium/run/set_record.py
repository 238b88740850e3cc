"""The record of a set of runs, runs/SYSTEM/DATE_TIME/set.json: how many were requested, and what became of each.

An entry is added when a run has ended and its log has its place, with the log's SHA-256; entries are never changed.
A run that broke off and was resumed has two: the last one counts. What is submitted is compared with this record.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from podium.core.errors import WorkError
from podium.core.files import write_whole
from podium.core.json_files import read_json

SET = "set.json"
FORMAT, VERSION = "podium-set", 1
LARGEST = 4 << 20  # bytes; an entry has 200
LARGEST_NUMBER = 10**9
LOG = re.compile(r"(run_\d{1,9}/)?result[\w.]{0,40}\.txt", re.ASCII)
SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class EndedRun:
    """A run that has ended, and its log when that got its place; or one that was stopped to be resumed."""

    number: int  # N of run_N
    status: str | None  # as its log says; None where the run did not get as far as run_start, and so has no log
    log: str | None  # from the set's folder
    sha256: str | None
    restarted: bool = False  # restarted or resumed, so that its log is no result
    fault: str | None = None  # why else its log is no result

    @property
    def is_result(self) -> bool:
        return self.log is not None and not self.restarted and self.fault is None


@dataclass(frozen=True)
class SetRecord:
    """A set of consecutive runs on a system."""

    system: str
    runs: int  # requested by --runs, before the first began
    ended: tuple[EndedRun, ...] = ()

    @property
    def by_number(self) -> Mapping[int, EndedRun]:
        """What became of each run that has ended."""
        return {run.number: run for run in self.ended}

    @property
    def whole(self) -> bool:
        """Whether all the runs that were requested have ended."""
        return all(number in self.by_number for number in range(self.runs))


def write_set(folder: Path, record: SetRecord) -> None:
    document = {"format": FORMAT, "version": VERSION, **asdict(record)}
    write_whole(folder / SET, json.dumps(document, indent=1) + "\n")


def add_ended(folder: Path, run: EndedRun) -> None:
    """Add a run that has ended to its set's record; nothing where the set has none, as those of older versions."""
    record = read_set(folder)
    if record is not None:
        write_set(folder, replace(record, ended=(*record.ended, run)))


def read_set(folder: Path) -> SetRecord | None:
    """The record of the set in a folder; None where there is none, as in those of older versions.

    Raises WorkError for a record that cannot be used.
    """
    path = folder / SET
    if not path.exists():
        return None
    try:
        document = read_json(path, LARGEST)
        if not isinstance(document, dict) or document.get("format") != FORMAT:
            raise ValueError("it is no record of a set")
        if document.get("version") != VERSION:
            raise ValueError(f"its version is {document.get('version')!r}, and this one is {VERSION}")
        system, runs, ended = document["system"], document["runs"], document["ended"]
        if not isinstance(system, str) or not _is_count(runs) or runs < 1 or not isinstance(ended, list):
            raise ValueError("system, runs or ended is not what it has to be")
        return SetRecord(system, runs, tuple(map(_ended, ended)))
    except (ValueError, KeyError, TypeError) as error:
        why = f"{error} is missing" if isinstance(error, KeyError) else error
        raise WorkError(f"{path}: cannot be used ({why}); put back the file that `podium run` wrote") from None


def _ended(entry: Mapping[str, Any]) -> EndedRun:
    run = EndedRun(**entry)  # TypeError for keys that are missing or not known
    texts = (run.status, run.log, run.sha256, run.fault)
    if not (_is_count(run.number) and isinstance(run.restarted, bool)):
        raise ValueError("the number of a run is none")
    if not all(text is None or isinstance(text, str) for text in texts):
        raise ValueError(f"the entry of run {run.number} has a value that is no text")
    if (run.log is None) != (run.sha256 is None):
        raise ValueError(f"the entry of run {run.number} has a log without a hash, or a hash without a log")
    if run.log is not None and run.sha256 is not None and not (LOG.fullmatch(run.log) and SHA256.fullmatch(run.sha256)):
        raise ValueError(f"the entry of run {run.number} names no log of the set, or no SHA-256")
    return run


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= LARGEST_NUMBER
