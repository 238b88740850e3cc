"""Run the trials of a search and the repeats of its best one, several at a time, each as a separate process."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from optuna.trial import FrozenTrial, TrialState

from podium.config.load import load_resolved, write_resolved
from podium.config.schema import RunConfig
from podium.core.console import print_command
from podium.core.errors import UsageError
from podium.core.files import make_folder, write_atomically
from podium.core.paths import WORKING_FOLDER, child_environment
from podium.core.processes import end_with_parent
from podium.core.yaml_files import dump_yaml
from podium.run.implementation import process_error
from podium.tune.objective import Outcome, read_outcome
from podium.tune.space import SearchSpace, load_space
from podium.tune.study import finished_trials, open_study, requeue_lost_trials
from podium.tune.worker import BASE, CONFIG, SPACE, outcome_path

WORKER = [sys.executable, "-m", "podium.tune.worker"]
POLL_SECONDS = 0.2
GRACE_SECONDS = 20.0  # for a worker to end its training and enqueue its trial again

Report = Callable[[str], None]  # prints a line of progress


@dataclass(frozen=True)
class Workers:
    """Number of simultaneous trainings, and the processors of each."""

    count: int
    threads: int  # of each process of a training

    @classmethod
    def from_config(cls, config: RunConfig, count: int) -> "Workers":
        """Divide the system's threads evenly among `count` workers."""
        return cls(count, max(1, config.launch.threads // count))


def search(
    folder: Path, space: SearchSpace, base: RunConfig, first: Mapping[str, Any] | None, workers: Workers, report: Report
) -> None:
    """Run the trials of `space` that are still missing in this folder; in a new folder `first`, if given, is the first.

    Raises UsageError if the folder has trials of another configuration or space, and the error of a failed worker.
    """
    _write_inputs(folder, space, base)
    study = open_study(folder, space)
    requeue_lost_trials(study)
    if first is not None and not study.get_trials(deepcopy=False):
        study.enqueue_trial(dict(first))
    reported = {trial.number for trial in finished_trials(study)}

    def commands() -> Iterator[list[str]]:
        for ordinal in range(len(study.get_trials(deepcopy=False)), sys.maxsize):
            yield [str(folder), str(ordinal), str(space.seed), str(workers.threads)]

    def count_missing() -> int:
        trials = finished_trials(study)
        for trial in (trial for trial in trials if trial.number not in reported):
            reported.add(trial.number)
            report(f"{space.name}: trial {len(reported)} of {space.trials}: {_describe_trial(trial, base)}")
        return space.trials - len(trials)

    _run_workers(commands(), count_missing, workers.count)


def _describe_trial(trial: FrozenTrial, base: RunConfig) -> str:
    """What a complete or pruned trial observed."""
    known = trial.user_attrs
    if trial.state != TrialState.COMPLETE or trial.value is None:
        return f"pruned after {known.get('samples', 0):,} samples, accuracy {known.get('accuracy', 0.0):.4f}"
    outcome = Outcome(trial.value, known["reached"], known["samples"], known["accuracy"], known.get("failure", ""))
    return outcome.describe(_target(base))


def _target(config: RunConfig) -> float:
    assert config.target_accuracy is not None, "a search without a target is refused"
    return config.target_accuracy


def repeat(folder: Path, config: RunConfig, seeds: Sequence[int], workers: Workers, report: Report) -> list[Outcome]:
    """Train a configuration once with each seed, except for those in the folder; return the outcomes in order of seeds.

    Raises UsageError if the folder has repeats of another configuration, and the error of a failed worker.
    """
    make_folder(folder)
    kept = folder / CONFIG
    if kept.is_file() and load_resolved(kept) != config:
        raise UsageError(f"{folder}: has repeats of other settings; remove the folder")
    write_resolved(config, kept)

    def outcomes() -> dict[int, Outcome]:
        found = {seed: read_outcome(outcome_path(folder, seed)) for seed in seeds}
        return {seed: one for seed, one in found.items() if one is not None}

    reported = set(outcomes())

    def count_missing() -> int:
        found = outcomes()
        for seed in sorted(set(found) - reported):
            reported.add(seed)
            report(f"{folder.name}, seed {seed}: {found[seed].describe(_target(config))}")
        return len(seeds) - len(found)

    commands = iter([[str(folder), "repeat", str(s), str(workers.threads)] for s in seeds if s not in reported])
    _run_workers(commands, count_missing, workers.count)
    found = outcomes()
    return [found[seed] for seed in seeds]


def _run_workers(commands: Iterator[list[str]], count_missing: Callable[[], int], count: int) -> None:
    """Run up to `count` workers at a time until nothing is missing or no command is left; end all on an error."""
    running: list[Worker] = []
    more, missing = True, count_missing()
    try:
        while running or (more and missing > 0):
            while more and len(running) < min(count, missing):
                arguments = next(commands, None)
                more = arguments is not None
                if arguments is not None:
                    running.append(Worker(arguments))
            time.sleep(POLL_SECONDS)
            done = [worker for worker in running if worker.ended]
            for worker in done:
                running.remove(worker)
                worker.check()
            missing = count_missing() if done else missing
    finally:
        for worker in running:
            worker.end()


class Worker:
    """A worker process and its output."""

    def __init__(self, arguments: list[str]) -> None:
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 — closed when the process has ended
        argv = [*WORKER, *arguments]
        print_command(argv)
        self._process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            cwd=WORKING_FOLDER,
            env=os.environ | child_environment(),
            preexec_fn=end_with_parent,
        )

    @property
    def ended(self) -> bool:
        return self._process.poll() is not None

    def check(self) -> None:
        """Raise the process's error if its exit code is not 0."""
        self._output.seek(0)
        text = self._output.read().decode("utf-8", "replace")
        self._output.close()
        code = self._process.returncode
        if code:
            raise process_error(code, text, f"a trial's process ended with exit code {code}")

    def end(self) -> None:
        """Terminate the process; kill it after the grace period."""
        # SIGTERM first: the worker then ends its training and enqueues its trial again.
        self._process.terminate()
        try:
            self._process.wait(GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _write_inputs(folder: Path, space: SearchSpace, base: RunConfig) -> None:
    """Write the base configuration and the space. Raises UsageError if the folder has others; `trials` may differ."""
    make_folder(folder)
    base_path, space_path = folder / BASE, folder / SPACE
    same_base = not base_path.is_file() or load_resolved(base_path) == base
    more_trials = {"trials": space.trials}
    same_space = not space_path.is_file() or load_space(str(space_path)).model_copy(update=more_trials) == space
    for path, same in ((base_path, same_base), (space_path, same_space)):
        if not same:
            raise UsageError(f"{path}: this folder has trials of other settings; choose another --folder")
    write_resolved(base, base_path)
    write_atomically(space_path, dump_yaml(space.model_dump(mode="json")))
