"""MLPerf's reference convergence points (RCPs) and the check of a result against them, for every benchmark with points.

The points are those of the installed mlperf_logging (rcp_checker/training_X.Y.Z/rcps_BENCHMARK.json). The statistics
are those of its rcp_checker.py with pruned points, as the package checker and the summarizer call it, computed without
the search by t-tests: a reference takes about a millisecond instead of seconds, and scipy is not imported.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import mlperf_logging
import numpy as np

from podium.core.errors import UsageError, WorkError
from podium.core.json_files import read_json
from podium.core.text import format_list, short_repr
from podium.mllog.benchmarks import Benchmark, Progress, round_of
from podium.mllog.benchmarks import benchmarks as benchmarks_table

NOT_CONVERGED = 1e9  # as which a run that did not converge counts; less than any run of gpt3, which counts tokens
SIGNIFICANCE_LEVEL = 0.05
TOLERANCE = 1e-4  # of the least accepted mean, in the unit of the points
# llama31_405b from 5.0.0: samples by which a mean may be less than the least accepted one, an evaluation interval.
ALLOWANCE = 46_080
MAX_FILE_BYTES = 1 << 20  # the largest file has 10 KB
MAX_BATCH_SIZE = 10**9  # the official checker looks for points below 1e9

Kind = Literal["found", "interpolated", "smallest"]
Unit = Literal["samples", "epochs", "steps", "tokens"]
MESSAGES: Mapping[Kind, str] = MappingProxyType(
    {
        "found": "RCP found",
        "interpolated": "RCP Interpolation",
        "smallest": "RCP not found but slower convergence on smaller batch size",
    }
)
INSUFFICIENT = "Insufficient convergence"
FOLDER = Path(mlperf_logging.__file__).parent / "rcp_checker"


class Record(NamedTuple):
    """Runs of the reference at one batch size, in the reference's unit."""

    batch_size: int
    values: tuple[float, ...]  # to the target, sorted
    mean: float  # without the smallest and the greatest: see Reference.dropped
    sd: float  # of all values, divided by their number (np.std)
    least: float  # the smallest mean of a result that does not differ significantly, without ALLOWANCE


class Point(NamedTuple):
    """What a result at one batch size is compared with, in the reference's unit."""

    kind: Kind
    batch_size: int  # of the result; with kind smallest, the record's is greater
    mean: float
    sd: float
    least: float  # the smallest accepted mean of a result
    records: tuple[Record, ...]  # one, or the two between which is interpolated

    @property
    def threshold(self) -> float:
        """`least` with the rounding of the official checker, whose comparison divides twice."""
        return self.mean / (self.mean / self.least)


@dataclass(frozen=True)
class Convergence:
    """Result of the RCP check; samples are counted until the target, in the reference's unit."""

    passed: bool
    message: str  # the official checker's text, such as RCP Interpolation
    factor: float  # by which the score is scaled up: reference mean / mean of the result, at least 1
    samples: float | None  # the mean without the smallest and the greatest; None where it was not computed
    reference_samples: float | None  # the reference's mean at this batch size, interpolated where it is between two
    least_samples: float | None  # the smallest mean that is accepted
    reference_batch_size: int | None


