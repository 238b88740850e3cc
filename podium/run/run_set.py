"""`podium run`: prepares, launches and collects a set of consecutive runs of a system, or resumes a run."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from pathlib import Path

from podium.config.hyperparameters import describe_hyperparameters
from podium.config.load import LoadedSystem, load_system, resolve_system, shown_path, system_path
from podium.config.run_data import RunData
from podium.config.run_folder import RunFolder
from podium.config.schema import RunConfig
from podium.core.errors import Interrupted, PodiumError, UsageError, attempt, clear_stop_signal
from podium.core.files import make_folder
from podium.core.locks import assert_unlocked, exclusive_lock
from podium.core.paths import WORKING_FOLDER
from podium.launch.container import exec_launcher, launcher_argv, resume_options, run_options, validate_mounts
from podium.launch.gpus import require_gpus
from podium.launch.launch import require_torch
from podium.launch.node_data import DataChangedError
from podium.launch.node_group import NodeGroup, node_group, require_rendezvous, run_worker_node
from podium.mllog.write import SUCCESS
from podium.planning.hardware import hardware_warnings, require_hardware
from podium.run.collect import FinishedRun, collect, collect_failure
from podium.run.loggers import require_packages
from podium.run.metrics_export import metrics_export
from podium.run.observation import NOTHING, Observation
from podium.run.prepare import PreparedRun, load_resumable, prepare_resumed, prepare_run, prepare_set
from podium.run.progress import Progress
from podium.run.requeue import JobRecord, settings_to_resume
from podium.run.results import (
    close_orphaned_runs,
    finalize_log,
    publish,
    record_resumed,
    require_writable_results,
    results_folder,
)
from podium.run.set_record import SetRecord, read_set, write_set

RUNS = WORKING_FOLDER / "runs"


@dataclass(frozen=True)
class RunRequest:
    """The options of a `podium run`: consecutive runs of a system, or a run to resume."""

    system: str  # a name in systems/, or the path of a system's YAML file
    settings: Sequence[str] = ()
    recipe: str | None = None
    runs: int = 1
    resumed: RunFolder | None = None
    node_rank: int = 0
    as_json: bool = False
    job: JobRecord | None = None  # of the Slurm job that this process is part of, if that requeues itself
    observation: Observation = NOTHING
    requeued: bool = False  # resumes the job's run, from its beginning if there is no checkpoint yet

    @cached_property
    def _loaded(self) -> LoadedSystem:
        return resolve_system(self.system, self.recipe, self.settings)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What a user should know about the configuration, one line each; none for a run to resume."""
        return (*self._loaded.warnings, *hardware_warnings(self.config)) if self.resumed is None else ()

    @cached_property
    def config(self) -> RunConfig:
        """The configuration of the runs. UsageError for invalid settings, or for a run that cannot be resumed."""
        if self.resumed is None:
            config = self._loaded.config
            require_hardware(config, self._loaded.origins.locate)
            self.observation.require_steps(config)
            return config
        if self.recipe or self.runs != 1:
            raise UsageError("--resume continues one run with its configuration; leave out --runs and --recipe")
        return load_resumable(self.resumed, self.system, self.settings, from_start=self.requeued)

    def require_rendezvous(self) -> None:
        """Raise UsageError, which names the system's file, if several nodes have no address to meet at."""
        require_rendezvous(self.config, shown_path(system_path(self.system)))

    @property
    def config_inside(self) -> RunConfig:
        """The configuration with the paths that are valid inside the launcher's container.

        A run to resume has such paths already.
        """
        if self.resumed is not None:
            return self.config
        return load_system(self.system, self.recipe, self.settings, paths_as_written=True)

    def launcher_command(self) -> list[str]:
        """Return the argv by which the system's launcher runs this request in a container or a Slurm job."""
        if self.config.launch.requeue is not None and self.runs != 1:
            raise UsageError(
                f"--runs: found {self.runs}, allowed is 1, since launch.requeue is set and a job that requeues itself "
                "makes a single run; leave out --runs, or give --set launch.requeue=null"
            )
        if self.resumed is None:
            options = run_options(self.runs, self.recipe, self.settings, self.as_json)
        else:
            options = resume_options(self.config, self.resumed.path, self.settings, self.as_json)
        return launcher_argv(self.config, self.system, [*options, *self.observation.options], self.node_rank)

    def in_requeued_job(self) -> "RunRequest":
        """Return this request, or one to resume the run that an earlier start of the same Slurm job has begun."""
        job_run = self.job.run() if self.job is not None and self.node_rank == 0 else None
        if job_run is None:
            return self
        settings = settings_to_resume(list(self.settings))
        return replace(self, settings=settings, recipe=None, runs=1, resumed=job_run, requeued=True)


