"""Select the runs to submit, and find the reasons why runs of Podium cannot be submitted.

MLPerf takes N consecutive runs, ten of most benchmarks. Of M > N consecutive runs, every window of N is scored and the
one with the median score is submitted, never the best. With an even number of windows, that is the slower of the two in
the middle, so that the selection cannot improve the score.
"""

import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from mlperf_logging.mllog import constants

from benchmarks.bert.rules import DROPPED, RUNS
from podium.config.schema import Description
from podium.mllog.anomaly_kinds import DAMAGED
from podium.mllog.run import RunLog
from podium.mllog.score import median_window, window_scores
from podium.mllog.write import PROFILED, RESTARTED, SUCCESS, SWEPT

MAX_NOT_CONVERGED = 1


@dataclass(frozen=True)
class WindowSelection:
    """Runs in the order of time, the score of each window in seconds, and the window that is submitted."""

    runs: tuple[RunLog, ...]
    # Of the windows that begin with run 0, 1, …; infinite where more than `dropped` runs did not converge.
    scores: tuple[float, ...]
    window: int
    length: int = RUNS  # runs of a window
    dropped: int = DROPPED  # runs that the score leaves out at each end

    @property
    def selected_runs(self) -> tuple[RunLog, ...]:
        return self.runs[self.window : self.window + self.length]

    @property
    def score(self) -> float:
        return self.scores[self.window]


def select_window(runs: Sequence[RunLog], length: int = RUNS, dropped: int = DROPPED) -> WindowSelection:
    """Select the window with the median score of `length` or more runs in the order of time."""
    scores = window_scores([scoring_seconds(run) for run in runs], length, dropped)
    return WindowSelection(tuple(runs), tuple(scores), median_window(scores), length, dropped)


def scoring_seconds(run: RunLog) -> float:
    """Return the seconds from run_start to run_stop; infinite for a run that did not reach the target."""
    return run.elapsed_seconds if run.status == SUCCESS and run.elapsed_seconds is not None else math.inf


def logged_settings(run: RunLog) -> dict[str, tuple[str, ...]]:
    """Return the values as JSON of every point-in-time key that is logged before run_start, without seeds."""
    settings: dict[str, tuple[str, ...]] = {}
    for event in run.events:
        if event.key == constants.RUN_START:
            break
        if event.kind == constants.POINT_IN_TIME and event.key != constants.SEED:
            settings[event.key] = (*settings.get(event.key, ()), json.dumps(event.value, sort_keys=True))
    return settings


def rejection_reasons(runs: Sequence[RunLog], description: Description, org: str) -> list[str]:
    """Return why runs in the order of time cannot be submitted by organisation `org`, as "RULE: a sentence"."""
    return [f"{rule}: {sentence}" for rule, check in SET_RULES.items() for sentence in check(runs, description, org)]


def _check_count(runs: Sequence[RunLog], description: Description, org: str) -> Iterator[str]:
    if len(runs) < RUNS:
        yield (
            f"{runs[0].path.parent} has {len(runs)} runs; a BERT result needs {RUNS} consecutive ones: make a new "
            f"set: podium run SYSTEM --runs {RUNS}"
        )


def _check_whole_logs(runs: Sequence[RunLog], description: Description, org: str) -> Iterator[str]:
    for run in runs:
        damage = [line for line in run.anomalies if line.kind in DAMAGED or line.kind == "too_long"]
        if damage:
            more = f", and {len(damage) - 1} more" if len(damage) > 1 else ""
            first = f"line {damage[0].line} {damage[0].message}"
            yield f"{run.path}: {first}{more}; logs must not be edited: restore what the run wrote"
        if run.start_ms is None or run.stop_ms is None:
            missing = "run_start" if run.start_ms is None else "run_stop"
            yield f"{run.name} has no {missing}: the run is not complete; make a new set"


def _check_restarted(runs: Sequence[RunLog], description: Description, org: str) -> Iterator[str]:
    for run in runs:
        if run.first(RESTARTED) is not None:
            yield f"{run.name} was restarted from a checkpoint, and a run's clock cannot be paused; make a new set"
        if run.first(PROFILED) is not None:
            yield f"{run.name} was profiled, and such a run is not a result; make a new set"
        if run.first(SWEPT) is not None:
            yield f"{run.name} is a run of `podium sweep`, with a stated seed; make a set with `podium run`"


