"""Runs the trials of a search and the repeats of its best one, several at a time, each as a separate process."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from podium.config.load import load_resolved, write_resolved
from podium.config.schema import RunConfig
from podium.core.errors import UsageError
from podium.core.files import make_folder, write_atomically
from podium.core.paths import WORKING_FOLDER, child_environment
from podium.core.processes import end_with_parent
from podium.core.yaml_files import dump_yaml
from podium.run.implementation import process_error
from podium.tune.objective import Outcome, kept_outcome
from podium.tune.space import SearchSpace, load_space
from podium.tune.study import ended, open_study, settle
from podium.tune.worker import BASE, CONFIG, SPACE, outcome_path

WORKER = [sys.executable, "-m", "podium.tune.worker"]
LOOK_SECONDS = 0.2
GRACE_SECONDS = 20.0  # for a worker to end its training and put its trial back

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Workers:
    """How many trainings go on at once, and the processors of each."""

    count: int
    threads: int  # of each process of a training

    @classmethod
    def sharing(cls, config: RunConfig, count: int) -> "Workers":
        """The system's threads shared out evenly."""
        return cls(count, max(1, config.launch.threads // count))


def search(
    folder: Path, space: SearchSpace, base: RunConfig, first: Mapping[str, Any] | None, workers: Workers, tell: Tell
) -> None:
    """Make the trials that `space` still lacks in this folder; of a new one `first`, where given, is the first trial.

    Raises UsageError where the folder's trials were made of something else, and what a worker ended with.
    """
    _keep(folder, space, base)
    study = open_study(folder, space)
    settle(study)
    if first is not None and not study.get_trials(deepcopy=False):
        study.enqueue_trial(dict(first))
    told = {trial.number for trial in ended(study)}

    def commands() -> Iterator[list[str]]:
        for ordinal in range(len(study.get_trials(deepcopy=False)), sys.maxsize):
            yield [str(folder), str(ordinal), str(space.seed), str(workers.threads)]

    def lacking() -> int:
        trials = ended(study)
        for trial in (trial for trial in trials if trial.number not in told):
            told.add(trial.number)
            words = f"{trial.value:,.0f} samples" if trial.state.name == "COMPLETE" else "pruned"
            tell(f"{space.name}: trial {len(told)} of {space.trials}: {words}")
        return space.trials - len(trials)

    _work(commands(), lacking, workers.count)


def repeat(folder: Path, config: RunConfig, seeds: Sequence[int], workers: Workers, tell: Tell) -> list[Outcome]:
    """Train a configuration once under each seed, but for what the folder has of it already; by seed."""
    make_folder(folder)
    kept = folder / CONFIG
    if kept.is_file() and load_resolved(kept) != config:
        raise UsageError(f"{folder}: holds repeats of other settings; remove it")
    write_resolved(config, kept)

    def outcomes() -> dict[int, Outcome]:
        found = {seed: kept_outcome(outcome_path(folder, seed)) for seed in seeds}
        return {seed: one for seed, one in found.items() if one is not None}

    told = set(outcomes())

    def lacking() -> int:
        found = outcomes()
        for seed in sorted(set(found) - told):
            told.add(seed)
            tell(f"{folder.name}, seed {seed}: {found[seed].value:,.0f} samples")
        return len(seeds) - len(found)

    commands = iter([[str(folder), "repeat", str(s), str(workers.threads)] for s in seeds if s not in told])
    _work(commands, lacking, workers.count)
    found = outcomes()
    return [found[seed] for seed in seeds]


def _work(commands: Iterator[list[str]], lacking: Callable[[], int], count: int) -> None:
    """Have `count` workers at work until nothing lacks that is not in work, or no command is left."""
    at_work: list[Worker] = []
    more, lacks = True, lacking()
    try:
        while at_work or (more and lacks > 0):
            while more and len(at_work) < min(count, lacks):
                words = next(commands, None)
                more = words is not None
                if words is not None:
                    at_work.append(Worker(words))
            time.sleep(LOOK_SECONDS)
            done = [worker for worker in at_work if worker.ended]
            for worker in done:
                at_work.remove(worker)
                worker.check()
            lacks = lacking() if done else lacks
    finally:
        for worker in at_work:
            worker.end()


class Worker:
    """A process, and what it says."""

    def __init__(self, words: list[str]) -> None:
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 — closed when the process has ended
        self._process = subprocess.Popen(
            [*WORKER, *words],
            stdin=subprocess.DEVNULL,
            stdout=self._said,
            stderr=subprocess.STDOUT,
            cwd=WORKING_FOLDER,
            env=os.environ | child_environment(),
            preexec_fn=end_with_parent,
        )

    @property
    def ended(self) -> bool:
        return self._process.poll() is not None

    def check(self) -> None:
        """Raise what it ended with, if it did not end well."""
        self._said.seek(0)
        text = self._said.read().decode("utf-8", "replace")
        self._said.close()
        code = self._process.returncode
        if code:
            raise process_error(code, text, f"a trial's process ended with exit code {code}")

    def end(self) -> None:
        """Politely, so that its training ends with it."""
        self._process.terminate()
        try:
            self._process.wait(GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _keep(folder: Path, space: SearchSpace, base: RunConfig) -> None:
    """Write down what the trials are made of; UsageError where it was something else before. Trials may be added."""
    make_folder(folder)
    base_path, space_path = folder / BASE, folder / SPACE
    same_base = not base_path.is_file() or load_resolved(base_path) == base
    more_trials = {"trials": space.trials}
    same_space = not space_path.is_file() or load_space(str(space_path)).model_copy(update=more_trials) == space
    for path, same in ((base_path, same_base), (space_path, same_space)):
        if not same:
            raise UsageError(f"{path}: this folder's trials were made of other settings; name another --folder")
    write_resolved(base, base_path)
    write_atomically(space_path, dump_yaml(space.model_dump(mode="json")))
