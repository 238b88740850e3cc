"""Which ten runs are submitted, and by which rule runs are none that can be.

MLPerf takes ten consecutive runs. Where M > 10 consecutive ones were made, every window of ten consecutive runs is
scored and the window at the median is submitted; never the best. With an even number of windows no window is at the
median exactly: then the slower of the two in the middle is taken, so that the choice never gains anything.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from mlperf_logging.mllog import constants

from benchmarks.bert.rules import RUNS
from podium.config.description import Description
from podium.run_table import score_seconds
from podium.submission.packaging.runs import Run, is_seed

MOST_NOT_CONVERGED = 1


@dataclass(frozen=True)
class Choice:
    """Runs in the order of time, the score of every window of ten in seconds, and which window is taken."""

    runs: tuple[Run, ...]
    scores: tuple[float, ...]
    """Of the windows that begin with run 0, 1, …; infinite where two runs or more did not converge."""
    window: int

    @property
    def chosen(self) -> tuple[Run, ...]:
        return self.runs[self.window : self.window + RUNS]

    @property
    def score(self) -> float:
        return self.scores[self.window]


def choose(runs: Sequence[Run]) -> Choice:
    """The window at the median. `runs` are ten or more, in the order of time."""
    scores = window_scores([run.seconds for run in runs])
    return Choice(tuple(runs), tuple(scores), median_window(scores))


def window_scores(seconds: Sequence[float]) -> list[float]:
    """The score of every window of ten consecutive runs; infinite where it has none."""
    if len(seconds) < RUNS:
        raise ValueError(f"{len(seconds)} runs have no window of {RUNS}")
    windows = (seconds[first : first + RUNS] for first in range(len(seconds) - RUNS + 1))
    return [math.inf if score is None else score for score in map(score_seconds, windows)]


def median_window(scores: Sequence[float]) -> int:
    """The window whose score is the median, the slower of two in the middle, the earlier of equal ones."""
    middle = sorted(scores)[len(scores) // 2]
    return scores.index(middle)


def refusals(runs: Sequence[Run], description: Description, org: str) -> list[str]:
    """Why these runs, in the order of time, cannot be submitted by that organisation: "RULE: a sentence" each."""
    return [f"{rule}: {sentence}" for rule, check in RULES.items() for sentence in check(runs, description, org)]


Rule = Callable[[Sequence[Run], Description, str], Iterator[str]]


def _ten_runs(runs: Sequence[Run], description: Description, org: str) -> Iterator[str]:
    if len(runs) < RUNS:
        yield (
            f"{runs[0].path.parent} holds {len(runs)} runs, and a BERT result is {RUNS} consecutive ones; make a new "
            f"set: podium run SYSTEM --runs {RUNS}"
        )


def _whole_logs(runs: Sequence[Run], description: Description, org: str) -> Iterator[str]:
    for run in runs:
        if run.damage:
            more = f", and {len(run.damage) - 1} more" if len(run.damage) > 1 else ""
            yield f"{run.path}: {run.damage[0]}{more}; logs are not edited: put back what the run wrote"
        if run.start_ms is None or run.stop_ms is None:
            missing = "run_start" if run.start_ms is None else "run_stop"
            yield f"{run.name} has no {missing}: it is no whole run; make a new set"


def _restarted(runs: Sequence[Run], description: Description, org: str) -> Iterator[str]:
    for run in runs:
        if run.restarted:
            yield f"{run.name} was begun again from a checkpoint, and a run's clock cannot be paused; make a new set"


def _consecutive(runs: Sequence[Run], description: Description, org: str) -> Iterator[str]:
    for before, run in pairwise(runs):
        if before.stop_ms is not None and run.start_ms is not None and run.start_ms < before.stop_ms:
            yield f"{run.name} began before {before.name} ended; runs are made one after the other on the same system"


def _converged(runs: Sequence[Run], description: Description, org: str) -> Iterator[str]:
    """More runs than ten are judged by the window that is taken."""
    considered = choose(runs).chosen if len(runs) >= RUNS else runs
    failed = [run.name for run in considered if not run.converged]
    if len(failed) > MOST_NOT_CONVERGED:
        yield (
            f"{', '.join(failed)} did not reach the target; of {RUNS} runs at most {MOST_NOT_CONVERGED} may fail, "
            "and counts as the slowest"
        )


def _same_settings(runs: Sequence[Run], description: Description, org: str) -> Iterator[str]:
    for key in sorted({key for run in runs for key in run.settings}):
        values = Counter(run.settings.get(key, ()) for run in runs)
        if len(values) > 1:
            usual = values.most_common(1)[0][0]
            other = next(run for run in runs if run.settings.get(key, ()) != usual)
            yield (
                f"{other.name} logs {key} as {_words(other.settings.get(key, ()))}, others as {_words(usual)}; all "
                "runs of a result have the same settings"
            )


def _seeds(runs: Sequence[Run], description: Description, org: str) -> Iterator[str]:
    first: dict[str, str] = {}
    for run in runs:
        if len(run.seeds) != 1:
            yield f"{run.name} logs {len(run.seeds) or 'no'} seed{'s' if len(run.seeds) > 1 else ''}; one is allowed"
        odd = [seed for seed in run.seeds if not is_seed(seed)]
        if odd:
            yield f"{run.path} logs the seed {str(odd[0])[:40]}, which is no whole number; make a new set"
        for seed in map(str, run.seeds):
            if seed in first:
                yield f"{run.name} and {first[seed]} have the same seed, {seed}; leave bert.seed out and make a new set"
            first.setdefault(seed, run.name)


def _logged_names(runs: Sequence[Run], description: Description, org: str) -> Iterator[str]:
    """What logs say of who submits what is never edited: it has to be right when a run is made."""
    wanted = (
        (constants.SUBMISSION_BENCHMARK, constants.BERT, "is this a BERT result?"),
        (constants.SUBMISSION_ORG, org, "set description.submitter before the runs, or give --org by that name"),
        (constants.SUBMISSION_PLATFORM, description.system_name, "set description.system_name before the runs"),
        (constants.SUBMISSION_DIVISION, description.division, "set description.division before the runs"),
        (constants.SUBMISSION_STATUS, description.submission_status, "set description.status before the runs"),
    )
    for key, allowed, advice in wanted:
        wrong = [run for run in runs if run.one(key) != allowed]
        if wrong:
            files = wrong[0].name + (f" and {len(wrong) - 1} more" if len(wrong) > 1 else "")
            yield f"{files}: {key} is {wrong[0].one(key)!r}, wanted is {allowed!r}; logs are not edited: {advice}"


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
