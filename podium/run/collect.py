"""After a run: finalizes and checks its result log, or extends the error message by how to resume the run."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.bert.rules import TARGET_ACCURACY
from podium.config.run_folder import complete_checkpoints
from podium.config.schema import RunConfig
from podium.core.errors import Interrupted, PodiumError, StoppedAfterSaving, WorkError, attempt
from podium.core.files import write_atomically
from podium.launch.container import portable_path
from podium.launch.gpu_power import run_energy
from podium.launch.node_data import DataChangedError
from podium.mllog.compliance import check_compliance
from podium.mllog.read import read_log
from podium.run.outcome import Outcome, finished_outcome
from podium.run.prepare import PreparedRun
from podium.run.results import finalize_log, published_folder, record_saved


@dataclass(frozen=True)
class FinishedRun:
    """A run that has ended normally: its log, its folder, its summary and the compliance checker's verdicts."""

    result: Path
    folder: Path
    seed: int
    summary: Mapping[str, Any]
    compliance: Mapping[str, str]  # by ruleset: the checker's output, empty if the log complies
    target: float | None  # target accuracy

    @property
    def published(self) -> Path | None:
        """The copy of the log under results/; None if results/ contains copies of another set."""
        folder = published_folder(self.result.parent)
        return folder / self.result.name if folder is not None else None

    @property
    def reached_target(self) -> bool:
        return bool(self.summary["reached_target"])

    @property
    def outcome(self) -> Outcome:
        return finished_outcome(self.reached_target, self.target)

    @property
    def compliant(self) -> bool:
        return not any(self.compliance.values())

    def shortfall(self, config: RunConfig) -> str:
        """Return why the run counts as failed although it has ended normally; an empty string if it does not."""
        if config.target_accuracy is not None and not self.reached_target:
            return (
                f"the target accuracy of {config.target_accuracy} was not reached within max_samples "
                f"{config.max_samples}, so the status in the log is aborted"
            )
        return "" if self.compliant else f"the official compliance checker finds errors in {self.result}"

    def as_json(self) -> dict[str, Any]:
        return {
            "result_file": str(self.result),
            "published": str(self.published) if self.published else None,
            "run_folder": str(self.folder),
            "seed": self.seed,
            "outcome": self.outcome,
            **self.summary,
            "compliance": {ruleset: not output for ruleset, output in self.compliance.items()},
        }


def collect(run: PreparedRun, note: Callable[[str], None]) -> FinishedRun:
    """Finalize the log of a run that has ended, and check it with the official compliance checker if it is a result.

    WorkError if the run left no log with run_start or no summary.
    """
    folder = run.folder
    result, totals = finalize_log(folder, run.fault), folder.read_summary()
    if result is None or totals is None:
        raise WorkError(f"{folder.path}: the run left no log with run_start; see {folder.output}")
    summary = _with_energy(run, result, totals)
    if folder.was_restarted:
        note(f"The run was restarted, so its log is not a result; it stays in {result}")
    elif folder.was_profiled:
        note(f"The run was profiled, so its log is not a result; it stays in {result}")
        traced = any(folder.profile.glob("rank_*.json.gz"))
        note(f"The profile is in {folder.profile}" if traced else "The run ended before tracing began: no profile")
    target = run.config.target_accuracy
    if target is not None and target < TARGET_ACCURACY:
        note(f"The target accuracy {target:g} is below MLPerf's {TARGET_ACCURACY:g}: this result cannot be submitted")
    compliance: Mapping[str, str] = {}
    if run.fault is None:
        note("Running the official compliance checker")
        compliance = check_compliance(result)
    assert run.config.seed is not None
    return FinishedRun(result, folder.path, run.config.seed, summary, compliance, run.config.target_accuracy)


def _with_energy(run: PreparedRun, result: Path, summary: Mapping[str, Any]) -> Mapping[str, Any]:
    """The summary with the energy of the GPUs, also in summary.json, where power was sampled on all nodes."""
    log = read_log(result)
    if run.config.launch.device != "cuda" or log.start_ms is None or log.stop_ms is None:
        return summary
    energy = run_energy(run.config, run.folder, log.start_ms / 1e3, log.stop_ms / 1e3)
    if energy is None:
        return summary
    whole = {**summary, **energy.as_json()}
    write_atomically(run.folder.summary, json.dumps(whole, indent=2) + "\n")
    return whole


def collect_failure(run: PreparedRun, error: PodiumError | Interrupted) -> PodiumError | Interrupted:
    """Finalize the log of a run that has failed, and return its error with the log's path and how to resume the run.

    The error is StoppedAfterSaving if the run was interrupted and has a checkpoint to resume from.
    """
    if isinstance(error, DataChangedError):
        kept = finalize_log(run.folder, DATA_CHANGED, run.folder.changed_data_result) or run.folder.log
        return DataChangedError(f"{error}; its log is not a result and is kept: {kept}")
    hint = _resume_hint(run, str(error))
    if isinstance(error, StoppedAfterSaving | Interrupted) and hint:
        attempt(record_saved, run.folder)
        saved = StoppedAfterSaving(f"{error}; {hint}")
        attempt(run.folder.write_failure, saved)
        return saved
    if run.folder.read_failure() is None:  # else a process of the run has written the cause
        attempt(run.folder.write_failure, error)
    try:
        result = finalize_log(run.folder, run.fault)
        if result:
            log_note = f"the status in its log is {read_log(result).status}: {result}"
        else:
            log_note = "it had not reached run_start: no result file"
    except PodiumError as fault:  # such as a full disk, which must not replace the run's own error
        log_note = str(fault)
    return type(error)("; ".join(filter(None, (str(error), log_note, hint))))


DATA_CHANGED = "its data was changed meanwhile"


def _resume_hint(run: PreparedRun, message: str) -> str:
    """Return a text with the command that resumes a run that has failed with `message`; empty if it cannot be resumed.

    A checkpoint that the message names could not be read, so the run resumes from the one before it. A run with a loss
    that is not finite cannot be resumed, since the same batch would give the same loss again.
    """
    config, folder = run.config, run.folder
    usable = [
        checkpoint for checkpoint in complete_checkpoints(folder.checkpoints) if str(checkpoint.path) not in message
    ]
    failure = folder.read_failure(final_only=True)
    final = failure is not None and not isinstance(failure, StoppedAfterSaving)
    if not usable or (final and folder.not_finite.is_file()):
        return ""
    condition = "once that is fixed, " if final else ""
    nodes = (
        "; run it on each node with its --node-rank, unless Slurm starts the nodes" if config.launch.nodes > 1 else ""
    )
    return (
        f"{condition}`podium run {config.system} --resume {portable_path(folder.path)}` resumes the run after its "
        f"first {usable[-1].samples:,} samples{nodes}"
    )
