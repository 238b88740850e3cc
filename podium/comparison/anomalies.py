"""Inconsistencies in a result: each is reported, and none is corrected by a guess.

Those that may affect a figure (score, samples, throughput, number of accelerators) are kept apart from cosmetic ones.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from podium.comparison.result import Cosmetic, Result
from podium.core.text import format_list, one_line
from podium.mllog import system
from podium.mllog.anomaly_kinds import KINDS, affects_figures
from podium.mllog.lines import HARMLESS, Anomaly
from podium.mllog.run import BERT, Run

# Relative difference allowed between train_samples and the samples to the target. Loggers round train_samples to whole
# batches or steps, which is less than 1%.
TRAIN_SAMPLES_TOLERANCE = 0.01
MAX_LOGS = 3  # logs that a message names


class Inconsistencies(NamedTuple):
    """What is inconsistent in a result, as sentence fragments."""

    affecting: tuple[str, ...]  # may affect a figure
    cosmetic: tuple[Cosmetic, ...]


def inconsistencies(result: Result) -> Inconsistencies:
    """Return what is inconsistent in a result; the cosmetic ones are last."""
    affecting = [message for check in CHECKS for message in check(result)]
    affecting += [message for kind, message in _log_anomalies(result) if affects_figures(kind)]
    cosmetic = [
        Cosmetic(KINDS[kind].lines, message) for kind, message in _log_anomalies(result) if not affects_figures(kind)
    ]
    seeds = Counter(run.seeds for run in result.runs if run.seeds)
    same = sum(count for count in seeds.values() if count > 1)
    if same:
        what = "runs share their seed with another run"
        cosmetic.append(Cosmetic(what, f"{same} {what}"))
    return Inconsistencies(tuple(affecting), tuple(cosmetic))


def _log_names(result: Result, runs: Iterable[Run]) -> str:
    """Return the names of the logs of these runs, which are some of the result's."""
    wanted = set(map(id, runs))
    numbers = [number for number, run in enumerate(result.runs) if id(run) in wanted]
    logs = result.logs
    return format_list([logs[number] if number < len(logs) else f"run {number + 1}" for number in numbers], MAX_LOGS)


def _check_run_count(result: Result) -> Iterator[str]:
    if result.rules is None:
        yield f"{one_line(result.benchmark)} is no benchmark that Podium knows: targets and score are not known"
    elif len(result.runs) != result.rules.runs:
        yield f"has {len(result.runs)} run(s); a score needs {result.rules.runs}"


def _check_failed_runs(result: Result) -> Iterator[str]:
    failed = [run for run in result.runs if not run.succeeded]
    if failed:
        statuses = Counter(
            run.status or "no status" if run.stop_ms is not None else "no run_stop" for run in result.runs
        )
        counts = ", ".join(f"{count} {one_line(status)}" for status, count in sorted(statuses.items()))
        yield f"{len(failed)} run(s) did not reach the target ({counts}): {_log_names(result, failed)}"


def _check_refused_runs(result: Result) -> Iterator[str]:
    refused = [run for run in result.runs if run.succeeded and run.rejection_reason is not None]
    if refused:
        first = f"{_log_names(result, refused[:1])} {refused[0].rejection_reason}"
        which = "" if len(refused) == 1 else "the first, "
        yield f"{len(refused)} run(s) count as ones that did not reach the target: {which}{first}"


def _check_accelerators(result: Result) -> Iterator[str]:
    if result.description and result.accelerators is None:
        nodes, per_node = (result.description.get(key) for key in ("number_of_nodes", "accelerators_per_node"))
        named = (("number_of_nodes", nodes), ("accelerators_per_node", per_node))
        found = " and ".join(f"{name} {'missing' if value is None else repr(value)}" for name, value in named)
        yield f"the description has {found}: the number of accelerators is not known"
    if result.accelerators == 0 and result.accelerator is not None:
        yield f"has 0 accelerators, but the description names the model {result.accelerator!r}"


