"""`podium run`: a set of consecutive runs on a system; each is prepared, launched and collected."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from pathlib import Path

from podium.config.hyperparameters import hyperparameters_note
from podium.config.load import load_system, system_path
from podium.config.run_folder import RunFolder
from podium.config.schema import RunConfig
from podium.core.errors import Interrupted, PodiumError, UsageError, attempt
from podium.core.files import make_folder
from podium.core.locks import assert_unlocked, exclusive_lock
from podium.core.paths import WORKING_FOLDER
from podium.launch.container import become, require_seen, resume_options, run_options, wrapped
from podium.launch.launch import require_torch
from podium.launch.node_data import DataChangedError
from podium.launch.node_group import NodeGroup, follow, node_group
from podium.mllog.write import SUCCESS
from podium.planning.hardware import require_hardware
from podium.run.collect import FinishedRun, collect, collect_failure
from podium.run.prepare import PreparedRun, prepare_resumed, prepare_run, prepare_set, resumable
from podium.run.progress import Progress
from podium.run.requeue import JobRecord, settings_to_resume
from podium.run.results import check_place, close_left, publish, record_resumed, results_of, settle
from podium.run.set_record import SetRecord, read_set, write_set

RUNS = WORKING_FOLDER / "runs"


@dataclass(frozen=True)
class RunRequest:
    """What a `podium run` was asked for: consecutive runs of a system, or a run to resume."""

    system: str  # a name in systems/, or the path of a system's YAML file
    settings: Sequence[str] = ()
    recipe: str | None = None
    runs: int = 1
    resumed: RunFolder | None = None
    node_rank: int = 0
    as_json: bool = False
    job: JobRecord | None = None  # of the Slurm job that this is part of, where that requeues itself
    requeued: bool = False  # resumes the job's run, from its beginning if there is no checkpoint yet

    @cached_property
    def config(self) -> RunConfig:
        """UsageError for whatever is wrong with the system, the settings, or the run to resume."""
        if self.resumed is None:
            config = load_system(self.system, self.recipe, self.settings)
            require_hardware(config)
            return config
        if self.recipe or self.runs != 1:
            raise UsageError("--resume goes on with one run as it was configured; leave out --runs and --recipe")
        return resumable(self.resumed, self.system, self.settings, from_start=self.requeued)

    @property
    def config_inside(self) -> RunConfig:
        """The configuration with paths as they are read in the launcher's container. A run's own are those already."""
        if self.resumed is not None:
            return self.config
        return load_system(self.system, self.recipe, self.settings, paths_as_written=True)

    def launcher_command(self) -> list[str]:
        """The command by which the system's launcher runs this request in a container or a job."""
        if self.config.launch.requeue is not None and self.runs != 1:
            raise UsageError(
                f"--runs {self.runs}: launch.requeue is set, and a job that requeues itself makes one run, which is no "
                "result of a set; leave out --runs, or give --set launch.requeue=null"
            )
        if self.resumed is None:
            options = run_options(self.runs, self.recipe, self.settings, self.as_json)
        else:
            options = resume_options(self.config, self.resumed.path, self.settings, self.as_json)
        return wrapped(self.config, self.system, options, self.node_rank)

    def in_requeued_job(self) -> "RunRequest":
        """This request, or that to resume its run where an earlier start of the same Slurm job has begun one."""
        begun = self.job.run() if self.job is not None and self.node_rank == 0 else None
        if begun is None:
            return self
        settings = settings_to_resume(list(self.settings))
        return replace(self, settings=settings, recipe=None, runs=1, resumed=begun, requeued=True)


def execute(request: RunRequest, progress: Progress) -> Iterator[FinishedRun]:
    """Make the runs that are requested and yield each as it ends; a node that takes part in another's yields none.

    Does not return where the system's launcher makes the runs in a container or in a job.
    """
    config = request.config
    if config.launch.launcher != "torchrun":
        words = request.launcher_command()
        require_seen(request.config_inside, request.system)
        become(config, words)
    require_torch()
    if request.node_rank > 0:
        follow(config, request.node_rank, RUNS, progress.note)
    else:
        with request.job.watch(request.resumed) if request.job is not None else nullcontext():
            yield from _make_runs(request, progress)


def _make_runs(request: RunRequest, progress: Progress) -> Iterator[FinishedRun]:
    if request.resumed is None:
        yield from run_set(request.config, request.runs, progress, request.job)
        return
    yield resume(request.resumed, request.system, progress, request.settings, from_start=request.requeued)


