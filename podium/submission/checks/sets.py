"""Checks of a set of runs: ten of them, with one configuration, distinct seeds, consecutive, and none copied."""

import json
import re
from collections import Counter
from itertools import pairwise
from typing import Any

from benchmarks.bert.rules import RUNS
from podium.core.errors import attempt
from podium.core.files import sha256_of
from podium.core.finding import Finding
from podium.core.text import quoted
from podium.mllog.results_tree import SCALING
from podium.mllog.rulesets import Ruleset
from podium.run.records import REPLACED, RUN_NAME
from podium.run.results import BENCHMARK, held_set
from podium.run.set_record import SET, read_set
from podium.submission.checks.context import CheckedRun, CheckedSet, Findings
from podium.submission.checks.runs import RANGES

ALLOWED_FAILED = 1
NUMBERED = re.compile(r"result_(\d{1,6})\.txt", re.ASCII)
# Keys whose value is one in all runs of a set.
SAME = (
    *RANGES,
    "start_warmup_step",
    "opt_learning_rate_decay_from",
    "opt_lamb_learning_rate_decay_poly_power",
    "opt_end_learning_rate",
    "opt_name",
    "eval_samples",
    "submission_benchmark",
    "submission_division",
    "submission_org",
    "submission_platform",
)


def _count(runs: CheckedSet, ruleset: Ruleset) -> Findings:
    """A single log without a package is looked at as one run, not as a set."""
    alone = len(runs.runs) == 1 and runs.system is None
    if len(runs.runs) != RUNS and not alone:
        yield runs.error("run_count", f"holds {len(runs.runs)} result_*.txt; a set has exactly {RUNS} runs")


def _numbers(runs: CheckedSet, ruleset: Ruleset) -> Findings:
    """From 0 on, as the rules say, or from 1 on, as sets were accepted; of a set that is not whole, any of these."""
    names = [run.log.name for run in runs.runs]
    found = [NUMBERED.fullmatch(name) for name in names]
    odd = [name for name, match in zip(names, found, strict=True) if match is None]
    numbers = {int(match[1]) for match in found if match is not None}
    first = 0 if 0 in numbers else 1
    beyond = sorted(numbers - set(range(first, first + max(RUNS, len(names)))))
    if odd:
        names_told = ", ".join(quoted(name) for name in odd[:3])
        yield runs.warning("result_names", f"holds {names_told}; results are named result_0.txt to result_9.txt")
    elif len(names) > 1 and (beyond or len(numbers) < len(names)):
        told = f"result_{beyond[0]}.txt" if beyond else "two names of one number"
        yield runs.warning("result_names", f"holds {told}; results are named result_0.txt to result_9.txt")


def _failed(runs: CheckedSet, ruleset: Ruleset) -> Findings:
    failed = [run for run in runs.runs if not run.converged]
    names = ", ".join(run.log.name for run in failed[:5])
    if len(failed) > ALLOWED_FAILED:
        message = f"{len(failed)} runs did not converge ({names}); one is allowed, as the slowest of the ten"
        yield runs.error("not_converged", message)
    elif failed:
        yield runs.warning("one_not_converged", f"{names} did not converge, and counts as the slowest of the ten")


def _seeds(runs: CheckedSet, ruleset: Ruleset) -> Findings:
    counts = Counter(run.log.seeds for run in runs.runs if run.log.seeds)
    for seeds, count in counts.items():
        if count > 1:
            message = f"{count} runs have the seed {', '.join(map(str, seeds[:3]))}; every run has a seed of its own"
            yield (runs.error if ruleset.seeds_checked else runs.warning)("seed_repeated", message)


def _same_settings(runs: CheckedSet, ruleset: Ruleset) -> Findings:
    for key in SAME:
        values: dict[str, tuple[Any, str]] = {}
        for run in runs.runs:
            event = run.log.first(key)
            if event is not None:
                values.setdefault(_canonical(event.value), (event.value, run.log.name))
        if len(values) > 1:
            told = ", ".join(f"{quoted(value)} in {name}" for value, name in list(values.values())[:3])
            yield runs.error("settings_differ", f"{key} is {told}; the runs of a set have one setting")


def _canonical(value: Any) -> str:
    return json.dumps(float(value) if isinstance(value, int) and abs(value) < 1 << 53 else value, sort_keys=True)