def _check_batch_sizes(result: Result) -> Iterator[str]:
    sizes = Counter(run.global_batch_size for run in result.runs)
    if len(sizes) > 1:
        usual, count = sizes.most_common(1)[0]
        others = [
            f"{_format_number(size)} in {_log_names(result, [r for r in result.runs if r.global_batch_size == size])}"
            for size in sorted(sizes.keys() - {usual}, key=str)
        ]
        rest = f"{_format_number(usual)} in {count} other run{'s' * (count != 1)}"
        yield f"runs have different global batch sizes: {', '.join(others)} and {rest}"


def _check_divisions(result: Result) -> Iterator[str]:
    logged = {run.division for run in result.runs} - {None}
    if logged and any(system.parse_division(name) != result.division for name in logged):
        names = ", ".join(sorted(repr(name) for name in logged))
        yield f"logs have division {names}, the description {result.description.get('division')!r}"


def _check_sample_counts(result: Result) -> Iterator[str]:
    unknown = [run for run in result.converged if run.samples is None]
    below = [run for run in unknown if run.targets and run.evaluations and run.passing is None]
    if below and not result.other_targets:  # these have their own message
        yield (
            f"{len(below)} run(s) have status success, but no evaluation reaches "
            f"{' and '.join(map(str, below[0].targets))}: {_log_names(result, below)}"
        )
    unknown = [run for run in unknown if run not in below]
    if unknown and result.rules is not None and _counts_samples(result):
        yield f"{len(unknown)} run(s) do not log how many samples they took: {_log_names(result, unknown)}"
    if result.benchmark != BERT:
        return  # of other benchmarks, train_samples is the size of the dataset
    different = [
        run
        for run in result.converged
        if run.samples
        and run.train_samples is not None
        and abs(run.train_samples - run.samples) > TRAIN_SAMPLES_TOLERANCE * run.samples
    ]
    if different:
        yield (
            f"{len(different)} run(s) log train_samples that are not those of the passing evaluation, which count "
            f"here: {_format_number(different[0].train_samples)} against {_format_number(different[0].samples)} in "
            f"{_log_names(result, different[:1])}"
        )


def _counts_samples(result: Result) -> bool:
    """Whether the benchmark's logs determine samples: not where the size of an epoch is not known."""
    progress = None if result.rules is None else result.rules.progress_in(result.round)
    return progress is not None and (progress.samples is not None or progress.key == "step_num")


def _check_duplicate_logs(result: Result) -> Iterator[str]:
    counts = Counter(run.digest for run in result.runs)
    copies = [run for run in result.runs if counts[run.digest] > 1]
    if copies:
        yield f"{len(copies)} logs are copies of one another: {_log_names(result, copies)}"


def _check_clocks(result: Result) -> Iterator[str]:
    broken = [run for run in result.converged if run not in result.timed and run.seconds is not None]
    if broken:
        which = "" if len(broken) == 1 else "the first "
        yield (
            f"{len(broken)} run(s) have a time that cannot be right, {which}{broken[0].seconds:,.3f} s "
            f"in {_log_names(result, broken[:1])}: left out of spread and rates, while the score counts them as MLPerf "
            "does"
        )


CHECKS = (
    _check_run_count,
    _check_failed_runs,
    _check_refused_runs,
    _check_accelerators,
    _check_batch_sizes,
    _check_divisions,
    _check_sample_counts,
    _check_duplicate_logs,
    _check_clocks,
)


def _log_anomalies(result: Result) -> Iterator[tuple[str, str]]:
    """Yield each kind of log anomaly with a message: the number of logs, the first log, and its first line."""
    by_kind: dict[str, list[tuple[Run, Anomaly]]] = {}
    for run in result.runs:
        # reversed, so that of several of one kind in a log the first one stays in the dict
        for kind, anomaly in {one.kind: one for one in reversed(run.anomalies)}.items():
            by_kind.setdefault(kind, []).append((run, anomaly))
    for kind, found in sorted(by_kind.items()):
        run, first = found[0]
        what = first.message if kind not in HARMLESS else first.message.partition(", ")[0]
        # A text that begins with a number ("5 line(s) end in CR LF") is about several lines, not about this one.
        counted = what[:1].isdigit()
        where = f"line {first.line:,} " if first.line and not counted else ""
        several = "" if len(found) == 1 else f"{len(found)} logs, the first "
        yield kind, f"{several}{_log_names(result, [run])}: {where}{what}"


def _format_number(value: float | None) -> str:
    return "none" if value is None else f"{value:,.0f}"