@dataclass(frozen=True)
class Reference:
    """The reference convergence points of a benchmark under a ruleset."""

    benchmark: str
    ruleset: str
    points: tuple[Record, ...]  # all, by batch size

    @property
    def rules(self) -> Benchmark:
        """The entry of the table of benchmarks."""
        return benchmarks_table()[self.benchmark]

    @property
    def progress(self) -> Progress:
        """What counts progress in the logs of this ruleset's round."""
        found = self.rules.progress_in(round_of(self.ruleset))
        assert found is not None, "a benchmark with points has an entry for what counts its progress"
        return found

    @property
    def runs(self) -> int:
        """Runs of a result."""
        return self.rules.runs

    @property
    def dropped(self) -> int:
        """Values that the mean leaves out at each end."""
        return self.rules.dropped

    @property
    def unconverged(self) -> int:
        """Runs of a result that need not converge."""
        return self.dropped

    @property
    def scaled(self) -> bool:
        """Whether the ruleset scales scores of results that converge faster than the reference."""
        return version(self.ruleset) >= (2, 1)

    @property
    def log_key(self) -> str:
        """The key of evaluations' metadata that counts the progress."""
        return self.progress.key

    @property
    def unit(self) -> Unit:
        """What the points count: epoch_num counts epochs, except of BERT, unet3d (since 3.1.0) and gpt3."""
        if self.log_key == "step_num":
            return "steps"
        if self.progress.samples == 1:
            return "samples"
        return "tokens" if self.progress.samples is not None and self.progress.samples < 1 else "epochs"

    @cached_property
    def pruned(self) -> tuple[Record, ...]:
        """The points that results are compared with.

        Those below the batch size of fastest convergence, and those that converge slower than an interpolation between
        their neighbours, are left out.
        """
        fastest = min(self.points, key=lambda record: record.mean)
        records = [record for record in self.points if record.batch_size >= fastest.batch_size]
        index = 1
        while index < len(records) - 1:  # not the lower convex envelope: the official checker never steps back
            mean, _ = _interpolate(records[index].batch_size, records[index - 1], records[index + 1])
            if records[index].mean > mean:
                del records[index]
            else:
                index += 1
        return tuple(records)

    def at(self, batch_size: int) -> Point | None:
        """Return what a result at this batch size is compared with; None above the greatest batch size of a point."""
        below = [record for record in self.pruned if record.batch_size < batch_size]
        above = [record for record in self.pruned if record.batch_size > batch_size]
        for record in self.pruned:
            if record.batch_size == batch_size:
                return self._point("found", batch_size, record)
        if not above:
            return None
        if not below:
            return self._point("smallest", batch_size, above[0])
        mean, sd = _interpolate(batch_size, below[-1], above[0])
        least = least_accepted_mean(mean, sd, 2 * self.runs, self.runs) - self._allowance
        return Point("interpolated", batch_size, mean, sd, least, (below[-1], above[0]))

    def verdict(self, batch_size: int, samples: Sequence[float | None]) -> Convergence:
        """Check a result: what each run needed to the target in the reference's unit, None where it did not converge.

        Raises ValueError for fewer runs than the mean needs.
        """
        if len(samples) <= 2 * self.dropped:
            raise ValueError(f"{len(samples)} runs of {self.benchmark}: more than {2 * self.dropped} are needed")
        if sum(count is None for count in samples) > self.unconverged:
            return Convergence(False, INSUFFICIENT, 1.0, None, None, None, None)
        point = self.at(batch_size)
        if point is None:
            return Convergence(False, missing_message(batch_size), 1.0, None, None, None, None)
        mean = self.olympic_mean(samples)
        passed = mean >= point.threshold
        message = MESSAGES[point.kind] if passed or point.kind != "smallest" else missing_message(batch_size)
        factor = max(1.0, point.mean / mean)
        reference_batch_size = batch_size if point.kind == "interpolated" else point.records[0].batch_size
        return Convergence(passed, message, factor, mean, point.mean, point.least, reference_batch_size)

    def olympic_mean(self, samples: Sequence[float | None]) -> float:
        """Mean without the smallest and the greatest values; a run that did not converge counts as NOT_CONVERGED."""
        counted = sorted(NOT_CONVERGED if count is None else self.as_read(count) for count in samples)
        return float(np.mean(counted[self.dropped : len(counted) - self.dropped]))

    def as_read(self, count: float) -> float:
        """A count as the official checker reads it: epochs with three decimals."""
        return round(count, 3) if self.log_key == "epoch_num" else count

    @property
    def _allowance(self) -> int:
        return ALLOWANCE if self.benchmark == "llama31_405b" and version(self.ruleset) >= (5, 0) else 0

    def _point(self, kind: Kind, batch_size: int, record: Record) -> Point:
        return Point(kind, batch_size, record.mean, record.sd, record.least - self._allowance, (record,))


def missing_message(batch_size: int) -> str:
    """The official checker's text for a batch size that no point covers."""
    return f"Missing RCP, please submit RCP with BS = {batch_size}"


def version(ruleset: str) -> tuple[int, ...]:
    """The numbers of a ruleset, for comparisons: (5, 1, 0) of 5.1.0."""
    return tuple(map(int, ruleset.split(".")))


@cache
def rulesets() -> tuple[str, ...]:
    """Return the rulesets that have reference points, oldest first."""
    found = [re.fullmatch(r"training_(\d{1,3}\.\d{1,3}\.\d{1,3})", path.name) for path in FOLDER.iterdir()]
    return tuple(sorted((match[1] for match in found if match is not None), key=version))


@cache
def benchmarks(ruleset: str) -> tuple[str, ...]:
    """Return the benchmarks that have reference points under a ruleset. Raises UsageError if there is no such one."""
    if ruleset not in rulesets():
        raise UsageError(
            f"--ruleset {short_repr(ruleset)}: no reference points are known; allowed are {', '.join(rulesets())}"
        )
    found = (re.fullmatch(r"rcps_(\w+)\.json", path.name) for path in (FOLDER / f"training_{ruleset}").iterdir())
    return tuple(sorted(match[1] for match in found if match is not None and match[1] in benchmarks_table()))


