"""`podium submit rcp`: reference convergence points of a benchmark, and what they mean for planned runs."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mlperf_logging.mllog import constants

from podium.core.console import Console, number_table, print_line, summary_table
from podium.core.errors import UsageError
from podium.core.text import format_list, printable, short_repr, truncate
from podium.mllog.benchmarks import benchmarks as benchmarks_table
from podium.mllog.rcp import (
    MAX_BATCH_SIZE,
    Convergence,
    Point,
    Reference,
    benchmarks,
    missing_message,
    reference,
    require_reference,
    rulesets,
)
from podium.mllog.read import read_log
from podium.mllog.results_tree import LOGS, sort_logs
from podium.mllog.rounds import find_round, round_from_dates
from podium.mllog.run import RunLog
from podium.submission.rcp_forecast import INTERVAL, Forecast, forecast

MAX_RATIO = 20  # between a run's progress and the reference's mean; more is another unit
NONE = "none"  # in --samples: a run that did not converge
MAX_COUNT = 1e15  # upper bound on plausible samples


@dataclass(frozen=True)
class RcpReport:
    """The reference, and the check at one batch size where one was given."""

    reference: Reference
    batch_size: int | None
    samples: tuple[float | None, ...]
    point: Point | None  # None without a batch size, and above the greatest one with a point
    forecast: Forecast | None  # None without a point
    verdict: Convergence | None  # once all runs of a set are made

    @property
    def accepted(self) -> bool:
        """False for a whole set that fails the check, and for a batch size that no point covers."""
        if self.verdict is not None:
            return self.verdict.passed
        if sum(count is None for count in self.samples) > self.reference.unconverged:
            return False
        return self.batch_size is None or self.point is not None


def make_report(
    paths: Sequence[Path],
    benchmark: str | None,
    batch_size: int | None,
    samples: str | None,
    ruleset: str | None,
) -> RcpReport:
    """Build the report from the command's options; logs have benchmark and batch size. Raises UsageError."""
    if paths and samples is not None:
        raise UsageError("PATH and --samples both give the runs so far; leave one of them out")
    logs = _read_logs(paths)
    benchmark = _agree("--benchmark", benchmark, "submission_benchmark", [(log, _benchmark(log)) for log in logs])
    if benchmark is None:
        raise UsageError("--benchmark is missing; name it, such as llama31_8b, or give logs, which have it")
    found = _find_reference(benchmark, ruleset if ruleset is not None else _ruleset_of(paths, logs, benchmark))
    batch_size = _agree("--batch-size", batch_size, "global_batch_size", [(log, _batch_size(log)) for log in logs])
    if batch_size is not None and not 0 < batch_size < MAX_BATCH_SIZE:
        raise UsageError(f"--batch-size {batch_size}: allowed are 1 to {MAX_BATCH_SIZE - 1:,}")
    counts = tuple(_progress(log, found) for log in logs) if logs else _parse_samples(samples)
    if counts and batch_size is None:
        raise UsageError("--samples: --batch-size is missing; the check depends on it")
    if len(counts) > found.runs:
        raise UsageError(
            f"{len(counts)} runs were given, and a result of {benchmark} has {found.runs}; "
            f"give the {found.runs} consecutive runs that are to be submitted"
        )
    if batch_size is None:
        return RcpReport(found, None, (), None, None, None)
    point = found.at(batch_size)
    if point is not None:
        _require_unit(counts, point, found)
    return RcpReport(
        found,
        batch_size,
        counts,
        point,
        forecast(found, point, counts) if point is not None else None,
        found.verdict(batch_size, counts) if len(counts) == found.runs else None,
    )


def _ruleset_of(paths: Sequence[Path], logs: Sequence[RunLog], benchmark: str) -> str | None:
    """The ruleset of the round that the logs' path names, else of their dates; None where it has no points."""
    if not logs:
        return None
    named = find_round(paths[0].resolve(), paths[0].resolve())
    name = named or round_from_dates([log.start_ms for log in logs if log.start_ms is not None])
    ruleset = None if name is None else f"{name.removeprefix('v')}.0"
    known = ruleset in rulesets() and ruleset is not None and reference(benchmark, ruleset) is not None
    return ruleset if known else None


def _require_unit(counts: Sequence[float | None], point: Point, found: Reference) -> None:
    """Raise UsageError for counts that are in another unit than the reference, by their order of magnitude."""
    for count in counts:
        if count is not None and not point.mean / MAX_RATIO < count < point.mean * MAX_RATIO:
            raise UsageError(
                f"a run needed {count:,.6g} {found.unit} to the target, and the reference needs {point.mean:,.6g}; "
                f"give {found.unit} ({found.log_key}), or --ruleset of the runs' round"
            )