def run_set(config: RunConfig, runs: int, progress: Progress, job: JobRecord | None = None) -> Iterator[FinishedRun]:
    """Make consecutive runs and yield each as it ends, then copy their logs to results/.

    Raises what broke one off once its log has its place in the set's folder; results/ is then left as it is.
    """
    folder = new_set_folder(config)
    check_place(config.system)
    with node_group(config, RUNS, progress.note) as nodes, _alone(make_folder(folder.parent)):
        close_left(folder.parent, progress.note)
        progress.note(hyperparameters_note(config))
        config, data = prepare_set(config, progress.note, nodes), None
        write_set(make_folder(folder), SetRecord(config.system, runs))
        shortfalls = []
        try:
            for number in range(runs):
                try:
                    run = prepare_run(config, folder / f"run_{number}", nodes, data)
                except (PodiumError, Interrupted):
                    attempt(settle, RunFolder(folder / f"run_{number}"))  # or it would count as left open by a kill
                    raise
                data = run.data
                if number == 0 or not run.caches.samples:
                    progress.note(run.caches.words)
                if job is not None:
                    job.begin(run.folder)
                more = number + 1 < runs
                finished = _launch_and_collect(run, f"Run {number + 1} of {runs}", nodes, progress, more)
                shortfalls.append(finished.shortfall(config))
                yield finished
        except (PodiumError, Interrupted):
            progress.note(f"The set broke off: its logs are in {folder}, and {results_of(config.system)} is as it was")
            raise
        if why := why_unpublished(folder, shortfalls):
            progress.note(f"{why}: the logs are in {folder}, and {results_of(config.system)} is as it was")
        else:
            publish(folder)


def why_unpublished(folder: Path, shortfalls: Sequence[str]) -> str:
    """Why the logs of a set of which all runs have ended are not copied to results/; nothing where they are."""
    record = read_set(folder)
    assert record is not None
    if others := [str(number) for number, run in record.by_number.items() if not run.is_result]:
        return f"The log of run {', '.join(others)} is no result"
    succeeded = any(run.status == SUCCESS for run in record.by_number.values())
    return "" if succeeded and not all(shortfalls) else "No run succeeded"


def resume(
    run: RunFolder, system: str, progress: Progress, settings: Sequence[str] = (), from_start: bool = False
) -> FinishedRun:
    """Resume a run from its last checkpoint, in its own folder. Raises what `resumable` and `run_set` raise.

    With `from_start` a run that has no checkpoint yet starts again from its beginning.
    """
    name = system_path(system).stem
    with _alone(make_folder(RUNS / name)):
        config = resumable(run, system, settings, from_start)
        assert_unlocked(
            run.lock,
            f"{run.path}: processes of this run are still at work, such as some that save themselves after their "
            "`podium run` was killed; wait for their end",
        )
        close_left(RUNS / name, progress.note, but=run)
        with node_group(config, RUNS, progress.note) as nodes:
            prepared = prepare_resumed(config, run, nodes, progress.note)
            record_resumed(run)
            return _launch_and_collect(prepared, "Resumed run", nodes, progress)


def _launch_and_collect(
    run: PreparedRun, title: str, nodes: NodeGroup, progress: Progress, more: bool = False
) -> FinishedRun:
    """Run its processes on all nodes to the end and show their progress, then collect what they leave.

    A run that came to its end just as it was asked to stop is a run like others, after which no other of `more` begins.
    """
    try:
        with progress.run(run.config, run.folder, title) as on_tick:
            nodes.launch(run.config, run.folder, "train", run.options, on_tick)
    except (PodiumError, Interrupted) as error:
        if not isinstance(error, Interrupted) or run.folder.read_summary() is None:
            raise collect_failure(run, error) from None
        if more:
            result = _collected(run, nodes, progress).result
            raise Interrupted(f"interrupted when a run had come to its end; its result is {result}") from None
    finished = _collected(run, nodes, progress)
    if shortfall := finished.shortfall(run.config):
        nodes.fail(shortfall, exit_code=1)
    return finished


def _collected(run: PreparedRun, nodes: NodeGroup, progress: Progress) -> FinishedRun:
    """The result of a run that has ended; DataChangedError where its data was changed meanwhile: then it is none."""
    try:
        nodes.data.require_unchanged()
    except DataChangedError as error:
        raise collect_failure(run, error) from None
    return collect(run, progress.note)


def new_set_folder(config: RunConfig) -> Path:
    """The folder of the side files of a set of runs that begins now."""
    return RUNS / config.system / datetime.now().strftime("%Y-%m-%d_%H-%M-%S_%f")


def run_folder(folder: Path) -> RunFolder:
    """The folder of a run as it was named: from the current folder if it exists there, else from the working folder."""
    return RunFolder((folder if folder.exists() else WORKING_FOLDER / folder).resolve())


def _alone(folder: Path) -> AbstractContextManager[int]:
    """Lock this system's runs, since results of two sets made at once would mix; UsageError if they are locked."""
    message = f"{folder}: another `podium run` is at work on this system; wait for its end"
    return exclusive_lock(folder / ".lock", message)