@cache
def reference(benchmark: str, ruleset: str) -> Reference | None:
    """Return the points of a benchmark; None if it has none under this ruleset.

    Raises UsageError for an unknown ruleset, WorkError if the file of mlperf_logging cannot be read.
    """
    if benchmark not in benchmarks(ruleset):
        return None
    path = FOLDER / f"training_{ruleset}" / f"rcps_{benchmark}.json"
    try:
        records = [_parse_record(entry, benchmark) for entry in read_json(path, MAX_FILE_BYTES).values()]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise WorkError(
            f"{path}: the reference points cannot be read ({type(error).__name__}: {error}); "
            "install the mlperf-logging of requirements/ again"
        ) from None
    return Reference(benchmark, ruleset, tuple(sorted(records, key=lambda record: record.batch_size)))


def require_reference(benchmark: str, ruleset: str) -> Reference:
    """Return the points of a benchmark. Raises UsageError, which lists the benchmarks that have points, without any."""
    found = reference(benchmark, ruleset)
    if found is None:
        raise UsageError(
            f"--benchmark {short_repr(benchmark)} has no reference points under ruleset {ruleset}; "
            f"those that have are {format_list(benchmarks(ruleset), 30)}"
        )
    return found


def least_accepted_mean(mean: float, sd: float, reference_runs: int, runs: int) -> float:
    """The smallest mean of `runs` runs that a one-sided t-test does not find significantly below the reference's.

    Both sides have the reference's standard deviation. As in the official checker, the number of runs of the reference
    is the one after its smallest and greatest are left out, and the result's is two less than `runs`. That checker
    bisects from 0 to the mean until TOLERANCE with a t-test in each step; its steps are repeated here with the mean at
    which the test's p is SIGNIFICANCE_LEVEL, so that the last digits are the same.
    """
    if sd == 0:
        return mean
    others = runs - 2
    critical = _t_quantile(reference_runs + others - 2)
    threshold = mean - critical * sd * math.sqrt(1 / reference_runs + 1 / others)
    low, high = 0.0, mean
    middle = (low + high) / 2
    while high - low > TOLERANCE:
        if middle > threshold:
            high = middle
        else:
            low = middle
        middle = (low + high) / 2
    return middle


@cache
def _t_quantile(degrees: int) -> float:
    """The quantile of Student's t that SIGNIFICANCE_LEVEL exceeds.

    Bisects the distribution function for whole degrees of freedom (Abramowitz and Stegun, 26.7.3 and 26.7.4).
    """
    low, high = 0.0, math.pi / 2
    for _ in range(60):
        angle = (low + high) / 2
        cosine, term, total = math.cos(angle), 1.0, 0.0
        if degrees % 2:
            term = cosine
            for number in range(2, degrees, 2):
                total += term
                term *= cosine**2 * number / (number + 1)
            inside = 2 / math.pi * (angle + math.sin(angle) * total)
        else:
            for number in range(1, degrees, 2):
                total += term
                term *= cosine**2 * number / (number + 1)
            inside = math.sin(angle) * total
        low, high = (angle, high) if inside < 1 - 2 * SIGNIFICANCE_LEVEL else (low, angle)
    return math.tan((low + high) / 2) * math.sqrt(degrees)


def _interpolate(batch_size: int, low: Record, high: Record) -> tuple[float, float]:
    """Mean and standard deviation at a batch size between two records."""
    sizes = [low.batch_size, high.batch_size]
    mean, sd = (np.interp(batch_size, sizes, ends) for ends in ([low.mean, high.mean], [low.sd, high.sd]))
    return float(mean), float(sd)


def _parse_record(entry: Mapping[str, Any], benchmark: str) -> Record:
    # The key depends on the benchmark's age, not on the unit: llama31_8b counts samples below "Epochs to converge".
    key = "samples to converge" if benchmark in ("llama2_70b_lora", "flux1") else "Epochs to converge"
    batch_size, values = entry["BS"], sorted(entry[key])
    rules = benchmarks_table()[benchmark]
    dropped = rules.dropped
    if type(batch_size) is not int or batch_size < 1 or len(values) <= 2 * dropped:
        raise ValueError(f"BS {short_repr(batch_size)} with {len(values)} runs")
    if any(type(value) not in (int, float) or not 0 < value < math.inf for value in values):
        raise ValueError(f"{key} of BS {batch_size} has a value that is no positive number")
    mean, sd = float(np.mean(values[dropped : len(values) - dropped])), float(np.std(values))
    least = least_accepted_mean(mean, sd, len(values) - 2 * dropped, rules.runs)
    return Record(batch_size, tuple(map(float, values)), mean, sd, least)
