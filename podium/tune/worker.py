"""One trial or repeat of a search as a process: `python -m podium.tune.worker FOLDER NUMBER|repeat SEED THREADS`.

With NUMBER it runs that trial; with `repeat` it trains FOLDER/config.yaml with the seed SEED. Exit codes: 0 the
training ended, with any outcome; 1 it could not be run; 2 wrong usage.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

import optuna
from optuna.trial import TrialState

from podium.config.load import load_resolved
from podium.config.run_folder import RunFolder
from podium.config.schema import RunConfig
from podium.core.errors import Interrupted, PodiumError
from podium.core.processes import end_with_parent
from podium.run.implementation import format_process_error
from podium.tune.objective import Outcome, train, write_outcome
from podium.tune.space import load_space, with_values
from podium.tune.study import open_study

BASE, SPACE, CONFIG = "base.yaml", "search.yaml", "config.yaml"


def main() -> int:
    folder, job, seed, threads = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    end_with_parent()
    try:
        if job == "repeat":
            repeat(folder, seed, threads)
        else:
            run_trial(folder, int(job), seed, threads)
    except (PodiumError, Interrupted) as error:
        print(format_process_error(error), file=sys.stderr)
        return error.exit_code
    return 0


def outcome_path(folder: Path, seed: int) -> Path:
    """Path of a repeat's outcome."""
    return folder / f"seed_{seed}" / "outcome.json"


def repeat(folder: Path, seed: int, threads: int) -> None:
    """Train the configuration in `folder` with a seed, and write the outcome."""
    config, path = _with_seed_and_threads(load_resolved(folder / CONFIG), seed, threads), outcome_path(folder, seed)
    write_outcome(train(config, RunFolder(path.parent)), path)


def run_trial(folder: Path, number: int, seed: int, threads: int) -> None:
    """Draw settings, train with them, and report the outcome to the study. An interrupted trial is enqueued again."""
    space = load_space(str(folder / SPACE))
    study = open_study(folder, space, number)
    trial = study.ask(fixed_distributions=space.distributions())
    try:
        config = with_values(load_resolved(folder / BASE), trial.params, f"trial {trial.number}")
        seeds = range(seed, seed + space.repeats_per_trial)
        found = _train_repeats([_with_seed_and_threads(config, one, threads) for one in seeds], folder, trial)
    except optuna.TrialPruned:
        study.tell(trial, state=TrialState.PRUNED)
    except BaseException as error:
        study.tell(trial, state=TrialState.FAIL)
        if isinstance(error, Interrupted):
            study.enqueue_trial(trial.params)
        raise
    else:
        for key in ("reached", "samples", "accuracy", "failure"):
            trial.set_user_attr(key, getattr(found, key))
        study.tell(trial, found.value)


def _train_repeats(configs: Sequence[RunConfig], folder: Path, trial: optuna.Trial) -> Outcome:
    """Train once with each seed; the first training reports its accuracies to Optuna, as 1 − accuracy, to be minimised.

    Raises optuna.TrialPruned, only during the first training: the pruner compares curves by the evaluation's number.
    """
    evaluations = 0

    def report(samples: int, accuracy: float) -> None:
        nonlocal evaluations
        trial.report(1 - accuracy, evaluations)
        evaluations += 1
        target = configs[0].target_accuracy
        assert target is not None
        if accuracy < target and trial.should_prune():
            trial.set_user_attr("samples", samples)
            trial.set_user_attr("accuracy", accuracy)
            raise optuna.TrialPruned

    first, *others = configs
    place = folder / "trials" / f"trial_{trial.number:04d}"
    outcomes = [train(first, RunFolder(place), report)]
    outcomes += [train(one, RunFolder(place / f"seed_{one.seed}")) for one in others]
    return Outcome.of_repeats(outcomes)


def _with_seed_and_threads(config: RunConfig, seed: int, threads: int) -> RunConfig:
    """Return the configuration with a seed and a number of threads for each process."""
    launch = config.launch.model_copy(update={"threads_per_process": threads})
    return config.model_copy(update={"seed": seed, "launch": launch})


if __name__ == "__main__":
    sys.exit(main())
