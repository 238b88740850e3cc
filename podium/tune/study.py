"""The trials of a search in a journal file that several processes share, from which an interrupted search resumes."""

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
ENDED = (TrialState.COMPLETE, TrialState.PRUNED)


class WholeLines(JournalFileBackend):
    """Optuna's journal file, to which a write that fails adds no part of a line: the next one would be added to it."""

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        """WorkError where the disk does not take it, with the journal as it was before."""
        path = Path(self._file_path)
        lines = "".join(json.dumps(log, separators=(",", ":")) + "\n" for log in logs)
        try:
            self._lock.acquire()
            try:
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
    """The search's study, made where there is none. `number` of the trial to be drawn decides the sampler's seed.
    WorkError where its journal is damaged or cannot be written.

    Settings are drawn by tree-structured Parzen estimators (Bergstra et al., Algorithms for hyper-parameter
    optimization, 2011). A trial is pruned where its accuracy at an evaluation is below the median of those that trials
    before it had there (Golovin et al., Google Vizier, 2017).
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    journal = folder / JOURNAL
    advice = f"remove {folder}, and its trials are made again"
    if journal.exists() and not journal.is_file():
        raise WorkError(f"{journal}: is no file; {advice}")
    try:
        study = optuna.create_study(
            study_name=space.name,
            storage=JournalStorage(WholeLines(str(journal))),
            sampler=TPESampler(seed=space.seed + 7919 * number),
            pruner=MedianPruner(n_startup_trials=STARTUP_TRIALS, n_warmup_steps=1),
            direction="minimize",
            load_if_exists=True,
        )
        whole = all(map(_is_whole, study.get_trials(deepcopy=False)))
    except WorkError:
        raise
    except Exception as error:  # noqa: BLE001 — Optuna lets through whatever a line of the journal raises
        raise WorkError(
            f"{journal}: is no journal of trials that can be read ({short_repr(error)}); {advice}"
        ) from None
    if not whole:
        raise WorkError(f"{journal}: has a trial that ended without its samples or its accuracy; {advice}")
    return study


def _is_whole(trial: FrozenTrial) -> bool:
    """Whether a trial that is complete has all that is reported of it."""
    if trial.state != TrialState.COMPLETE:
        return True
    numbers = (trial.value, trial.user_attrs.get("samples"), trial.user_attrs.get("accuracy"))
    return None not in map(as_number, numbers) and isinstance(trial.user_attrs.get("reached"), bool)


def settle(study: optuna.Study) -> None:
    """Have trials whose process is gone made again. Only where no other process works on the study."""
    for trial in study.get_trials(states=(TrialState.RUNNING,)):
        study.tell(trial.number, state=TrialState.FAIL)
        study.enqueue_trial(trial.params)


def ended(study: optuna.Study) -> list[FrozenTrial]:
    """Trials that count, in the order in which they were drawn."""
    return [trial for trial in study.get_trials(deepcopy=False) if trial.state in ENDED]


def best(trials: Sequence[FrozenTrial]) -> FrozenTrial | None:
    """The complete trial of least value, the first of several; a pruned one is never it."""
    complete = [trial for trial in trials if trial.state == TrialState.COMPLETE and trial.value is not None]
    return min(complete, key=lambda trial: trial.value or 0.0, default=None)
