"""`podium run`: a set of consecutive runs on a system, from the data to the verdict on every result."""

import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from benchmarks.bert.checkpoint.podium import PodiumCheckpoint
from benchmarks.bert.preparation.tokenization import Vocabulary
from benchmarks.bert.rules import LARGEST_SEED
from podium.config.load import load_resumed, write_resolved
from podium.config.run_folder import RunFolder, newest_checkpoint, require_kept, whole_checkpoints
from podium.config.schema import RunConfig
from podium.core.errors import Interrupted, PodiumError, Saved, UsageError, WorkError
from podium.core.files import make_folder
from podium.core.locks import assert_unlocked, exclusive_lock
from podium.core.paths import WORKING_FOLDER
from podium.launch.container import seen_anywhere
from podium.launch.launch import launch
from podium.launch.node_group import Crew, gathered
from podium.mllog.compliance import check_compliance
from podium.mllog.write import run_status
from podium.planning.costs import with_measured_costs
from podium.run.data import with_data
from podium.run.progress import Progress
from podium.run.records import REPLACED
from podium.run.results import ResultSet
from podium.run.source import source_here, write_source

RUNS = WORKING_FOLDER / "runs"


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
    set_folder = new_set_folder(config)
    results = ResultSet(config.system, replaced=set_folder / REPLACED)
    results.check_place()
    with gathered(config, progress.note) as crew, _alone(make_folder(set_folder.parent)):
        check_checkpoint(config)
        config = with_measured_costs(with_data(config, progress.note))
        check_checkpoint(config)
        for number in range(runs):
            folder = RunFolder(make_folder(set_folder / f"run_{number}"))
            yield _run_once(config, number, runs, folder, results, progress, crew)


def new_set_folder(config: RunConfig) -> Path:
    """Where the side files of a set of runs that begins now go."""
    return RUNS / config.system / datetime.now().strftime("%Y-%m-%d_%H-%M-%S_%f")


def entry_options(caches_cleared: bool) -> list[str]:
    """What the implementation's `train` is told about a run on its command line."""
    return ["--caches-cleared"] if caches_cleared else []


def resumable(folder: Path, system: str, settings: Sequence[str] = ()) -> RunConfig:
    """The configuration that a run which broke off goes on with: its own, started as system and `settings` say.

    Changes nothing. `system` is a name in systems/ or a path. Raises UsageError where there is nothing to go on with.
    """
    run = run_folder(folder)
    config = load_resumed(run, system, settings)
    if run.read_summary() is not None:
        raise UsageError(f"{folder}: this run has come to its end; start another one")
    checkpoint = newest_checkpoint(run.checkpoints)
    if checkpoint is None:
        raise UsageError(
            f"{folder}: holds no whole checkpoint to go on from; set checkpoint.every_samples in another run"
        )
    require_kept(checkpoint, config, run.config)
    return config


def resume(
    folder: Path, system: str, progress: Progress, settings: Sequence[str] = ()
) -> tuple[RunConfig, FinishedRun]:
    """Go on with a run that broke off, from its last checkpoint, in its own folder, as `resumable` configures it.

    Raises what `resumable` and `run_set` do.
    """
    run, config = run_folder(folder), resumable(folder, system, settings)
    results = ResultSet(config.system, replaced=run.path / REPLACED)
    with _alone(make_folder(RUNS / config.system)):
        config = resumable(folder, system, settings)  # whoever held these runs may have gone on with this one
        assert_unlocked(
            run.lock,
            f"{folder}: processes of this run are still at work, such as some that save themselves after their "
            "`podium run` was killed; wait for their end",
        )
        with gathered(config, progress.note) as crew:
            write_resolved(config, run.config)  # all nodes read there how to start
            run.mark_resumed()
            run.forget_failure()
            return config, _see_through(config, run, "Resumed run", results, progress, crew, entry_options(False))


def run_folder(folder: Path) -> RunFolder:
    """The folder of a run as it was named: from the current folder if it exists there, else from the working folder."""
    return RunFolder((folder if folder.exists() else WORKING_FOLDER / folder).resolve())


