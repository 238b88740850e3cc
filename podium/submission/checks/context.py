"""What the checks look at: a run, a set of runs, a package. Runs and sets create findings for their path."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.bert.rules import DROPPED, RUNS
from podium.core.finding import Finding
from podium.mllog.benchmarks import Benchmark, find_benchmark
from podium.mllog.lines import Event
from podium.mllog.read import read_log
from podium.mllog.results_tree import Package, ResultFolder, SystemFile
from podium.mllog.rulesets import Ruleset
from podium.mllog.run import BERT, RunLog

Findings = Iterator[Finding]


@dataclass(frozen=True)
class CheckedRun:
    """One log and the description of its system."""

    path: str  # relative to the package, with forward slashes
    log: RunLog
    system: Mapping[str, Any] | None  # the system's description; None where it is missing or cannot be read

    def error(self, rule: str, message: str, line: int | Event | None = None) -> Finding:
        return Finding.error(self.path, rule, message, _line_number(line))

    def warning(self, rule: str, message: str, line: int | Event | None = None) -> Finding:
        return Finding.warning(self.path, rule, message, _line_number(line))

    @property
    def closed(self) -> bool:
        """Whether the log or the description has the closed division, in any spelling."""
        return "closed" in (
            _normalize(self.log.text("submission_division")),
            _normalize((self.system or {}).get("division")),
        )

    @property
    def is_bert(self) -> bool:
        return self.log.benchmark == BERT

    @property
    def offline_evaluation(self) -> bool:
        """Whether the rules have checkpoints evaluated after the run."""
        return self.log.rules is not None and self.log.rules.offline_evaluation

    @property
    def target(self) -> str:
        """The targets of the benchmark, for a message."""
        return " and ".join(map(str, self.log.targets))

    @property
    def converged(self) -> bool:
        """Whether the run counts as one that reached the target: its status is success."""
        return self.log.status == "success"


@dataclass(frozen=True)
class CheckedSet:
    """The logs in one folder of results of one system."""

    path: str
    folder: ResultFolder
    system: SystemFile | None
    runs: tuple[CheckedRun, ...]

    @property
    def rules(self) -> Benchmark | None:
        """The benchmark of the folder's name, or of its logs where the folder is not part of a package."""
        logged = (run.log.rules for run in self.runs) if self.system is None else ()
        return find_benchmark(self.folder.benchmark) or next((one for one in logged if one is not None), None)

    @property
    def number_of_runs(self) -> int:
        """Number of runs of a result."""
        return RUNS if self.rules is None else self.rules.runs

    @property
    def allowed_failures(self) -> int:
        """Number of runs that may miss the target."""
        return DROPPED if self.rules is None else self.rules.dropped

    def error(self, rule: str, message: str) -> Finding:
        return Finding.error(self.path, rule, message)

    def warning(self, rule: str, message: str) -> Finding:
        return Finding.warning(self.path, rule, message)


@dataclass(frozen=True)
class CheckedPackage:
    """A package with its sets of runs of the ruleset's benchmarks."""

    package: Package
    sets: tuple[CheckedSet, ...]


def read_package_logs(package: Package, ruleset: Ruleset) -> CheckedPackage:
    """Read every log of a package's results of the ruleset's benchmarks; without descriptions, of any folder."""
    sets = []
    for folder in package.results:
        if folder.benchmark in ruleset.benchmarks or not package.systems:
            system = package.system(folder.system)
            fields = system.fields if system is not None else None
            runs = tuple(
                CheckedRun(package.relative(path), read_log(path, ruleset.round), fields) for path in folder.logs
            )
            sets.append(CheckedSet(package.relative(folder.path), folder, system, runs))
    return CheckedPackage(package, tuple(sets))


def _line_number(line: int | Event | None) -> int | None:
    return line.line if isinstance(line, Event) else line


def _normalize(value: Any) -> str:
    return value.strip().casefold() if isinstance(value, str) else ""
