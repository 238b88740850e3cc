"""Which ten runs are submitted, and by which rule runs are none that can be.

MLPerf takes ten consecutive runs. Where M > 10 consecutive ones were made, every window of ten consecutive runs is
scored and the window at the median is submitted; never the best. With an even number of windows no window is at the
median exactly: then the slower of the two in the middle is taken, so that the choice never gains anything.
"""

import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from mlperf_logging.mllog import constants

from benchmarks.bert.rules import RUNS
from benchmarks.errors import UsageError
from podium.comparison.scoring import median_window, window_scores
from podium.config.description import Description
from podium.config.loading import UnknownConfiguration
from podium.mllog import RESTARTED, SUCCESS
from podium.reading.lines import DAMAGED
from podium.reading.log import read_log
from podium.reading.run_log import RunLog
from podium.records import RunRecord, newest_by_seed, runs_of_system

MOST_NOT_CONVERGED = 1


@dataclass(frozen=True)
class Choice:
    """Runs in the order of time, the score of every window of ten in seconds, and which window is taken."""

    runs: tuple[RunLog, ...]
    scores: tuple[float, ...]
    """Of the windows that begin with run 0, 1, …; infinite where two runs or more did not converge."""
    window: int

    @property
    def chosen(self) -> tuple[RunLog, ...]:
        return self.runs[self.window : self.window + RUNS]

    @property
    def score(self) -> float:
        return self.scores[self.window]


def choose(runs: Sequence[RunLog]) -> Choice:
    """The window at the median. `runs` are ten or more, in the order of time."""
    scores = window_scores([scored_seconds(run) for run in runs])
    return Choice(tuple(runs), tuple(scores), median_window(scores))


def scored_seconds(run: RunLog) -> float:
    """From run_start to run_stop, infinite for a run that did not reach the target."""
    return run.elapsed_seconds if run.status == SUCCESS and run.elapsed_seconds is not None else math.inf


def read_runs(results: Path) -> list[RunLog]:
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
    return sorted(map(read_log, logs), key=lambda run: (run.start_ms or math.inf, run.name))


def find_records(runs: Sequence[RunLog], folder: Path) -> dict[Path, RunRecord]:
    """The record of each run by its log, where there is one in `folder`, runs/SYSTEM: the newest with the run's seed.

    UsageError for a configuration that cannot be read, or not by this version of Podium.
    """
    by_seed, found = newest_by_seed(runs_of_system(folder)), {}
    for run in runs:
        if len(run.seeds) == 1 and run.seeds[0] in by_seed:
            found[run.path] = by_seed[run.seeds[0]]
            _require_config(found[run.path])
    return found


def _require_config(record: RunRecord) -> None:
    try:
        record.config  # noqa: B018 — read here, where its errors can be explained
    except UnknownConfiguration as error:
        path = record.folder.config
        reason = str(error).splitlines()[0].removeprefix(f"{path}: ")
        raise UsageError(
            f"{path}: another version of Podium made this run ({reason}), and this one cannot package it; package "
            "it with the version that made it, or make a new set"
        ) from None


def logged_settings(run: RunLog) -> dict[str, tuple[str, ...]]:
    """The values, as JSON, of every key that is logged at a point in time before the run starts, seeds left out."""
    settings: dict[str, tuple[str, ...]] = {}
    for event in run.events:
        if event.key == constants.RUN_START:
            break
        if event.kind == constants.POINT_IN_TIME and event.key != constants.SEED:
            settings[event.key] = (*settings.get(event.key, ()), json.dumps(event.value, sort_keys=True))
    return settings


def _only_value(run: RunLog, key: str) -> Any:
    """The value of a setting that is logged once, else None."""
    values = logged_settings(run).get(key, ())
    return json.loads(values[0]) if len(values) == 1 else None


def refusals(runs: Sequence[RunLog], description: Description, org: str) -> list[str]:
    """Why these runs, in the order of time, cannot be submitted by that organisation: "RULE: a sentence" each."""
    return [f"{rule}: {sentence}" for rule, check in RULES.items() for sentence in check(runs, description, org)]


Rule = Callable[[Sequence[RunLog], Description, str], Iterator[str]]


def _ten_runs(runs: Sequence[RunLog], description: Description, org: str) -> Iterator[str]:
    if len(runs) < RUNS:
        yield (
            f"{runs[0].path.parent} holds {len(runs)} runs, and a BERT result is {RUNS} consecutive ones; make a new "
            f"set: podium run SYSTEM --runs {RUNS}"
        )


