"""Selection of the ten runs to submit, and the reasons for which runs cannot be submitted.

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

from mlperf_logging.mllog import constants

from benchmarks.bert.rules import RUNS
from podium.config.schema import Description
from podium.mllog.lines import DAMAGED
from podium.mllog.run import RunLog
from podium.mllog.score import median_window, window_scores
from podium.mllog.write import RESTARTED, SUCCESS

MOST_NOT_CONVERGED = 1


@dataclass(frozen=True)
class Choice:
    """Runs in the order of time, the score of every window of ten in seconds, and which window is taken."""

    runs: tuple[RunLog, ...]
    # Of the windows that begin with run 0, 1, …; infinite where two runs or more did not converge.
    scores: tuple[float, ...]
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


def logged_settings(run: RunLog) -> dict[str, tuple[str, ...]]:
    """The values, as JSON, of every key that is logged at a point in time before the run starts, seeds left out."""
    settings: dict[str, tuple[str, ...]] = {}
    for event in run.events:
        if event.key == constants.RUN_START:
            break
        if event.kind == constants.POINT_IN_TIME and event.key != constants.SEED:
            settings[event.key] = (*settings.get(event.key, ()), json.dumps(event.value, sort_keys=True))
    return settings


def refusals(runs: Sequence[RunLog], description: Description, org: str) -> list[str]:
    """Why these runs, in the order of time, cannot be submitted by that organisation: "RULE: a sentence" each."""
    return [f"{rule}: {sentence}" for rule, check in SET_RULES.items() for sentence in check(runs, description, org)]


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
    logged = {run.name: logged_settings(run) for run in runs}
    for key, allowed, advice in wanted:
        texts = {name: settings.get(key, ()) for name, settings in logged.items()}
        found = {name: json.loads(text[0]) if len(text) == 1 else None for name, text in texts.items()}
        wrong = [(name, value) for name, value in found.items() if value != allowed]
        if wrong:
            files = wrong[0][0] + (f" and {len(wrong) - 1} more" if len(wrong) > 1 else "")
            yield f"{files}: {key} is {wrong[0][1]!r}, wanted is {allowed!r}; logs are not edited: {advice}"


# What a check may say more than once, it says once for every file or key that is concerned.
SET_RULES: dict[str, Callable[[Sequence[RunLog], Description, str], Iterator[str]]] = {
    "ten runs": _ten_runs,
    "whole logs": _whole_logs,
    "no restarted run": _restarted,
    "consecutive runs": _consecutive,
    "converged runs": _converged,
    "same settings": _same_settings,
    "a seed of its own": _seeds,
    "logged names": _logged_names,
}


def _words(values: Sequence[str]) -> str:
    return "nothing" if not values else values[0] if len(values) == 1 else f"{len(values)} values"