# So many equal accuracies are no chance; fewer can be, as an accuracy has a few thousand values at most. Nor are so
# many equal times from run_start on, in milliseconds: no two of the 1,000 published logs have them.
TELLING = 3
TELLING_MS = 1_000  # evaluations that are all within less may well be equally apart


def fingerprints(run: CheckedRun) -> list[tuple[Any, ...]]:
    """Marks of which two logs of one run share at least one: the same accuracies, of several evaluations, or after the
    same times, or with the same seeds; or the same times of several evaluations, whatever the accuracies. None for a
    log without evaluations."""
    evaluations, start = run.log.evaluations, run.log.start_ms
    if not evaluations:
        return []
    accuracies = tuple(evaluation.accuracy for evaluation in evaluations)
    marks: list[tuple[Any, ...]] = [("seeds", accuracies, *run.log.seeds)] if run.log.seeds else []
    if start is not None:
        times = tuple(evaluation.time_ms - start for evaluation in evaluations)
        marks.append(("times", accuracies, *times))
        if len(set(times)) >= TELLING and max(times) - min(times) >= TELLING_MS:
            marks.append(("clock", *times))
    return [*marks, ("accuracies", accuracies)] if len(accuracies) >= TELLING else marks


def _overlaps(runs: CheckedSet, ruleset: Ruleset) -> Findings:
    """Runs that lie in one another: on one system they cannot, but sets were accepted that alike machines shared."""
    timed = [run for run in runs.runs if run.log.seconds is not None]
    timed.sort(key=lambda run: run.log.start_ms or 0.0)
    for before, after in pairwise(timed):
        left = (before.log.stop_ms or 0.0) - (after.log.start_ms or 0.0)
        if left > 0:
            message = (
                f"the run begins {left / 1e3:,.1f} s before {before.log.name} ends; the runs of a set are "
                f"consecutive, on one system"
            )
            yield after.warning("overlap", message, after.log.first("run_start"))


def _others(runs: CheckedSet, ruleset: Ruleset) -> Findings:
    own = any(path.name == SET for path in runs.folder.others)  # the folder in which `podium run` made the set
    for path in runs.folder.others:
        of_set = path.name == SET or RUN_NAME.fullmatch(path.name) or path.name.startswith(REPLACED)
        if path.name not in ("package_checker_params", SCALING) and not (own and of_set):
            what = "a link" if path.is_symlink() else "a folder" if path.is_dir() else "a file"
            yield runs.warning("unknown_file", f"{quoted(path.name)} is {what} that is no result; take it out")


def _scaling(runs: CheckedSet, ruleset: Ruleset) -> Findings:
    """The summarizer multiplies any score by it; where it may be, `official.runner` compares it with what is due."""
    if not any(path.name == SCALING for path in runs.folder.others):
        return
    path, fields = f"{runs.path}/{SCALING}", runs.system.fields if runs.system is not None else None
    if not ruleset.scaled:
        message = f"ruleset {ruleset.name} scales no score; take it out"
    elif fields is not None and fields.get("division") != "closed":
        message = "scores are scaled in the closed division alone; take it out"
    elif fields is None:
        message = "without the system's description nothing tells whether its factor is right; check the whole package"
    else:
        return
    yield Finding.error(path, "scaling", message)


def _as_recorded(runs: CheckedSet, ruleset: Ruleset) -> Findings:
    """Logs of one's own runs, in their set's folder or copied from there, by the SHA-256 that the set recorded."""
    folder = runs.folder.path
    copied = runs.folder.benchmark == BENCHMARK and not (folder / SET).exists()
    record = folder.parent / SET if copied else folder / SET
    if record.is_symlink() or not record.is_file():
        return
    if copied:
        held = held_set(record.parent)
        recorded = held.logs if held is not None else {}
    else:
        one, problem = attempt(read_set, folder)
        if problem is not None:
            yield runs.error("as_recorded", str(problem))
        ended = one.ended if one is not None else ()
        recorded = {run.log: run.sha256 for run in ended if run.log is not None and run.sha256 is not None}
    for run in runs.runs:
        if recorded and recorded.get(run.log.name) != sha256_of(run.log.path):
            yield run.error("as_recorded", f"is not the log that was recorded in {SET} when the run ended; put it back")


SETS = (_count, _numbers, _failed, _seeds, _same_settings, _overlaps, _others, _scaling, _as_recorded)
