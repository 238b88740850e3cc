"""A system's runs as a submission sees them: what their logs say, and what their folders under runs/ keep of them."""

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlperf_logging.mllog import constants

from benchmarks.errors import UsageError
from podium.config import RunConfig, RunFolder, load_resolved
from podium.mllog import RESTARTED, SUCCESS, read_events
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
    samples: Any
    """train_samples."""

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
    """All result_*.txt of a folder, in the order in which the runs began. UsageError where there are none."""
    logs = sorted(results.glob("result_*.txt"))
    if not logs:
        raise UsageError(f"{results}: holds no result_*.txt; make ten runs with `podium run SYSTEM --runs 10`")
    return sorted((read_run(path) for path in logs), key=lambda run: (run.start_ms or math.inf, run.name))


def read_run(path: Path) -> Run:
    """What a log of ours says; parts that are missing are None."""
    events = read_events(path)
    begins = next((n for n, event in enumerate(events) if event.get("key") == constants.RUN_START), len(events))
    settings: dict[str, tuple[str, ...]] = {}
    for event in events[:begins]:
        key = str(event.get("key"))
        if event.get("event_type") == constants.POINT_IN_TIME and key != constants.SEED:
            settings[key] = (*settings.get(key, ()), json.dumps(event.get("value"), sort_keys=True))
    stop = _last(events, constants.RUN_STOP)
    metadata = stop.get("metadata") or {}
    return Run(
        path,
        _number(events[begins].get("time_ms")) if begins < len(events) else None,
        _number(stop.get("time_ms")),
        metadata.get("status"),
        tuple(event.get("value") for event in events if event.get("key") == constants.SEED),
        any(event.get("key") == RESTARTED for event in events),
        settings,
        _last(events, constants.EVAL_ACCURACY).get("value"),
        _last(events, constants.TRAIN_SAMPLES).get("value"),
    )


def find_records(runs: Sequence[Run], folder: Path) -> dict[Path, Record]:
    """The record of each run by its log, where there is one in `folder`, runs/SYSTEM: the newest with the run's seed.

    UsageError for a configuration that cannot be read.
    """
    by_seed: dict[int, Path] = {}
    for path in sorted(folder.glob("*/run_*/config.yaml")):
        for seed in SEED_LINE.findall(path.read_text(encoding="utf-8", errors="replace")):
            by_seed[int(seed)] = path
    found = {}
    for run in runs:
        config = by_seed.get(run.seeds[0]) if len(run.seeds) == 1 else None
        if config is not None:
            kept = RunFolder(config.parent)
            found[run.path] = Record(kept, load_resolved(config), read_source(kept.source))
    return found


def restarted_between(runs: Sequence[Run], records: Iterable[Record]) -> list[Path]:
    """Logs of restarted runs that lie in the folders of these sets and began between the first and the last run."""
    times = [run.start_ms for run in runs if run.start_ms is not None]
    if not times:
        return []
    sets = {record.folder.path.parent for record in records}
    logs = sorted(log for one in sets for log in one.glob(f"run_*/{RunFolder(one).restarted_result.name}"))
    return [log for log in logs if min(times) <= (read_run(log).start_ms or 0) <= max(times)]


def _last(events: Sequence[Mapping[str, Any]], key: str) -> Mapping[str, Any]:
    return next((event for event in reversed(events) if event.get("key") == key), {})


def _number(value: Any) -> float | None:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None
