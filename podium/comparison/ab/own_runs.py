"""One's own runs under runs/, each with its configuration, the code that made it, and where its log lies now.

A log is matched to its run's folder by the seed: see podium/records.py.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.errors import Interrupted, PodiumError
from podium.config import RunFolder
from podium.config.loading import ROOT
from podium.reading.package import LOGS
from podium.reading.run_log import Run
from podium.records import (
    REPLACED,
    RUN_NAME,
    RunRecord,
    runs_of_all_systems,
    runs_of_set,
    runs_of_system,
)
from podium.source import Source

ReadRuns = Callable[[Sequence[Path]], Mapping[Path, Run | str]]
"""The run of each log, or why it cannot be read: `reading.read_runs` with a cache."""


@dataclass(frozen=True)
class Home:
    """Where Podium keeps runs and results."""

    runs: Path = ROOT / "runs"
    results: Path = ROOT / "results"


@dataclass(frozen=True)
class Found:
    """Runs with what their logs say."""

    runs: tuple[Run, ...]
    of: tuple[RunRecord, ...]
    """The folder of each."""
    notes: tuple[str, ...]
    """Which runs have no log, and why."""


def runs_in(folder: Path) -> list[RunRecord]:
    """The run whose folder that is, or the runs of the set, as far as they have a configuration."""
    record = RunRecord(RunFolder(folder.resolve()))
    found = [record] if RUN_NAME.fullmatch(record.path.name) else runs_of_set(record.path)
    return [run for run in found if run.configured]


def home_of(folder: Path) -> Home:
    """Of a run's folder in runs/SYSTEM/DATE_TIME/run_N: that tree, and the results beside it."""
    runs = folder.resolve().parents[2]
    return Home(runs, runs.parent / "results")


def place_of(folder: Path) -> tuple[str, Home] | None:
    """The system whose logs are in that folder, and where its runs are; None where Podium leaves none there.

    The folder is results/SYSTEM/bert or runs/SYSTEM/DATE_TIME/replaced_results.
    """
    above = folder.resolve().parents
    if folder.resolve().name == REPLACED and len(above) > 3:
        return above[1].name, Home(above[2], above[3] / "results")
    if len(above) > 2 and above[1].name == "results":
        return above[0].name, Home(above[2] / "runs", above[1])
    return None


def with_logs(own: Sequence[RunRecord], home: Home, read: ReadRuns) -> Found:
    """Find the runs' logs, wherever later sets have moved them."""
    logs = [log for system in dict.fromkeys(run.system for run in own) for log in _logs(system, home)]
    by_seed: dict[int, dict[str, Run]] = {}
    for run in read(logs).values():
        if isinstance(run, Run):
            for seed in run.seeds:
                by_seed.setdefault(seed, {})[run.digest] = run
    runs: list[Run] = []
    of: list[RunRecord] = []
    notes = []
    for one in own:
        alike = list(by_seed.get(one.seed, {}).values()) if one.seed is not None else []
        found = [run for run in alike if _is_of(run, one)] if len(alike) > 1 else alike
        if len(found) == 1:
            runs.append(found[0])
            of.append(one)
        else:
            notes.append(f"{one.name} is left out: {_why(one, len(alike), home)}")
    return Found(tuple(runs), tuple(of), tuple(notes))


def by_seeds(runs: Sequence[Run], system: str, home: Home) -> list[RunRecord]:
    """The folder of each run whose seed tells it, or of several with its seed the totals; none of the others."""
    wanted = {seed for run in runs for seed in run.seeds}
    found: dict[int, list[RunRecord]] = {}
    for record in runs_of_system(home.runs / system):
        if record.seed is not None and record.seed in wanted and _is_readable(record):
            found.setdefault(record.seed, []).append(record)
    chosen = []
    for run in runs:
        alike = [own for seed in run.seeds for own in found.get(seed, ())]
        if len(alike) > 1:
            alike = [own for own in alike if _is_of(run, own)]
        if len(alike) == 1:
            chosen.append(alike[0])
    return chosen


def made_by(code: str, commit: str | None, home: Home) -> list[RunRecord]:
    """All runs of this commit, or of the code or commit whose hash begins with `code`."""
    return [run for run in runs_of_all_systems(home.runs) if run.configured and _is_of_code(run.source, code, commit)]


def known_code(home: Home) -> list[str]:
    """The commits, or where there are none the code hashes, that have runs, abbreviated."""
    sources = [run.source for run in reversed(runs_of_all_systems(home.runs))]
    return list(dict.fromkeys((source.commit or source.code)[:12] for source in sources if source is not None))


def _is_of_code(source: Source | None, code: str, commit: str | None) -> bool:
    if source is None or commit is not None:
        return source is not None and source.commit == commit
    return source.code.startswith(code) or (source.commit or "").startswith(code)


def _is_readable(record: RunRecord) -> bool:
    try:
        return bool(record.settings)
    except Interrupted:
        raise
    except PodiumError:
        return False


def _logs(system: str, home: Home) -> list[Path]:
    places = [home.results / system / "bert", *sorted((home.runs / system).glob(f"*/{REPLACED}"))]
    return [log for place in places for log in sorted(place.glob(LOGS)) if log.is_file() and not log.is_symlink()]


def _is_of(run: Run, record: RunRecord) -> bool:
    """Whether a log is of this run, and not of another with its seed: by the samples and the seconds of its totals."""
    seconds, samples = record.total("seconds"), record.total("samples")
    if seconds is None or samples is None or run.seconds is None:
        return False
    return abs(run.seconds - seconds) <= CLOCKS and run.train_samples == samples


CLOCKS = 0.1
"""Seconds by which a run's own time and its log's differ at most."""


def _why(one: RunRecord, logs: int, home: Home) -> str:
    if one.seed is None:
        return "its configuration has no seed to find its log by"
    if logs > 1:
        return f"{logs} logs have its seed {one.seed}, and its totals do not tell which is its own"
    if one.folder.restarted_result.is_file():
        return "it was restarted, which is no result"
    if one.folder.log.is_file():
        return "its log is not whole yet"
    return f"no log in {home.results} or in a {REPLACED} of {home.runs} has its seed {one.seed}"