def check_checkpoint(config: RunConfig) -> None:
    """Refuse an initial checkpoint that the run could not start from, as far as its header and the data tell.

    Raises UsageError for one that is missing or of another size or vocabulary, WorkError for one that is damaged.
    """
    if config.initial_checkpoint is None:
        return
    vocabulary = config.data.vocabulary
    known = vocabulary is not None and vocabulary.is_file()  # the embedded text's is not, before it is written
    words = len(Vocabulary.read(vocabulary).words) if vocabulary and known else None
    PodiumCheckpoint(config.initial_checkpoint).require(config.model_size, words)


def _alone(folder: Path) -> AbstractContextManager[int]:
    """Lock this system's runs: results of two sets made at once would mix.

    UsageError if another process holds them, WorkError if nothing can be written there.
    """
    message = f"{folder}: another `podium run` is at work on this system; wait for its end"
    return exclusive_lock(folder / ".lock", message)


def _run_once(
    config: RunConfig,
    number: int,
    runs: int,
    folder: RunFolder,
    results: ResultSet,
    progress: Progress,
    crew: Crew,
) -> FinishedRun:
    seed = config.seed if config.seed is not None else secrets.randbelow(LARGEST_SEED + 1)
    config = config.model_copy(update={"seed": seed})
    write_resolved(config, folder.config)
    write_source(folder.source, source_here())
    cleared = crew.clear_caches(config, folder.config)
    if number == 0:
        progress.note(cleared.words)
    title, options = f"Run {number + 1} of {runs}", entry_options(cleared.samples)
    return _see_through(config, folder, title, results, progress, crew, options)


def _see_through(
    config: RunConfig,
    folder: RunFolder,
    title: str,
    results: ResultSet,
    progress: Progress,
    crew: Crew,
    options: list[str],
) -> FinishedRun:
    """Launch a run on all its nodes, wait for its end and give its result a place.

    A run that was stopped and has a checkpoint to go on from is not over and gets none; Saved is raised then.
    """
    try:
        crew.start(folder, "train", options)
        with progress.run(config, folder, title) as look:

            def tick() -> None:
                look()
                crew.watch()

            launch(config, folder, "train", options, tick, crew.node)
        crew.finish()
    except PodiumError as error:
        crew.stop()
        words = str(error)
        way = _way_on(config, folder, words)
        if isinstance(error, Saved | Interrupted) and way:
            raise Saved(f"{words}; {way}") from None
        words = f"{words}; {_place(results, folder)}"
        raise type(error)(f"{words}; {way}" if way else words) from None
    result = results.add(folder)
    summary = folder.read_summary()
    if result is None or summary is None:
        raise WorkError(f"{folder.path}: the run left no log with run_start; see {folder.output}")
    if folder.gone_on_with:
        progress.note(f"The run was restarted, so that it is no result; its log stays in {result}")
    progress.note("Asking the official compliance checker")
    assert config.seed is not None
    return FinishedRun(result, folder.path, config.seed, summary, check_compliance(result))


def _way_on(config: RunConfig, folder: RunFolder, words: str) -> str:
    """How to go on with a run that broke off with these words; nothing where it cannot.

    A checkpoint that the words name is one that could not be read: the run goes on from the one before it. A loss that
    is not finite comes again with the same batch.
    """
    whole = [checkpoint for checkpoint in whole_checkpoints(folder.checkpoints) if str(checkpoint.path) not in words]
    told = folder.told_failure(final_only=True)
    final = told is not None and not isinstance(told, Saved)
    if not whole or (final and folder.not_finite.is_file()):
        return ""
    mended = "once that is mended, " if final else ""
    nodes = ", given on each node with its --node-rank unless Slurm does" if config.launch.nodes > 1 else ""
    return (
        f"{mended}`podium run {config.system} --resume {seen_anywhere(folder.path)}` goes on after its first "
        f"{whole[-1].samples:,} samples{nodes}"
    )


def _place(results: ResultSet, folder: RunFolder) -> str:
    """Put a run that failed among the results, if it had begun, and say so."""
    try:
        result = results.add(folder)
    except PodiumError as error:
        return str(error)
    return f"its log says {run_status(result)}: {result}" if result else "it had not begun: no result file"