def _find_reference(benchmark: str, ruleset: str | None) -> Reference:
    """The reference under this ruleset, or under the newest one that has points of the benchmark."""
    if ruleset is not None:
        return require_reference(benchmark, ruleset)
    for name in reversed(rulesets()):
        found = reference(benchmark, name)
        if found is not None:
            return found
    known = sorted({one for name in rulesets() for one in benchmarks(name)})
    raise UsageError(
        f"--benchmark {short_repr(benchmark)} has no reference points under any ruleset; "
        f"those that have are {format_list(known, 40)}"
    )


def _agree(option: str, given: Any, key: str, logged: Sequence[tuple[RunLog, Any]]) -> Any:
    """The value that an option and all logs have; None without either. Raises UsageError if they differ."""
    if not logged:
        return given
    first, expected = logged[0]
    source = str(first.path)
    if given is not None:
        source, expected = option, given
    for log, value in logged:
        if value != expected:
            raise UsageError(
                f"{log.path}: {key} is {short_repr(value)}, and {short_repr(expected)} by {source}; "
                "give runs of one benchmark with one batch size"
            )
    return expected


def _parse_samples(text: str | None) -> tuple[float | None, ...]:
    if text is None:
        return ()
    return tuple(_parse_count(item.strip()) for item in text.split(","))


def _parse_count(item: str) -> float | None:
    if item == NONE:
        return None
    try:
        count = float(item)
    except ValueError:
        count = math.nan
    if not 0 < count < MAX_COUNT:
        raise UsageError(
            f"--samples: found {short_repr(truncate(item, 40))}, allowed are positive numbers separated by commas, "
            f"such as 172032,184320, and {NONE} for a run that did not converge"
        )
    return count


def _read_logs(paths: Sequence[Path]) -> list[RunLog]:
    """Read logs, and those of folders, such as runs/SYSTEM/DATE_TIME or results/SYSTEM/BENCHMARK."""
    files: list[Path] = []
    for path in paths:
        inside = sort_logs(path.glob(LOGS)) if path.is_dir() else (path,)
        if not inside:
            raise UsageError(f"{path}: no {LOGS} in this folder; give the folder of the logs, or the logs")
        files.extend(inside)
    most = max(entry.runs for entry in benchmarks_table().values())
    if len(files) > most:
        raise UsageError(f"{len(files):,} logs were given, and no result has more than {most} runs")
    return [read_log(file, find_round(file.resolve(), file.resolve())) for file in files]


def _benchmark(log: RunLog) -> str:
    name = log.text(constants.SUBMISSION_BENCHMARK)
    if name is None:
        raise UsageError(f"{log.path}: submission_benchmark is missing; give --samples instead of this log")
    return name


def _batch_size(log: RunLog) -> int:
    number = log.number(constants.GLOBAL_BATCH_SIZE)
    if number is None or number != int(number):
        raise UsageError(f"{log.path}: global_batch_size is missing or not a whole number; give --samples instead")
    return int(number)


def _progress(log: RunLog, found: Reference) -> float | None:
    """Samples to the target in the reference's unit as the official checker counts; None where it did not converge."""
    if log.stop_status != constants.SUCCESS:
        return None
    count = log.progress
    if count is None or not 0 < count < MAX_COUNT:
        raise UsageError(
            f"{log.path}: the run succeeded, but no evaluation has a positive {found.log_key} in its metadata; "
            "give --samples instead of this log"
        )
    return count


def as_json(report: RcpReport) -> dict[str, Any]:
    """The JSON object of `podium submit rcp --json`."""
    found = report.reference
    used = {record.batch_size for record in found.pruned}
    return {
        "benchmark": found.benchmark,
        "ruleset": found.ruleset,
        "unit": found.unit,
        "runs": found.runs,
        "dropped": found.dropped,
        "scaled": found.scaled,
        "points": [
            {
                "batch_size": record.batch_size,
                "runs": len(record.values),
                "mean": record.mean,
                "sd": record.sd,
                "least_accepted": record.least,
                "used": record.batch_size in used,
            }
            for record in found.points
        ],
        "batch_size": report.batch_size,
        "point": _point_json(report),
        "samples": list(report.samples),
        "forecast": _forecast_json(report.forecast) if report.forecast is not None else None,
        "verdict": asdict(report.verdict) if report.verdict is not None else None,
    }


def _point_json(report: RcpReport) -> dict[str, Any] | None:
    if report.batch_size is None:
        return None
    if report.point is None:
        return {"kind": "missing", "message": missing_message(report.batch_size)}
    point = report.point
    return {
        "kind": point.kind,
        "mean": point.mean,
        "sd": point.sd,
        "least_accepted": point.least,
        "from_batch_sizes": [record.batch_size for record in point.records],
    }


def _forecast_json(made: Forecast) -> dict[str, Any]:
    return {
        "remaining_runs": made.remaining,
        "passes": made.passes,
        "too_many_unconverged": made.unconverged,
        "scaled": made.scaled,
        "factor": made.factor,
        "factor_interval": made.factor_interval,
        "mean_interval": made.mean_interval,
        "interval": INTERVAL,
        "needed_mean": {f"{chance:g}": count for chance, count in made.needed.items()},
        "run_sd": made.sd,
        "evaluation_interval": made.step,
    }


