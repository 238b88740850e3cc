"""`podium run`: a set of consecutive runs on a system, from the data to the verdict on every result."""

import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from benchmarks.bert.rules import LARGEST_SEED
from benchmarks.errors import PodiumError, WorkError
from benchmarks.files import make_folder
from podium.compliance import check_compliance
from podium.config import RunConfig, RunFolder, write_resolved
from podium.config.loading import ROOT
from podium.data import drop_from_page_cache, with_data
from podium.launching import launch
from podium.mllog import run_status
from podium.progress import Progress
from podium.results import ResultSet

RUNS = ROOT / "runs"


@dataclass(frozen=True)
class FinishedRun:
    """A run that came to its end: its result, its side files, its totals and the checker's verdict by ruleset."""

    result: Path
    folder: Path
    seed: int
    summary: Mapping[str, Any]
    compliance: Mapping[str, str]

    @property
    def reached_target(self) -> bool:
        return bool(self.summary["reached_target"])

    @property
    def compliant(self) -> bool:
        return not any(self.compliance.values())

    def as_json(self) -> dict[str, Any]:
        return {
            "result_file": str(self.result),
            "run_folder": str(self.folder),
            "seed": self.seed,
            **self.summary,
            "compliance": {ruleset: not words for ruleset, words in self.compliance.items()},
        }


def run_set(config: RunConfig, runs: int, progress: Progress) -> Iterator[FinishedRun]:
    """Make `runs` consecutive runs and yield each as it ends.

    Raises what broke a run off, after its log was closed as aborted and put among the results.
    """
    config = with_data(config, progress.note)
    set_folder = RUNS / config.system / datetime.now().strftime("%Y-%m-%d_%H-%M-%S_%f")
    results = ResultSet(config.system, replaced=set_folder / "replaced_results")
    for number in range(runs):
        folder = RunFolder(make_folder(set_folder / f"run_{number}"))
        yield _run_once(config, number, runs, folder, results, progress)


def _run_once(
    config: RunConfig, number: int, runs: int, folder: RunFolder, results: ResultSet, progress: Progress
) -> FinishedRun:
    seed = config.seed if config.seed is not None else secrets.randbelow(LARGEST_SEED + 1)
    config = config.model_copy(update={"seed": seed})
    write_resolved(config, folder.config)
    caches_cleared = drop_from_page_cache(config)
    try:
        with progress.run(config, folder, f"Run {number + 1} of {runs}") as tick:
            launch(config, folder, caches_cleared, tick)
    except PodiumError as error:
        result = results.add(folder)
        outcome = f"its log says {run_status(result)}: {result}" if result else "it had not begun: no result file"
        raise type(error)(f"{error}; {outcome}") from None
    result = results.add(folder)
    summary = folder.read_summary()
    if result is None or summary is None:
        raise WorkError(f"{folder.path}: the run left no log with run_start; see {folder.output}")
    progress.note("Asking the official compliance checker")
    return FinishedRun(result, folder.path, seed, summary, check_compliance(result))
