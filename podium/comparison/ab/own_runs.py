"""One's own runs under runs/, each with its configuration, the code that made it, and where its log lies now.

A log has no name of its run's folder: the two are joined by the seed. It is in results/SYSTEM/bert until the next set
of runs moves it into its own folder, runs/SYSTEM/DATE_TIME/replaced_results, where logs of the set before are.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.errors import Interrupted, PodiumError
from podium.comparison.run import Run
from podium.config import RunFolder
from podium.config.loading import ROOT, read_configuration
from podium.reading.package import LOGS
from podium.source import Source, read_source

REPLACED = "replaced_results"
RUN_FOLDER = re.compile(r"run_\d{1,9}", re.ASCII)
ReadRuns = Callable[[Sequence[Path]], Mapping[Path, Run | str]]
"""The run of each log, or why it cannot be read: `reading.read_runs` with a cache."""


@dataclass(frozen=True)
class Home:
    """Where Podium keeps runs and results."""

    runs: Path = ROOT / "runs"
    results: Path = ROOT / "results"


@dataclass(frozen=True)
class OwnRun:
    """A run by its folder."""

    folder: RunFolder
    config: Mapping[str, Any]
    """As resolved, of whatever version of Podium."""
    source: Source | None
    """None for runs of versions that did not keep it."""

    @property
    def system(self) -> str:
        return self.folder.path.parent.parent.name

    @property
    def seed(self) -> int | None:
        seed = self.config.get("seed")
        return seed if isinstance(seed, int) and not isinstance(seed, bool) else None

    @property
    def name(self) -> str:
        """SYSTEM/DATE_TIME/run_N."""
        return "/".join(self.folder.path.parts[-3:])


@dataclass(frozen=True)
class Found:
    """Runs with what their logs say."""

    runs: tuple[Run, ...]
    of: tuple[OwnRun, ...]
    """The folder of each."""
    notes: tuple[str, ...]
    """Which runs have no log, and why."""


def own_run(folder: Path) -> OwnRun:
    """UsageError where it is no run's folder."""
    kept = RunFolder(folder.resolve())
    return OwnRun(kept, read_configuration(kept.config), read_source(kept.source))


def is_run(folder: Path) -> bool:
    return RUN_FOLDER.fullmatch(folder.resolve().name) is not None and RunFolder(folder).config.is_file()


def runs_of_set(folder: Path) -> list[Path]:
    """The folders run_0, run_1 … of a set, in the order of their numbers."""
    return sorted(filter(is_run, folder.glob("run_*")), key=lambda path: int(path.resolve().name[4:]))


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


def with_logs(own: Sequence[OwnRun], home: Home, read: ReadRuns) -> Found:
    """Find the runs' logs, wherever later sets have moved them."""
    logs = [log for system in dict.fromkeys(run.system for run in own) for log in _logs(system, home)]
    by_seed: dict[int, dict[str, Run]] = {}
    for run in read(logs).values():
        if isinstance(run, Run):
            for seed in run.seeds:
                by_seed.setdefault(seed, {})[run.digest] = run
    runs: list[Run] = []
    of: list[OwnRun] = []
    notes = []
    for one in own:
        alike = list(by_seed.get(one.seed, {}).values()) if one.seed is not None else []
        found = [run for run in alike if _is_of(run, one.folder)] if len(alike) > 1 else alike
        if len(found) == 1:
            runs.append(found[0])
            of.append(one)
        else:
            notes.append(f"{one.name} is left out: {_why(one, len(alike), home)}")
    return Found(tuple(runs), tuple(of), tuple(notes))


def by_seeds(runs: Sequence[Run], system: str, home: Home) -> list[OwnRun]:
    """The folder of each run whose seed tells it, or of several with its seed the totals; none of the others."""
    wanted = {seed for run in runs for seed in run.seeds}
    found: dict[int, list[OwnRun]] = {}
    for config in sorted((home.runs / system).glob("*/run_*/config.yaml")):
        if config.is_file() and not config.is_symlink() and _tells_one_of(wanted, config):
            try:
                own = own_run(config.parent)
            except Interrupted:
                raise
            except PodiumError:
                continue
            if own.seed is not None:
                found.setdefault(own.seed, []).append(own)
    chosen = []
    for run in runs:
        alike = [own for seed in run.seeds for own in found.get(seed, ())]
        if len(alike) > 1:
            alike = [own for own in alike if _is_of(run, own.folder)]
        if len(alike) == 1:
            chosen.append(alike[0])
    return chosen


def made_by(code: str, commit: str | None, home: Home) -> list[OwnRun]:
    """All runs of this commit, or of the code or commit whose hash begins with `code`."""
    found = []
    for path in sorted(home.runs.glob("*/*/run_*/source.json")):
        source = read_source(path)
        if source is not None and is_run(path.parent) and _is_this(source, code, commit):
            found.append(own_run(path.parent))
    return found


def known_code(home: Home) -> list[str]:
    """The commits, or where there are none the code hashes, that have runs, abbreviated."""
    sources = (read_source(path) for path in sorted(home.runs.glob("*/*/run_*/source.json"), reverse=True))
    return list(dict.fromkeys((source.commit or source.code)[:12] for source in sources if source is not None))


def _is_this(source: Source, code: str, commit: str | None) -> bool:
    if commit is not None:
        return source.commit == commit
    return source.code.startswith(code) or (source.commit or "").startswith(code)


def _logs(system: str, home: Home) -> list[Path]:
    places = [home.results / system / "bert", *sorted((home.runs / system).glob(f"*/{REPLACED}"))]
    return [log for place in places for log in sorted(place.glob(LOGS)) if log.is_file() and not log.is_symlink()]


def _is_of(run: Run, folder: RunFolder) -> bool:
    """Whether a log is of this run, and not of another with its seed: by the samples and the seconds of its totals."""
    try:
        summary = folder.read_summary() or {}
        seconds, samples = float(summary["seconds"]), float(summary["samples"])
    except (OSError, ValueError, KeyError, TypeError):
        return False
    return run.seconds is not None and abs(run.seconds - seconds) <= CLOCKS and run.train_samples == samples


CLOCKS = 0.1
"""Seconds by which a run's own time and its log's differ at most."""


def _tells_one_of(seeds: set[int], config: Path) -> bool:
    """Without reading the YAML, which takes long."""
    with config.open("rb") as file:
        lines = file.read(1 << 20).splitlines()
    return any(line[5:].strip() in {b"%d" % seed for seed in seeds} for line in lines if line.startswith(b"seed:"))


def _why(one: OwnRun, logs: int, home: Home) -> str:
    if one.seed is None:
        return "its configuration has no seed to find its log by"
    if logs > 1:
        return f"{logs} logs have its seed {one.seed}, and its totals do not tell which is its own"
    if one.folder.restarted_result.is_file():
        return "it was restarted, which is no result"
    if one.folder.log.is_file():
        return "its log is not whole yet"
    return f"no log in {home.results} or in a {REPLACED} of {home.runs} has its seed {one.seed}"
