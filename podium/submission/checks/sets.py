"""Checks of a set of runs: their number, the same settings, distinct seeds, and as they were recorded."""

import json
import re
from collections import Counter
from itertools import pairwise
from typing import Any

from podium.core.errors import attempt
from podium.core.files import sha256_of
from podium.core.finding import Finding
from podium.core.text import short_repr
from podium.mllog.power import POWER
from podium.mllog.results_tree import SCALING
from podium.mllog.rulesets import Ruleset
from podium.mllog.run import BERT, HYPERPARAMETER_PREFIX, HYPERPARAMETERS
from podium.run.records import REPLACED, RUN_NAME
from podium.run.results import BENCHMARK, read_published_set
from podium.run.set_record import SET, read_set
from podium.submission.checks.context import CheckedRun, CheckedSet, Findings
from podium.submission.checks.runs import short_name

RESULT_NAME = re.compile(r"result_(\d{1,6})\.txt", re.ASCII)
# Keys with the same value in all runs of a set, besides opt_* and the hyper-parameters that a run keeps.
SHARED_KEYS = frozenset(
    {
        "global_batch_size",
        "eval_samples",
        "submission_benchmark",
        "submission_division",
        "submission_org",
        "submission_platform",
        *HYPERPARAMETERS,
    }
)


# Keys that do not change what is trained: a limit that a run does not reach, names, and samples at once on a device,
# which differ in a set that was accepted in round 2.1.
WARNED_KEYS = ("max_steps", "submission_org", "submission_platform", "d_batch_size")


def _check_count(runs: CheckedSet, ruleset: Ruleset) -> Findings:
    """Check the number of runs; a single log without a package is checked as one run, not as a set."""
    is_single_log = len(runs.runs) == 1 and runs.system is None
    if len(runs.runs) != runs.number_of_runs and not is_single_log:
        found = f"has {len(runs.runs)} result_*.txt; a set{_of(runs)} has exactly {runs.number_of_runs} runs"
        yield runs.error("run_count", found)


def _of(runs: CheckedSet) -> str:
    return "" if runs.rules is None or runs.rules.name == BERT else f" of {runs.rules.name}"


def _check_file_names(runs: CheckedSet, ruleset: Ruleset) -> Findings:
    """Check that results are numbered from 0, as in the rules, or from 1, as accepted; gaps are left to the count."""
    named = f"results are named result_0.txt to result_{runs.number_of_runs - 1}.txt"
    names = [run.log.name for run in runs.runs]
    found = [RESULT_NAME.fullmatch(name) for name in names]
    odd = [name for name, match in zip(names, found, strict=True) if match is None]
    numbers = {int(match[1]) for match in found if match is not None}
    first = 0 if 0 in numbers else 1
    beyond = sorted(numbers - set(range(first, first + max(runs.number_of_runs, len(names)))))
    if odd:
        listed = ", ".join(short_repr(name) for name in odd[:3])
        yield runs.warning("result_names", f"has {listed}; {named}")
    elif len(names) > 1 and (beyond or len(numbers) < len(names)):
        listed = f"result_{beyond[0]}.txt" if beyond else "two names with the same number"
        yield runs.warning("result_names", f"has {listed}; {named}")


def _check_convergence(runs: CheckedSet, ruleset: Ruleset) -> Findings:
    failed = [run for run in runs.runs if not run.converged]
    allowed = runs.allowed_failures
    names = ", ".join(run.log.name for run in failed[:5]) + ", …" * (len(failed) > 5)
    if len(failed) > allowed:
        few = "one is allowed, which counts" if allowed == 1 else f"{allowed} are allowed, which count"
        runs_text = f"{len(failed)} runs" if len(failed) > 1 else "one run"
        message = f"{runs_text} did not converge ({names}); {few} as the slowest of the {runs.number_of_runs}"
        yield runs.error("not_converged", message)
    elif failed:
        counted = "it counts" if len(failed) == 1 else "they count"
        message = f"{names} did not converge; {counted} as the slowest of the {runs.number_of_runs}"
        yield runs.warning("one_not_converged", message)


def _check_seeds(runs: CheckedSet, ruleset: Ruleset) -> Findings:
    counts = Counter(run.log.seeds for run in runs.runs if run.log.seeds)
    for seeds, count in counts.items():
        if count > 1:
            message = f"{count} runs have the seed {', '.join(map(str, seeds[:3]))}; each run needs a different seed"
            yield (runs.error if ruleset.seeds_checked else runs.warning)("seed_repeated", message)


def _check_same_settings(runs: CheckedSet, ruleset: Ruleset) -> Findings:
    keys = dict.fromkeys(key for run in runs.runs for key in run.log.by_key)
    for key in (key for key in keys if key.startswith(HYPERPARAMETER_PREFIX) or key in SHARED_KEYS):
        values: dict[str, tuple[Any, str]] = {}
        for run in runs.runs:
            event = run.log.first(key)
            if event is not None:
                values.setdefault(_canonical(event.value), (event.value, run.log.name))
        if len(values) > 1:
            listed = ", ".join(f"{short_repr(value)} in {name}" for value, name in list(values.values())[:3])
            message = f"{short_name(key)} is {listed}; all runs of a set must have the same value"
            yield (runs.warning if key in WARNED_KEYS else runs.error)("settings_differ", message)


