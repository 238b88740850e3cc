"""Optuna study of a search: trials in a journal file that several processes share and a later search resumes from."""

import json
import os
from collections.abc import Sequence
from io import FileIO
from pathlib import Path
from typing import Any

import optuna
from optuna.pruners import MedianPruner
from optuna.samplers import TPESampler
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, TrialState

from podium.core.errors import WorkError
from podium.core.files import write_error
from podium.core.text import short_repr
from podium.mllog.run import as_number
from podium.tune.space import SearchSpace

JOURNAL = "journal.log"
STARTUP_TRIALS = 5  # trials that are trained to their end before any is pruned
FINISHED = (TrialState.COMPLETE, TrialState.PRUNED)


class AtomicJournalBackend(JournalFileBackend):
    """Optuna's journal file, with atomic appends.

    A failed write leaves no part of a line, to which the next one would be appended.
    """

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        """Append logs as JSON lines. Raises WorkError if the write fails, with the journal unchanged."""
        path = Path(self._file_path)
        lines = "".join(json.dumps(log, separators=(",", ":")) + "\n" for log in logs)
        try:
            self._lock.acquire()
            try:
                # Unbuffered, so that an error is raised here and not when the file is closed.
                with path.open("ab", buffering=0) as file:
                    before = file.tell()
                    try:
                        self._write(file, lines.encode("utf-8"))
                    except OSError:
                        file.truncate(before)
                        raise
            finally:
                self._lock.release()
        except OSError as error:
            raise write_error(path, error) from error

    def _write(self, file: FileIO, content: bytes) -> None:
        while content:
            content = content[file.write(content) :]
        os.fsync(file.fileno())


def open_study(folder: Path, space: SearchSpace, number: int = 0) -> optuna.Study:
    """Open the search's study, or create it. `number` is that of the next trial; it changes the sampler's seed.

    Settings are drawn by tree-structured Parzen estimators (Bergstra et al., Algorithms for hyper-parameter
    optimization, 2011). A trial is pruned if its accuracy at an evaluation is below the median of earlier trials at the
    same evaluation (Golovin et al., Google Vizier, 2017). Raises WorkError if the journal is damaged or cannot be
    written.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    journal = folder / JOURNAL
    advice = f"remove {folder} to run its trials again"
    if journal.exists() and not journal.is_file():
        raise WorkError(f"{journal}: is not a regular file; {advice}")
    try:
        study = optuna.create_study(
            study_name=space.name,
            storage=JournalStorage(AtomicJournalBackend(str(journal))),
            # Each trial opens the study in a new process: with equal seeds all would draw the same numbers.
            sampler=TPESampler(seed=space.seed + 7919 * number),
            pruner=MedianPruner(n_startup_trials=STARTUP_TRIALS, n_warmup_steps=1),
            direction="minimize",
            load_if_exists=True,
        )
        complete = all(map(_is_complete, study.get_trials(deepcopy=False)))
    except WorkError:
        raise
    except Exception as error:  # noqa: BLE001 — Optuna raises errors of many types for damaged lines
        raise WorkError(f"{journal}: is not a readable journal of trials ({short_repr(error)}); {advice}") from None
    if not complete:
        raise WorkError(f"{journal}: a complete trial has no samples or no accuracy; {advice}")
    return study


def _is_complete(trial: FrozenTrial) -> bool:
    """Whether a complete trial has all values that are reported."""
    if trial.state != TrialState.COMPLETE:
        return True
    numbers = (trial.value, trial.user_attrs.get("samples"), trial.user_attrs.get("accuracy"))
    return None not in map(as_number, numbers) and isinstance(trial.user_attrs.get("reached"), bool)


def requeue_lost_trials(study: optuna.Study) -> None:
    """Enqueue trials whose process has died again. Only while no other process works on the study."""
    for trial in study.get_trials(states=(TrialState.RUNNING,)):
        study.tell(trial.number, state=TrialState.FAIL)
        study.enqueue_trial(trial.params)


def finished_trials(study: optuna.Study) -> list[FrozenTrial]:
    """Complete and pruned trials, in the order in which they were drawn."""
    return [trial for trial in study.get_trials(deepcopy=False) if trial.state in FINISHED]


def best_trial(trials: Sequence[FrozenTrial]) -> FrozenTrial | None:
    """The complete trial with the smallest value, the first among equals; None if no trial is complete."""
    complete = [trial for trial in trials if trial.state == TrialState.COMPLETE and trial.value is not None]
    return min(complete, key=lambda trial: trial.value or 0.0, default=None)