def _whole_logs(runs: Sequence[RunLog], description: Description, org: str) -> Iterator[str]:
    for run in runs:
        damage = [one for one in run.oddities if one.kind in DAMAGED or one.kind == "too_long"]
        if damage:
            more = f", and {len(damage) - 1} more" if len(damage) > 1 else ""
            first = f"line {damage[0].line} {damage[0].what}"
            yield f"{run.path}: {first}{more}; logs are not edited: put back what the run wrote"
        if run.start_ms is None or run.stop_ms is None:
            missing = "run_start" if run.start_ms is None else "run_stop"
            yield f"{run.name} has no {missing}: it is no whole run; make a new set"


def _restarted(runs: Sequence[RunLog], description: Description, org: str) -> Iterator[str]:
    for run in runs:
        if run.first(RESTARTED) is not None:
            yield f"{run.name} was begun again from a checkpoint, and a run's clock cannot be paused; make a new set"


def _consecutive(runs: Sequence[RunLog], description: Description, org: str) -> Iterator[str]:
    for before, run in pairwise(runs):
        if before.stop_ms is not None and run.start_ms is not None and run.start_ms < before.stop_ms:
            yield f"{run.name} began before {before.name} ended; runs are made one after the other on the same system"


def _converged(runs: Sequence[RunLog], description: Description, org: str) -> Iterator[str]:
    """More runs than ten are judged by the window that is taken."""
    considered = choose(runs).chosen if len(runs) >= RUNS else runs
    failed = [run.name for run in considered if run.status != SUCCESS]
    if len(failed) > MOST_NOT_CONVERGED:
        yield (
            f"{', '.join(failed)} did not reach the target; of {RUNS} runs at most {MOST_NOT_CONVERGED} may fail, "
            "and counts as the slowest"
        )


def _same_settings(runs: Sequence[RunLog], description: Description, org: str) -> Iterator[str]:
    logged = {run.name: logged_settings(run) for run in runs}
    for key in sorted({key for settings in logged.values() for key in settings}):
        values = Counter(settings.get(key, ()) for settings in logged.values())
        if len(values) > 1:
            usual = values.most_common(1)[0][0]
            name, other = next((name, found) for name, found in logged.items() if found.get(key, ()) != usual)
            yield (
                f"{name} logs {key} as {_words(other.get(key, ()))}, others as {_words(usual)}; all runs of a result "
                "have the same settings"
            )


def _seeds(runs: Sequence[RunLog], description: Description, org: str) -> Iterator[str]:
    first: dict[str, str] = {}
    for run in runs:
        seeds = [event.value for event in run.all(constants.SEED)]
        if len(seeds) != 1:
            yield f"{run.name} logs {len(seeds) or 'no'} seed{'s' if len(seeds) > 1 else ''}; one is allowed"
        odd = [seed for seed in seeds if isinstance(seed, bool) or not isinstance(seed, int)]
        if odd:
            yield f"{run.path} logs the seed {str(odd[0])[:40]}, which is no whole number; make a new set"
        for seed in map(str, seeds):
            if seed in first:
                yield f"{run.name} and {first[seed]} have the same seed, {seed}; leave bert.seed out and make a new set"
            first.setdefault(seed, run.name)


def _logged_names(runs: Sequence[RunLog], description: Description, org: str) -> Iterator[str]:
    """What logs say of who submits what is never edited: it has to be right when a run is made."""
    wanted = (
        (constants.SUBMISSION_BENCHMARK, constants.BERT, "is this a BERT result?"),
        (constants.SUBMISSION_ORG, org, "set description.submitter before the runs, or give --org by that name"),
        (constants.SUBMISSION_PLATFORM, description.system_name, "set description.system_name before the runs"),
        (constants.SUBMISSION_DIVISION, description.division, "set description.division before the runs"),
        (constants.SUBMISSION_STATUS, description.submission_status, "set description.status before the runs"),
    )
    for key, allowed, advice in wanted:
        found = [(run, _only_value(run, key)) for run in runs]
        wrong = [(run.name, value) for run, value in found if value != allowed]
        if wrong:
            files = wrong[0][0] + (f" and {len(wrong) - 1} more" if len(wrong) > 1 else "")
            yield f"{files}: {key} is {wrong[0][1]!r}, wanted is {allowed!r}; logs are not edited: {advice}"


RULES: dict[str, Rule] = {
    "ten runs": _ten_runs,
    "whole logs": _whole_logs,
    "no restarted run": _restarted,
    "consecutive runs": _consecutive,
    "converged runs": _converged,
    "same settings": _same_settings,
    "a seed of its own": _seeds,
    "logged names": _logged_names,
}
"""What a check may say more than once, it says once for every file or key that is concerned."""


def _words(values: Sequence[str]) -> str:
    return "nothing" if not values else values[0] if len(values) == 1 else f"{len(values)} values"
