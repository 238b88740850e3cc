"""What is done after a run: its result gets a place and a verdict, or its failure a message that says how to resume."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from podium.config.run_folder import whole_checkpoints
from podium.config.schema import RunConfig
from podium.core.errors import Interrupted, PodiumError, Saved, WorkError, attempt
from podium.launch.container import seen_anywhere
from podium.launch.node_data import DataChangedError
from podium.mllog.compliance import check_compliance
from podium.mllog.read import read_log
from podium.run.prepare import PreparedRun
from podium.run.results import published_folder, record_saved, settle


@dataclass(frozen=True)
class FinishedRun:
    """A run that came to its end: its log, its side files, its totals and the checker's verdict by ruleset."""

    result: Path
    folder: Path
    seed: int
    summary: Mapping[str, Any]
    compliance: Mapping[str, str]

    @property
    def published(self) -> Path | None:
        """The copy of its log under results/, while these are of its set."""
        folder = published_folder(self.result.parent)
        return folder / self.result.name if folder is not None else None

    @property
    def reached_target(self) -> bool:
        return bool(self.summary["reached_target"])

    @property
    def compliant(self) -> bool:
        return not any(self.compliance.values())

    def shortfall(self, config: RunConfig) -> str:
        """Why the run counts as failed although it came to its end; nothing where it does not."""
        if config.target_accuracy is not None and not self.reached_target:
            return (
                f"the target accuracy of {config.target_accuracy} was not reached within max_samples "
                f"{config.max_samples}, so the log says aborted"
            )
        return "" if self.compliant else f"the official compliance checker finds errors in {self.result}"

    def as_json(self) -> dict[str, Any]:
        return {
            "result_file": str(self.result),
            "published": str(self.published) if self.published else None,
            "run_folder": str(self.folder),
            "seed": self.seed,
            **self.summary,
            "compliance": {ruleset: not words for ruleset, words in self.compliance.items()},
        }


def collect(run: PreparedRun, note: Callable[[str], None]) -> FinishedRun:
    """Give the log of a run that has ended its place, and ask the official checker about it."""
    folder = run.folder
    result = settle(folder)
    summary = folder.read_summary()
    if result is None or summary is None:
        raise WorkError(f"{folder.path}: the run left no log with run_start; see {folder.output}")
    if folder.gone_on_with:
        note(f"The run was restarted, so that it is no result; its log stays in {result}")
    note("Asking the official compliance checker")
    assert run.config.seed is not None
    return FinishedRun(result, folder.path, run.config.seed, summary, check_compliance(result))


def collect_failure(run: PreparedRun, error: PodiumError | Interrupted) -> PodiumError | Interrupted:
    """The error of a run that broke off, with where its log is and how to resume; Saved where the run is not over."""
    if isinstance(error, DataChangedError):
        kept = settle(run.folder, DATA_CHANGED, run.folder.changed_data_result) or run.folder.log
        return DataChangedError(f"{error}; its log is no result and is kept: {kept}")
    hint = _resume_hint(run, str(error))
    if isinstance(error, Saved | Interrupted) and hint:
        attempt(record_saved, run.folder)
        return Saved(f"{error}; {hint}")
    try:
        result = settle(run.folder)
        place = f"its log says {read_log(result).status}: {result}" if result else "it had not begun: no result file"
    except PodiumError as fault:
        place = str(fault)
    return type(error)("; ".join(filter(None, (str(error), place, hint))))


DATA_CHANGED = "its data was changed meanwhile"


def _resume_hint(run: PreparedRun, message: str) -> str:
    """The command that resumes a run that broke off with this message; nothing where it cannot be resumed.

    A checkpoint that the message names is one that could not be read: the run resumes from the one before it. A loss
    that is not finite comes again with the same batch.
    """
    config, folder = run.config, run.folder
    whole = [checkpoint for checkpoint in whole_checkpoints(folder.checkpoints) if str(checkpoint.path) not in message]
    failure = folder.told_failure(final_only=True)
    final = failure is not None and not isinstance(failure, Saved)
    if not whole or (final and folder.not_finite.is_file()):
        return ""
    mended = "once that is mended, " if final else ""
    nodes = ", given on each node with its --node-rank unless Slurm does" if config.launch.nodes > 1 else ""
    return (
        f"{mended}`podium run {config.system} --resume {seen_anywhere(folder.path)}` goes on after its first "
        f"{whole[-1].samples:,} samples{nodes}"
    )