def print_report(console: Console, report: RcpReport) -> None:
    """Print the points as a table, then the check at the batch size."""
    found = report.reference
    console.print(_points_table(report))
    if report.batch_size is None:
        print_line(console, "Give --batch-size for what a result is compared with, and --samples for its runs so far.")
    elif report.point is None or report.forecast is None:
        print_line(console, f"{missing_message(report.batch_size)}.", "bold red")
        print_line(
            console,
            f"The greatest batch size with a point is {found.pruned[-1].batch_size:,}. A point takes {2 * found.runs} "
            "runs of the reference, which are submitted before the result.",
        )
    else:
        console.print(_check_table(report, report.point, report.forecast))
        print_line(console, _basis(report, report.point, report.forecast))


def _points_table(report: RcpReport) -> Any:
    found = report.reference
    used = {record.batch_size for record in found.pruned}
    title = f"{found.benchmark}, ruleset {found.ruleset}: {found.unit} to the target"
    table = number_table(printable(title), "batch size", "runs", "mean", "sd", "least accepted", "used")
    for record in found.points:
        numbers = (_number(number, found) for number in (record.mean, record.sd, record.least))
        mark = "yes" if record.batch_size in used else "pruned"
        table.add_row(f"{record.batch_size:,}", f"{len(record.values)}", *numbers, mark)
    return table


def _check_table(report: RcpReport, point: Point, made: Forecast) -> Any:
    found, verdict = report.reference, report.verdict
    sizes = " and ".join(f"{record.batch_size:,}" for record in point.records)
    kinds = {
        "found": "RCP found",
        "interpolated": f"interpolated between {sizes}",
        "smallest": f"compared with {sizes}, the smallest that is used",
    }
    table = summary_table(f"Batch size {report.batch_size:,}: {kinds[point.kind]}")
    table.add_row("reference mean", _number(point.mean, found))
    table.add_row("standard deviation", _number(point.sd, found))
    table.add_row("least accepted mean", _number(point.least, found))
    table.add_row("runs so far", f"{len(report.samples)} of {found.runs}")
    if verdict is not None:
        table.add_row("RCP check", f"{'passed' if verdict.passed else 'FAILED'}: {verdict.message}")
        if verdict.samples is not None:
            table.add_row("mean of the set", _number(verdict.samples, found))
            if verdict.passed:
                factor = f"{verdict.factor:.4f}" if found.scaled else "not scaled by this ruleset"
                table.add_row("scaling factor", factor)
        return table
    table.add_row("probability of passing", _percent(made.passes))
    if made.unconverged > 0:
        table.add_row("  too many runs do not converge", _percent(made.unconverged))
    if made.mean_interval is not None:
        table.add_row(f"mean of the set ({INTERVAL:.0%} interval)", _range(made.mean_interval, found))
    if not found.scaled:
        table.add_row("scaling factor", "not scaled by this ruleset")
    elif made.factor is not None and made.factor_interval is not None and made.scaled is not None:
        low, high = made.factor_interval
        table.add_row("scaling factor where it passes", f"{made.factor:.4f}")
        table.add_row(f"  {INTERVAL:.0%} interval", f"{low:.4f} to {high:.4f}")
        table.add_row("  probability of scaling", _percent(made.scaled))
    for chance, count in made.needed.items():
        table.add_row(f"mean of the other runs to pass with {chance:.0%}", _needed(count, found))
    return table


def _basis(report: RcpReport, point: Point, made: Forecast) -> str:
    found, n = report.reference, len(report.samples)
    if report.verdict is not None:
        return "All runs are made: the verdict is the official checker's statistic of these numbers."
    if n == 0:
        runs = sum(len(record.values) for record in point.records)
        return (
            f"Rests on {runs} runs of the reference: the probability holds for runs that converge as these. "
            "Give --samples for yours."
        )
    return (
        f"Rests on {n} run{'s' if n > 1 else ''} so far, part of the set, and on the reference where they leave "
        f"mean and spread open. The other {made.remaining} are drawn from a normal distribution of uncertain mean and "
        f"spread, rounded up to evaluations each {_number(made.step, found)} {found.unit}."
    )


def _number(number: float, found: Reference) -> str:
    return f"{number:,.3f}" if found.unit == "epochs" else f"{number:,.0f}"


def _range(ends: tuple[float, float], found: Reference) -> str:
    return f"{_number(ends[0], found)} to {_number(ends[1], found)}"


def _needed(count: float | None, found: Reference) -> str:
    if count is None:
        return "none suffices"
    return _number(count, found) if count else "any"


def _percent(share: float) -> str:
    if 0 < share < 0.001:
        return "less than 0.1 %"
    return "more than 99.9 %" if 0.999 < share < 1 else f"{100 * share:.1f} %"