def _canonical(value: Any) -> str:
    """Return a value as JSON in which 448 and 448.0 are equal, and integers beyond a float's 53 bits stay exact."""
    return json.dumps(float(value) if isinstance(value, int) and abs(value) < 1 << 53 else value, sort_keys=True)


# This number of equal accuracies is not a coincidence; fewer can be, since an accuracy has a few thousand values at
# most. Nor is this number of equal times since run_start in ms: no two of the 1,000 published logs have them.
MIN_DISTINCT_TIMES = 3
MIN_SPAN_MS = 1_000  # evaluations within a shorter time may have equal distances by chance


def fingerprints(run: CheckedRun) -> list[tuple[Any, ...]]:
    """Return keys of which two logs of the same run share at least one; empty for a log without evaluations.

    The keys are the accuracies together with the seeds, the accuracies with their times, the accuracies of several
    evaluations, and the times of several evaluations, so that copies with edited seeds, times or accuracies are found.
    """
    evaluations, start = run.log.evaluations, run.log.start_ms
    if not evaluations:
        return []
    accuracies = tuple(evaluation.accuracy for evaluation in evaluations)
    marks: list[tuple[Any, ...]] = [("seeds", accuracies, *run.log.seeds)] if run.log.seeds else []
    if start is not None:
        times = tuple(evaluation.time_ms - start for evaluation in evaluations)
        marks.append(("times", accuracies, *times))
        if len(set(times)) >= MIN_DISTINCT_TIMES and max(times) - min(times) >= MIN_SPAN_MS:
            marks.append(("clock", *times))
    return [*marks, ("accuracies", accuracies)] if len(accuracies) >= MIN_DISTINCT_TIMES else marks


def _check_overlaps(runs: CheckedSet, ruleset: Ruleset) -> Findings:
    """Warn of runs that overlap in time: not possible on one system, but sets of several machines were accepted."""
    timed = [run for run in runs.runs if run.log.seconds is not None]
    timed.sort(key=lambda run: run.log.start_ms or 0.0)
    for before, after in pairwise(timed):
        left = (before.log.stop_ms or 0.0) - (after.log.start_ms or 0.0)
        if left > 0:
            message = (
                f"the run begins {left / 1e3:,.1f} s before {before.log.name} ends; the runs of a set must be "
                f"consecutive, on one system"
            )
            yield after.warning("overlap", message, after.log.first("run_start"))


def _check_other_files(runs: CheckedSet, ruleset: Ruleset) -> Findings:
    own = any(path.name == SET for path in runs.folder.others)  # the folder in which `podium run` made the set
    for path in runs.folder.others:
        of_set = path.name == SET or RUN_NAME.fullmatch(path.name) or path.name.startswith(REPLACED)
        if path.name not in ("package_checker_params", SCALING, POWER) and not (own and of_set):
            what = "a link" if path.is_symlink() else "a folder" if path.is_dir() else "a file"
            yield runs.warning("unknown_file", f"{short_repr(path.name)} is {what} that is not a result; remove it")


def _check_scaling_file(runs: CheckedSet, ruleset: Ruleset) -> Findings:
    """Check that a scaling.json is allowed; `official.runner` compares its factor with the official checker's."""
    if not any(path.name == SCALING for path in runs.folder.others):
        return
    path, fields = f"{runs.path}/{SCALING}", runs.system.fields if runs.system is not None else None
    if not ruleset.scaled:
        message = f"ruleset {ruleset.name} does not scale scores; remove the file"
    elif fields is not None and fields.get("division") != "closed":
        message = "scores are scaled in the closed division only; remove the file"
    elif fields is None:
        message = "its factor cannot be checked without the system's description; check the whole package"
    else:
        return
    yield Finding.error(path, "scaling", message)


def _check_against_set_record(runs: CheckedSet, ruleset: Ruleset) -> Findings:
    """Compare logs of Podium's own runs, in their set's folder or copied from it, with the recorded SHA-256."""
    folder = runs.folder.path
    copied = runs.folder.benchmark == BENCHMARK and not (folder / SET).exists()
    record = folder.parent / SET if copied else folder / SET
    if record.is_symlink() or not record.is_file():
        return
    if copied:
        published = read_published_set(record.parent)
        recorded = published.logs if published is not None else {}
    else:
        one, problem = attempt(read_set, folder)
        if problem is not None:
            yield runs.error("as_recorded", str(problem))
        ended = one.ended if one is not None else ()
        recorded = {run.log: run.sha256 for run in ended if run.log is not None and run.sha256 is not None}
    for run in runs.runs:
        if recorded and recorded.get(run.log.name) != sha256_of(run.log.path):
            yield run.error(
                "as_recorded",
                f"is not the log whose SHA-256 was recorded in {SET} when the run ended; restore that log",
            )


SET_CHECKS = (
    _check_count,
    _check_file_names,
    _check_convergence,
    _check_seeds,
    _check_same_settings,
    _check_overlaps,
    _check_other_files,
    _check_scaling_file,
    _check_against_set_record,
)