def _check_consecutive(runs: Sequence[RunLog], description: Description, org: str) -> Iterator[str]:
    for before, run in pairwise(runs):
        if before.stop_ms is not None and run.start_ms is not None and run.start_ms < before.stop_ms:
            yield f"{run.name} began before {before.name} ended; runs must be made one after another on one system"


def _check_converged(runs: Sequence[RunLog], description: Description, org: str) -> Iterator[str]:
    """Check convergence in the submitted window only, where more than ten runs were made."""
    counted = select_window(runs).selected_runs if len(runs) >= RUNS else runs
    failed = [run.name for run in counted if run.status != SUCCESS]
    if len(failed) > MAX_NOT_CONVERGED:
        yield (
            f"{', '.join(failed)} did not reach the target; of {RUNS} runs at most {MAX_NOT_CONVERGED} may fail, "
            "which counts as the slowest"
        )


def _check_same_settings(runs: Sequence[RunLog], description: Description, org: str) -> Iterator[str]:
    logged = {run.name: logged_settings(run) for run in runs}
    for key in sorted({key for settings in logged.values() for key in settings}):
        values = Counter(settings.get(key, ()) for settings in logged.values())
        if len(values) > 1:
            usual = values.most_common(1)[0][0]
            name, other = next((name, found) for name, found in logged.items() if found.get(key, ()) != usual)
            yield (
                f"{name} logs {key} as {_format_values(other.get(key, ()))}, others as {_format_values(usual)}; all "
                "runs of a result must have the same settings"
            )


def _check_seeds(runs: Sequence[RunLog], description: Description, org: str) -> Iterator[str]:
    first: dict[str, str] = {}
    for run in runs:
        seeds = [event.value for event in run.all(constants.SEED)]
        if len(seeds) != 1:
            yield f"{run.name} logs {len(seeds) or 'no'} seed{'s' if len(seeds) > 1 else ''}; one is allowed"
        wrong = [seed for seed in seeds if isinstance(seed, bool) or not isinstance(seed, int)]
        if wrong:
            yield f"{run.path} logs the seed {str(wrong[0])[:40]}, which is not a whole number; make a new set"
        for seed in map(str, seeds):
            if seed in first:
                yield f"{run.name} and {first[seed]} have the same seed, {seed}; remove bert.seed and make a new set"
            first.setdefault(seed, run.name)


def _check_logged_names(runs: Sequence[RunLog], description: Description, org: str) -> Iterator[str]:
    """Check the logged names; logs must not be edited, so that the names have to be right before a run."""
    expected = (
        (constants.SUBMISSION_BENCHMARK, constants.BERT, "name results of BERT"),
        (constants.SUBMISSION_ORG, org, "set description.submitter before the runs, or give --org the logged name"),
        (constants.SUBMISSION_PLATFORM, description.system_name, "set description.system_name before the runs"),
        (constants.SUBMISSION_DIVISION, description.division, "set description.division before the runs"),
        (constants.SUBMISSION_STATUS, description.submission_status, "set description.status before the runs"),
    )
    logged = {run.name: logged_settings(run) for run in runs}
    for key, allowed, advice in expected:
        texts = {name: settings.get(key, ()) for name, settings in logged.items()}
        found = {name: json.loads(text[0]) if len(text) == 1 else None for name, text in texts.items()}
        wrong = [(name, value) for name, value in found.items() if value != allowed]
        if wrong:
            files = wrong[0][0] + (f" and {len(wrong) - 1} more" if len(wrong) > 1 else "")
            yield f"{files}: {key} is {wrong[0][1]!r}, expected is {allowed!r}; logs must not be edited: {advice}"


# A check yields one reason for each file or key that is concerned.
SET_RULES: dict[str, Callable[[Sequence[RunLog], Description, str], Iterator[str]]] = {
    "ten runs": _check_count,
    "whole logs": _check_whole_logs,
    "no restarted run": _check_restarted,
    "consecutive runs": _check_consecutive,
    "converged runs": _check_converged,
    "same settings": _check_same_settings,
    "distinct seeds": _check_seeds,
    "logged names": _check_logged_names,
}


def _format_values(values: Sequence[str]) -> str:
    return "nothing" if not values else values[0] if len(values) == 1 else f"{len(values)} values"