def execute(request: RunRequest, progress: Progress) -> Iterator[FinishedRun]:
    """Make the requested runs and yield each when it has ended; a node other than node 0 yields none.

    Does not return if the system's launcher makes the runs in a container or a Slurm job.
    """
    config = request.config
    request.require_rendezvous()
    if config.launch.launcher != "torchrun":
        argv = request.launcher_command()
        validate_mounts(request.config_inside, request.system)
        require_gpus(config)
        exec_launcher(config, argv)
    require_torch()
    require_packages(request.observation.log_to)
    require_gpus(config)
    if request.node_rank > 0:
        run_worker_node(config, request.node_rank, RUNS, progress.note)
    else:
        with request.job.record_stop(request.resumed) if request.job is not None else nullcontext():
            yield from _make_runs(request, progress)


def _make_runs(request: RunRequest, progress: Progress) -> Iterator[FinishedRun]:
    if request.resumed is None:
        yield from run_set(request.config, request.runs, progress, request.job, request.observation)
        return
    yield resume(request.resumed, request.system, progress, request.settings, request.requeued, request.observation)


def run_set(
    config: RunConfig,
    runs: int,
    progress: Progress,
    job: JobRecord | None = None,
    observation: Observation = NOTHING,
) -> Iterator[FinishedRun]:
    """Make consecutive runs, yield each when it has ended, and copy their logs to results/ at the end.

    If a run fails, its log is finalized, its error is raised, and results/ is not changed.
    """
    folder = new_set_folder(config)
    require_writable_results(config.system)  # before hours of training
    with node_group(config, RUNS, progress.note) as nodes, system_lock(config.system):
        close_orphaned_runs(folder.parent, progress.note)
        progress.note(describe_hyperparameters(config))
        config, data = prepare_set(config, progress.note, nodes), None
        write_set(make_folder(folder), SetRecord(config.system, runs))
        shortfalls = []
        try:
            for number in range(runs):
                run = prepare_recorded(config, folder / f"run_{number}", nodes, data)
                data = run.data
                if number == 0 or not run.caches.samples:
                    progress.note(run.caches.message)
                if job is not None:
                    job.record_run(run.folder)
                more = number + 1 < runs
                title = f"Run {number + 1} of {runs}"
                finished = launch_and_collect(run, title, nodes, progress, observation, more)
                shortfalls.append(finished.shortfall(config))
                yield finished
        except (PodiumError, Interrupted):
            progress.note(
                f"The set is incomplete, it ended in run {len(shortfalls) + 1} of {runs}: its logs are in {folder}, "
                f"and {results_folder(config.system)} is unchanged"
            )
            raise
        if reason := unpublished_reason(folder, shortfalls):
            progress.note(f"{reason}: the logs are in {folder}, and {results_folder(config.system)} is unchanged")
        else:
            publish(folder)


@contextmanager
def _errors_of_run(folder: Path) -> Iterator[None]:
    """Add the run's folder to the errors of the block."""
    try:
        yield
    except (PodiumError, Interrupted) as error:
        error.run_folder = folder
        raise


def prepare_recorded(config: RunConfig, folder: Path, nodes: NodeGroup, data: RunData | None) -> PreparedRun:
    """Prepare a run as `prepare_run` does; record one that cannot be prepared as ended, and raise its error."""
    try:
        with _errors_of_run(folder):
            return prepare_run(config, folder, nodes, data)
    except (PodiumError, Interrupted) as error:
        attempt(RunFolder(folder).write_failure, error)
        # Without an entry in the record, the next command would take the run for one that was killed.
        attempt(finalize_log, RunFolder(folder))
        raise


