"""A system's runs as a submission sees them: what their logs say, and what their folders under runs/ keep of them."""

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlperf_logging.mllog import constants

from benchmarks.errors import UsageError
from podium.config import RunConfig, RunFolder, load_resolved
from podium.config.loading import UnknownConfiguration
from podium.mllog import RESTARTED, SUCCESS
from podium.reading.lines import DAMAGED, Event
from podium.reading.log import read_log
from podium.source import Source, read_source

SEED_LINE = re.compile(r"^seed: (\d+)\s*$", re.MULTILINE)


@dataclass(frozen=True)
class Run:
    """One run by its log."""

    path: Path
    start_ms: float | None
    stop_ms: float | None
    status: str | None
    seeds: tuple[Any, ...]
    restarted: bool
    settings: Mapping[str, tuple[str, ...]]
    """The values, as JSON, of every key that the log tells at a point in time before the run starts, seeds left out."""
    accuracy: float | None
    """Of the last evaluation."""
    samples: float | None
    """train_samples."""
    damage: tuple[str, ...] = ()
    """Of each line that is no whole event: "line N REASON"."""

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def converged(self) -> bool:
        return bool(self.status == SUCCESS)

    @property
    def seconds(self) -> float:
        """From run_start to run_stop as MLPerf scores it: infinite where the target was not reached."""
        if not self.converged or self.start_ms is None or self.stop_ms is None:
            return math.inf
        return (self.stop_ms - self.start_ms) / 1000

    def one(self, key: str) -> Any:
        """The value of a setting that is there once, else None."""
        values = self.settings.get(key, ())
        return json.loads(values[0]) if len(values) == 1 else None


@dataclass(frozen=True)
class Record:
    """What the folder of a run keeps."""

    folder: RunFolder
    config: RunConfig
    source: Source | None
    """None for runs of versions that did not keep it."""


def read_runs(results: Path) -> list[Run]:
    """All result_*.txt of a folder, in the order in which the runs began.

    UsageError where there are none, and where one is no plain file.
    """
    logs = sorted(results.glob("result_*.txt"))
    if not logs:
        raise UsageError(f"{results}: holds no result_*.txt; make ten runs with `podium run SYSTEM --runs 10`")
    for path in logs:
        if path.is_symlink() or not path.is_file():
            kind = "a link" if path.is_symlink() else "no file"
            raise UsageError(f"{path}: is {kind}; a run's log is a plain file: put back what `podium run` left there")
    return sorted((read_run(path) for path in logs), key=lambda run: (run.start_ms or math.inf, run.name))


def read_run(path: Path) -> Run:
    """What a log of ours says; parts that are missing are None. Errors as of `read_log`."""
    log = read_log(path)
    begins = next((n for n, event in enumerate(log.events) if event.key == constants.RUN_START), len(log.events))
    settings: dict[str, tuple[str, ...]] = {}
    for event in log.events[:begins]:
        if event.kind == constants.POINT_IN_TIME and event.key != constants.SEED:
            settings[event.key] = (*settings.get(event.key, ()), json.dumps(event.value, sort_keys=True))
    stop = _last(log.all(constants.RUN_STOP))
    accuracy, samples = _last(log.all(constants.EVAL_ACCURACY)), _last(log.all(constants.TRAIN_SAMPLES))
    return Run(
        path,
        log.events[begins].time_ms if begins < len(log.events) else None,
        stop.time_ms if stop else None,
        stop.metadata.get("status") if stop else None,
        tuple(event.value for event in log.all(constants.SEED)),
        log.first(RESTARTED) is not None,
        settings,
        _number(accuracy.value) if accuracy else None,
        _number(samples.value) if samples else None,
        tuple(f"line {one.line} {one.what}" for one in log.oddities if one.kind in DAMAGED or one.kind == "too_long"),
    )


def is_seed(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def find_records(runs: Sequence[Run], folder: Path) -> dict[Path, Record]:
    """The record of each run by its log, where there is one in `folder`, runs/SYSTEM: the newest with the run's seed.

    UsageError for a configuration that cannot be read, or not by this version of Podium.
    """
    by_seed = configurations_by_seed(folder)
    found = {}
    for run in runs:
        config = by_seed.get(run.seeds[0]) if len(run.seeds) == 1 and is_seed(run.seeds[0]) else None
        if config is not None:
            kept = RunFolder(config.parent)
            found[run.path] = Record(kept, _load(config), read_source(kept.source))
    return found


def configurations_by_seed(folder: Path) -> dict[int, Path]:
    """The resolved configurations of the runs in `folder`, runs/SYSTEM: the newest of each seed."""
    by_seed: dict[int, Path] = {}
    for path in sorted(folder.glob("*/run_*/config.yaml")):
        for seed in SEED_LINE.findall(path.read_text(encoding="utf-8", errors="replace")) if path.is_file() else ():
            by_seed[int(seed)] = path
    return by_seed


def _load(config: Path) -> RunConfig:
    try:
        return load_resolved(config)
    except UnknownConfiguration as error:
        reason = str(error).splitlines()[0].removeprefix(f"{config}: ")
        raise UsageError(
            f"{config}: another version of Podium made this run ({reason}), and this one cannot package it; package "
            "it with the version that made it, or make a new set"
        ) from None


def _last(events: Sequence[Event]) -> Event | None:
    return events[-1] if events else None


def _number(value: Any) -> float | None:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None
