"""The record of a set of runs, runs/SYSTEM/DATE_TIME/set.json: the number of requested runs, and how each ended.

An entry with the log's SHA-256 is appended when a run has ended and its log is in its final place. Entries are never
changed; if a run was resumed it has several, of which the last one counts. Submissions are compared with this record.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from podium.core.errors import WorkError
from podium.core.files import write_atomically
from podium.core.json_files import read_json

SET = "set.json"
FORMAT, VERSION = "podium-set", 1
MAX_BYTES = 4 << 20  # of the file; an entry has about 200
MAX_NUMBER = 10**9
# Strict, since the path is joined with the set's folder: no absolute path and no `..`.
LOG = re.compile(r"(run_\d{1,9}/)?result[\w.]{0,40}\.txt", re.ASCII)
SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class EndedRun:
    """The entry of a run that has ended, or that was stopped to be resumed later."""

    number: int  # N of run_N
    status: str | None  # in its log; None if the run did not reach run_start and so has no log
    log: str | None  # path relative to the set's folder
    sha256: str | None  # of the log, in hex
    restarted: bool = False  # restarted or resumed, so its log is not a result
    fault: str | None = None  # another reason why its log is not a result

    @property
    def is_result(self) -> bool:
        """Whether the log counts as a result, of any status."""
        return self.log is not None and not self.restarted and self.fault is None


@dataclass(frozen=True)
class SetRecord:
    """A set of consecutive runs of a system."""

    system: str
    runs: int  # the value of --runs, recorded before the first run began
    ended: tuple[EndedRun, ...] = ()

    @property
    def by_number(self) -> Mapping[int, EndedRun]:
        """The last entry of each run, by its number."""
        return {run.number: run for run in self.ended}

    @property
    def complete(self) -> bool:
        """Whether all requested runs have ended."""
        return all(number in self.by_number for number in range(self.runs))


def write_set(folder: Path, record: SetRecord) -> None:
    document = {"format": FORMAT, "version": VERSION, **asdict(record)}
    write_atomically(folder / SET, json.dumps(document, indent=1) + "\n")


def add_ended(folder: Path, run: EndedRun) -> None:
    """Append an entry to a set's record. Does nothing for a set without one, such as those of older versions."""
    record = read_set(folder)
    if record is not None:
        write_set(folder, replace(record, ended=(*record.ended, run)))


def read_set(folder: Path) -> SetRecord | None:
    """Read the record of the set in a folder; None if there is none, as for sets of older versions.

    Raises WorkError for a record that is not valid.
    """
    path = folder / SET
    if not path.exists():
        return None
    try:
        document = read_json(path, MAX_BYTES)
        if not isinstance(document, dict) or document.get("format") != FORMAT:
            raise ValueError("it is not the record of a set")
        if document.get("version") != VERSION:
            raise ValueError(f"found version {document.get('version')!r}, allowed is {VERSION}")
        system, runs, ended = document["system"], document["runs"], document["ended"]
        if not isinstance(system, str) or not _is_count(runs) or runs < 1 or not isinstance(ended, list):
            raise ValueError("system, runs or ended has a wrong type or value")
        return SetRecord(system, runs, tuple(map(_parse_entry, ended)))
    except (ValueError, KeyError, TypeError) as error:
        reason = f"{error} is missing" if isinstance(error, KeyError) else error
        raise WorkError(f"{path}: cannot be used ({reason}); put back the file that `podium run` wrote") from None


def _parse_entry(entry: Mapping[str, Any]) -> EndedRun:
    """Return the entry of a run. ValueError or TypeError if it is not valid."""
    run = EndedRun(**entry)  # TypeError for keys that are missing or unknown
    texts = (run.status, run.log, run.sha256, run.fault)
    if not (_is_count(run.number) and isinstance(run.restarted, bool)):
        raise ValueError("the number of a run is not valid, or restarted is not true or false")
    if not all(text is None or isinstance(text, str) for text in texts):
        raise ValueError(f"the entry of run {run.number} has a value that is not a text")
    if (run.log is None) != (run.sha256 is None):
        raise ValueError(f"the entry of run {run.number} has a log without a hash, or a hash without a log")
    if run.log is not None and run.sha256 is not None and not (LOG.fullmatch(run.log) and SHA256.fullmatch(run.sha256)):
        raise ValueError(f"the entry of run {run.number} does not name a log of the set, or has no valid SHA-256")
    return run


def _is_count(value: object) -> bool:
    # bool is a subclass of int, so true would pass as 1.
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_NUMBER