def unpublished_reason(folder: Path, shortfalls: Sequence[str]) -> str:
    """Return why the logs of a complete set are not copied to results/; an empty string if they are.

    Every log must be a result, and at least one run must have status success and no shortfall.
    """
    record = read_set(folder)
    assert record is not None
    if others := [str(number) for number, run in record.by_number.items() if not run.is_result]:
        return f"The log of run {', '.join(others)} is not a result"
    succeeded = any(run.status == SUCCESS for run in record.by_number.values())
    return "" if succeeded and not all(shortfalls) else "No run succeeded"


def resume(
    run: RunFolder,
    system: str,
    progress: Progress,
    settings: Sequence[str] = (),
    from_start: bool = False,
    observation: Observation = NOTHING,
) -> FinishedRun:
    """Resume a run from its last checkpoint, in its own folder. Raises what `load_resumable` and `run_set` raise.

    With `from_start` a run that has no checkpoint yet starts again from its beginning.
    """
    name = system_path(system).stem
    with system_lock(name):
        # Checked again under the lock: another `podium run` may have completed the run since the request was made.
        config = load_resumable(run, system, settings, from_start)
        assert_unlocked(
            run.lock,
            f"{run.path}: processes of this run are still running, for example because they save a checkpoint after "
            "their `podium run` was killed; wait for their end",
        )
        close_orphaned_runs(RUNS / name, progress.note, excluded=run)
        with node_group(config, RUNS, progress.note) as nodes, _errors_of_run(run.path):
            prepared = prepare_resumed(config, run, nodes, progress.note)
            record_resumed(run)
            return launch_and_collect(prepared, "Resumed run", nodes, progress, observation)


def launch_and_collect(
    run: PreparedRun,
    title: str,
    nodes: NodeGroup,
    progress: Progress,
    observation: Observation = NOTHING,
    more: bool = False,
) -> FinishedRun:
    """Launch the processes of a run on all nodes, show their progress until they end, and collect the result.

    A run that ends just as it is interrupted counts as finished. If `more` runs were to follow, Interrupted is raised
    then.
    """
    with _errors_of_run(run.folder.path):
        return _launch_and_collect(run, title, nodes, progress, observation, more)


def _launch_and_collect(
    run: PreparedRun, title: str, nodes: NodeGroup, progress: Progress, observation: Observation, more: bool
) -> FinishedRun:
    observation.mark(run.folder, progress.note)
    options = [*run.options, *observation.train_options]
    try:
        with (
            metrics_export(run.folder, observation.log_to, progress.note),
            progress.run(run.config, run.folder, title) as on_tick,
        ):
            nodes.launch(run.config, run.folder, "train", options, on_tick)
    except (PodiumError, Interrupted) as error:
        if not isinstance(error, Interrupted) or run.folder.read_summary() is None:
            raise collect_failure(run, error) from None
        if more:
            result = _collect_unchanged(run, nodes, progress).result
            raise Interrupted(f"interrupted just after the end of a run; its result is {result}") from None
        clear_stop_signal()
    finished = _collect_unchanged(run, nodes, progress)
    if shortfall := finished.shortfall(run.config):
        nodes.fail(shortfall, exit_code=1)
    return finished


def _collect_unchanged(run: PreparedRun, nodes: NodeGroup, progress: Progress) -> FinishedRun:
    """Collect a run that has ended; DataChangedError if its data was changed during the run, so it is not a result."""
    try:
        nodes.data.require_unchanged()
    except DataChangedError as error:
        raise collect_failure(run, error) from None
    return collect(run, progress.note)


def new_set_folder(config: RunConfig) -> Path:
    """Return the folder of a set of runs that begins now, runs/SYSTEM/DATE_TIME."""
    return RUNS / config.system / datetime.now().strftime("%Y-%m-%d_%H-%M-%S_%f")


def resolve_run_folder(folder: Path) -> RunFolder:
    """Resolve a path to a run: relative to the current folder if it exists there, else to the working folder."""
    return RunFolder((folder if folder.exists() else WORKING_FOLDER / folder).resolve())


def system_lock(system: str) -> AbstractContextManager[int]:
    """Lock a system's folder runs/SYSTEM, since the results of two concurrent sets would mix.

    UsageError if another process has locked it.
    """
    folder = make_folder(RUNS / system)
    message = f"{folder}: another `podium run` or `podium sweep` of this system is running; wait for its end"
    return exclusive_lock(folder / ".lock", message)
