"""Sets of runs and resumed runs, from the data to the checker's verdict, with a script as the implementation."""

import fcntl
import json
import multiprocessing
import os
import shutil
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from benchmarks.bert import shard as shard_module
from benchmarks.bert.checkpoint.names import podium_shapes
from benchmarks.bert.checkpoint.podium import write_podium_checkpoint
from benchmarks.bert.checkpoint.weights import Weights
from benchmarks.bert.length_index import FILE
from benchmarks.bert.manifest import MANIFEST
from benchmarks.bert.preparation.tokenization import Vocabulary
from benchmarks.bert.samples import gather
from benchmarks.bert.shard import Shard, write_shard
from benchmarks.bert.sizes import LARGE, TINY, Size
from benchmarks.bert.store import SampleStore, update_manifest
from podium.config.load import load_resolved, write_resolved
from podium.config.run_data import read_run_data
from podium.config.run_folder import FACTS, RunFolder
from podium.config.schema import DataSettings, RunConfig
from podium.core.errors import Interrupted, PodiumError, StoppedAfterSaving, UsageError, WorkError
from podium.core.files import sha256_of
from podium.core.locks import shared_lock
from podium.launch import launch, page_cache
from podium.launch.node_group import NodeGroup
from podium.launch.page_cache import Cleared
from podium.mllog.compliance import check_compliance
from podium.mllog.read import read_log
from podium.run.collect import FinishedRun
from podium.run.observation import Observation
from podium.run.progress import Progress
from podium.run.requeue import JobRecord
from podium.run.results import close_orphaned_runs
from podium.run.run_set import RunRequest, execute, resume, run_set, unpublished_reason
from podium.run.set_record import EndedRun, SetRecord, read_set, write_set
from podium.run.source import Source, current_source, read_source
from tests.podium.run.conftest import CHECKPOINTS

QUIET = Progress(Console(quiet=True))


pytestmark = pytest.mark.usefixtures("home")


@pytest.fixture
def no_data(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The data folder of a test for which nothing is prepared yet."""
    monkeypatch.setattr("podium.run.data.DATA", home / "data")
    return home / "data"


@pytest.fixture
def official_verdict(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs the official checker, which is replaced elsewhere since it takes seconds for all rulesets."""
    monkeypatch.setattr("podium.run.collect.check_compliance", check_compliance)


def test_runs_become_results_with_different_seeds(
    home: Path, open_config: RunConfig, implementation: Any, request: pytest.FixtureRequest
) -> None:
    """A set's logs stay in its folder; results/ has copies of the last set and names it."""
    implementation()
    config, results = open_config.model_copy(update={"seed": None}), home / "results" / "laptop"
    runs = list(run_set(config, 2, QUIET))
    folder = runs[0].folder.parent
    assert [run.result for run in runs] == [folder / f"result_{n}.txt" for n in (0, 1)]
    assert [run.published for run in runs] == [results / "bert" / f"result_{n}.txt" for n in (0, 1)]
    assert all(run.reached_target and run.compliant for run in runs)
    seeds = [load_resolved(run.folder / "config.yaml").seed for run in runs]
    assert seeds == [run.seed for run in runs]
    assert seeds[0] != seeds[1]
    assert load_resolved(runs[0].folder / "config.yaml").data.kind == "store"
    assert runs[0].folder.parent == runs[1].folder.parent
    assert all(read_source(RunFolder(run.folder).source) == current_source() for run in runs)
    assert not (runs[0].folder / "result.partial.txt").exists()
    record = read_set(folder)
    assert record is not None and record.complete and (record.system, record.runs) == ("laptop", 2)
    assert [(run.status, run.sha256) for run in record.ended] == [
        ("success", sha256_of(folder / f"result_{number}.txt")) for number in (0, 1)
    ]
    logs = {path: path.read_bytes() for path in folder.glob("result_*.txt")}
    request.getfixturevalue("official_verdict")
    (run,) = run_set(config, 1, QUIET)
    assert run.compliant and run.published and not runs[0].published
    assert [path.name for path in (results / "bert").iterdir()] == ["result_0.txt"]
    assert str(run.folder.parent) in (results / "set.json").read_text(encoding="utf-8")
    assert {path: path.read_bytes() for path in folder.glob("result_*.txt")} == logs and len(logs) == 2
    assert sorted(path.name for path in results.iterdir()) == ["bert", "set.json"]
    assert not list((home / "runs").rglob("replaced_results"))  # they were copies


def test_profiled_runs_are_no_results(home: Path, open_config: RunConfig, implementation: Any) -> None:
    implementation()
    (run,) = run_set(open_config, 1, QUIET, observation=Observation(profile_steps=2))
    assert run.result == run.folder / "result.profiled.txt" and not (home / "results" / "laptop" / "bert").exists()
    record = read_set(run.folder.parent)
    assert record is not None and not record.ended[0].is_result
    (next_run,) = run_set(open_config, 1, QUIET)
    assert next_run.published


@pytest.mark.parametrize(("trace", "note"), [(True, "The profile is in "), (False, "ended before tracing began: no ")])
def test_a_profile_is_announced_only_if_there_is_one(
    open_config: RunConfig, implementation: Any, trace: bool, note: str
) -> None:
    then = "(folder / 'profile').mkdir(); (folder / 'profile/rank_0.json.gz').write_text('')" if trace else ""
    implementation(then=then)
    console = Console(record=True, quiet=False, width=200, file=StringIO())
    list(run_set(open_config, 1, Progress(console), observation=Observation(profile_steps=2)))
    assert note in console.export_text()


def test_a_run_of_too_few_steps_to_profile_is_refused(home: Path) -> None:
    few = RunRequest("laptop", ["max_samples=192"], observation=Observation(profile_steps=3))
    with pytest.raises(UsageError, match=r"--profile 3: .* needs 13, and the run has 12 .*max_samples from 208"):
        _ = few.config
    assert RunRequest("laptop", ["max_samples=208"], observation=Observation(profile_steps=3)).config


def test_errors_name_the_folder_of_the_run(home: Path, open_config: RunConfig, implementation: Any) -> None:
    implementation("block_start", then="raise SystemExit(3)", summarise=False)
    with pytest.raises(WorkError) as caught:
        list(run_set(open_config, 1, QUIET))
    assert caught.value.run_folder is not None and caught.value.run_folder.name == "run_0"


def test_options_are_passed_to_a_container_and_to_the_ranks() -> None:
    observation = Observation(("wandb", "mlflow"), profile_steps=3, profile_all_ranks=True)
    assert observation.train_options == ["--profile", "3", "--profile-all-ranks"]
    assert observation.options == ["--log-to", "wandb,mlflow", "--profile", "3", "--profile-all-ranks"]
    assert Observation().options == Observation().train_options == []


@pytest.mark.parametrize("seed", [0, 7])
def test_a_fixed_seed_is_used(open_config: RunConfig, implementation: Any, seed: int) -> None:
    implementation()
    (run,) = run_set(open_config.model_copy(update={"seed": seed}), 1, QUIET)
    assert run.seed == load_resolved(run.folder / "config.yaml").seed == seed


def content(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_failed_run_is_recorded_as_aborted(
    home: Path, open_config: RunConfig, implementation: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And results/ is not changed."""
    implementation()
    list(run_set(open_config, 2, QUIET))
    before, notes = content(home / "results"), list[str]()
    (home / "sample.txt").unlink()
    implementation("block_start", then="sys.exit(3)", summarise=False)
    monkeypatch.setattr(QUIET, "note", notes.append)
    with pytest.raises(
        WorkError, match=r"ended with exit code 3, .*; the status in its log is aborted: .*/result_0\.txt$"
    ) as caught:
        list(run_set(open_config, 3, QUIET))
    result = Path(str(caught.value).rpartition(": ")[2])
    assert [e.metadata["status"] for e in read_log(result).events if e.key == "run_stop"] == ["aborted"]
    assert notes[-1] == (
        f"The set is incomplete, it ended in run 1 of 3: its logs are in {result.parent}, and {home}/results/laptop "
        "is unchanged"
    )
    assert content(home / "results") == before
    record = read_set(result.parent)
    assert record is not None and not record.complete
    assert record.ended == (EndedRun(0, "aborted", "result_0.txt", sha256_of(result)),)


def test_interrupted_or_unsuccessful_sets_are_not_published(
    home: Path, open_config: RunConfig, implementation: Any, summary: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    implementation()
    list(run_set(open_config, 1, QUIET))
    before, notes = content(home / "results"), list[str]()
    (home / "sample.txt").unlink()
    implementation("block_start", then="os.kill(os.getppid(), signal.SIGINT); time.sleep(60)")
    with pytest.raises(Interrupted, match=r"the status in its log is aborted: .*/runs/laptop/.*/result_0\.txt$"):
        list(run_set(open_config, 1, QUIET))
    (home / "sample.txt").unlink()
    summary["reached_target"] = False  # as with a mistyped learning rate
    implementation()
    monkeypatch.setattr(QUIET, "note", notes.append)
    (run,) = run_set(open_config, 1, QUIET)
    assert notes[-1].startswith(f"No run succeeded: the logs are in {run.folder.parent}, and ")
    assert content(home / "results") == before and run.published is None and run.result.is_file()


DONE = EndedRun(0, "success", "result_0.txt", "0" * 64)


@pytest.mark.parametrize(
    ("ended", "shortfalls", "reason"),
    [
        ([DONE], [""], ""),
        ([DONE, replace(DONE, number=1, status="aborted")], ["", "missed"], ""),
        ([replace(DONE, status="aborted")], [""], "No run succeeded"),  # without a target there is no shortfall
        ([DONE], ["the checker finds errors"], "No run succeeded"),
        (
            [DONE, replace(DONE, number=1, log="run_1/result.restarted.txt", restarted=True)],
            ["", ""],
            "The log of run 1",
        ),
        ([DONE, replace(DONE, number=1, fault="its data was changed")], ["", ""], "The log of run 1 is not a result"),
    ],
)
def test_sets_of_results_with_a_success_are_published(
    tmp_path: Path, ended: list[EndedRun], shortfalls: list[str], reason: str
) -> None:
    write_set(tmp_path, SetRecord("laptop", len(ended), tuple(ended)))
    assert unpublished_reason(tmp_path, shortfalls).startswith(reason)
    assert bool(unpublished_reason(tmp_path, shortfalls)) == bool(reason)


def test_error_of_unwritable_results_names_the_logs(home: Path, open_config: RunConfig, implementation: Any) -> None:
    """As if results/ became read-only during a run."""
    results = home / "results" / "laptop"
    implementation(then=f"Path({str(results)!r}).touch()")
    runs = run_set(open_config, 1, QUIET)
    run = next(runs)
    with pytest.raises(WorkError) as caught:
        next(runs)
    advice = f"no run is lost: the set is complete, and can be packaged from its logs {run.folder.parent}/result_*.txt"
    assert advice in str(caught.value)
    assert read_log(run.result).status == "success" and caught.value.exit_code == 1


def killed(home: Path, config: RunConfig, implementation: Any, then: str = "", runs: int = 2) -> RunFolder:
    """Make a run whose `podium run` is killed by SIGKILL during training; with a checkpoint, the run then saves it."""
    if then:
        failure = json.dumps({"exit_code": 143, "message": "asked to stop"})
        then += f"(folder / 'failure.json').write_text({failure!r})"
    implementation("block_start", then=f"{then}\nos.kill(os.getppid(), signal.SIGKILL)", summarise=False)
    before = set((home / "runs").rglob("run_0"))
    run_until_killed(home, lambda: list(run_set(config, runs, QUIET)))
    (path,) = set((home / "runs").rglob("run_0")) - before
    return RunFolder(path)


def run_until_killed(home: Path, command: Callable[[], object]) -> None:
    """Run a command in a process that is killed by SIGKILL, and wait until the processes of its run have ended too."""
    process = multiprocessing.get_context("fork").Process(target=command)
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    for path in (home / "runs").rglob("run_0/.lock"):
        with path.open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
    (home / "sample.txt").unlink()


def test_run_of_a_killed_command_is_closed_by_the_next(
    home: Path, open_config: RunConfig, implementation: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    orphan = killed(home, open_config, implementation)
    result, notes = orphan.path.parent / "result_0.txt", list[str]()
    assert orphan.log.is_file() and not result.exists()
    implementation()
    monkeypatch.setattr(QUIET, "note", notes.append)
    (run,) = run_set(open_config, 1, QUIET)
    assert notes[0] == (
        f"{orphan.path}: was left open when its `podium run` was killed; the status in its log is aborted: {result}"
    )
    assert read_log(result).status == "aborted" and not orphan.log.exists()
    record = read_set(orphan.path.parent)
    assert record is not None and not record.complete
    assert record.ended == (EndedRun(0, "aborted", "result_0.txt", sha256_of(result)),)
    assert run.published is not None
    notes.clear()
    list(run_set(open_config, 1, QUIET))
    assert not [note for note in notes if "killed" in note]


def test_killed_run_with_a_checkpoint_is_closed_and_can_be_resumed(
    home: Path, open_config: RunConfig, implementation: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    orphan, notes = killed(home, open_config, implementation, then=CHECKPOINT), list[str]()
    implementation()
    monkeypatch.setattr(QUIET, "note", notes.append)
    list(run_set(open_config, 1, QUIET))
    assert notes[0].endswith(f"result_0.txt; `podium run laptop --resume {orphan.path}` can still resume it")
    aborted = orphan.path.parent / "result_0.txt"
    assert aborted.is_file()
    run = resume(orphan, "laptop", QUIET)
    assert run.reached_target and run.result == orphan.restarted_result and aborted.is_file()
    record = read_set(orphan.path.parent)
    assert record is not None
    assert [(entry.log, entry.restarted, entry.status) for entry in record.ended if entry.log] == [
        ("result_0.txt", False, "aborted"),
        ("run_0/result.restarted.txt", True, "success"),
    ]
    assert record.by_number[0].restarted


def test_killed_resumed_run_is_closed_as_restarted(home: Path, open_config: RunConfig, implementation: Any) -> None:
    stopped = saved(home, open_config, implementation)
    implementation("block_start", then="os.kill(os.getppid(), signal.SIGKILL)", summarise=False)
    run_until_killed(home, lambda: resume(stopped, "laptop", QUIET))
    assert stopped.log.is_file() and not stopped.restarted_result.exists()
    implementation()
    list(run_set(open_config, 1, QUIET))
    assert read_log(stopped.restarted_result).status == "aborted" and not stopped.log.exists()
    assert resume(stopped, "laptop", QUIET).reached_target
    record = read_set(stopped.path.parent)
    assert record is not None
    entries = [(entry.status, entry.restarted) for entry in record.ended if entry.log]
    assert entries == [("aborted", True), ("success", True)]


def test_resume_closes_other_orphaned_runs(home: Path, open_config: RunConfig, implementation: Any) -> None:
    orphan = killed(home, open_config, implementation, then=CHECKPOINT)
    other = RunFolder(shutil.copytree(orphan.path.parent, orphan.path.parents[1] / "other") / "run_0")
    implementation()
    assert resume(orphan, "laptop", QUIET).reached_target
    records = [read_set(folder.path.parent) for folder in (orphan, other)]
    assert [[run.restarted for run in record.ended if run.log] for record in records if record] == [[True], [False]]
    assert not (orphan.path.parent / "result_0.txt").exists() and (other.path.parent / "result_0.txt").is_file()


def test_successful_run_of_a_killed_command_is_not_a_result(
    home: Path, open_config: RunConfig, implementation: Any
) -> None:
    """Because its data was not compared after the run."""
    orphan = killed(home, open_config, implementation)
    implementation()
    (successful,) = run_set(open_config, 1, QUIET)
    write_set(orphan.path.parent, SetRecord("laptop", 1))
    (orphan.path.parent / "result_0.txt").unlink()
    shutil.copy(successful.result, orphan.log)
    close_orphaned_runs(orphan.path.parents[1], lambda text: None)
    record = read_set(orphan.path.parent)
    assert record is not None and record.ended[0].status == "success" and not record.ended[0].is_result


def test_run_without_run_start_has_no_result_file(home: Path, open_config: RunConfig, implementation: Any) -> None:
    implementation("init_start", then="sys.exit(3)", summarise=False)
    with pytest.raises(WorkError, match=r"ended with exit code 3, .*; it had not reached run_start: no result file$"):
        list(run_set(open_config, 1, QUIET))
    assert not list((home / "results").rglob("*.txt"))


def test_run_that_fails_after_run_stop_keeps_its_status(
    home: Path, open_config: RunConfig, implementation: Any
) -> None:
    implementation(then="sys.exit(3)", summarise=False)
    with pytest.raises(WorkError) as caught:
        list(run_set(open_config, 1, QUIET))
    (result,) = (home / "runs").rglob("result_0.txt")
    assert [e.metadata["status"] for e in read_log(result).events if e.key == "run_stop"] == ["success"]
    assert str(caught.value).endswith(f"; the status in its log is success: {result}")
    assert not list((home / "results").rglob("*.txt"))


@pytest.mark.parametrize(
    ("verdict", "target", "shortfall"),
    [
        ("FAILED", 0.72, "the official compliance checker finds errors in "),
        ("", 0.72, "the target accuracy of 0.72 was not reached within max_samples "),
        ("", None, ""),
    ],
)
def test_other_nodes_exit_with_code_1_after_a_shortfall(
    open_config: RunConfig,
    implementation: Any,
    summary: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    verdict: str,
    target: float | None,
    shortfall: str,
) -> None:
    nodes, failures = NodeGroup(), list[tuple[str, int]]()
    monkeypatch.setattr(nodes, "fail", lambda message, exit_code: failures.append((message, exit_code)))
    monkeypatch.setattr("podium.run.run_set.node_group", lambda *_: nullcontext(nodes))
    monkeypatch.setattr("podium.run.collect.check_compliance", lambda result: {"5.0.0": verdict})
    summary["reached_target"] = bool(verdict)
    implementation()
    (run,) = run_set(open_config.model_copy(update={"target_accuracy": target}), 1, QUIET)
    assert [(message.startswith(shortfall), code) for message, code in failures] == [(True, 1)] * bool(shortfall)
    assert run.shortfall(open_config.model_copy(update={"target_accuracy": target})).startswith(shortfall)


def test_json_of_a_finished_run(tmp_path: Path, summary: dict[str, Any]) -> None:
    run = FinishedRun(tmp_path / "result_0.txt", tmp_path, 3, summary, {"4.1.0": "", "5.0.0": "FAILED"}, 0.72)
    assert (run.reached_target, run.compliant) == (True, False)
    assert run.as_json()["compliance"] == {"4.1.0": True, "5.0.0": False}


def test_concurrent_sets_of_a_system_are_a_usage_error(home: Path, open_config: RunConfig, implementation: Any) -> None:
    implementation()
    runs = run_set(open_config, 2, QUIET)
    next(runs)
    with pytest.raises(UsageError, match="another `podium run` or `podium sweep` of this system"):
        next(run_set(open_config, 1, QUIET))
    next(runs)


# Resuming runs


def checkpointed(batches: int, samples: int) -> str:
    """Return code that leaves a checkpoint, one of CHECKPOINTS."""
    return f"""
path = folder / "checkpoints" / "batch_{batches:08}"
path.mkdir(parents=True, exist_ok=True)
(path / {FACTS!r}).write_text((folder / "facts_of_{samples}").read_text())
"""


CHECKPOINT = checkpointed(*CHECKPOINTS[0])
SAVE = (
    CHECKPOINT
    + """
(folder / "failure.json").write_text(json.dumps({"exit_code": 143, "message": "asked to stop"}))
sys.exit(143)
"""
)


@pytest.mark.usefixtures("official_verdict")
def test_saved_run_is_not_a_result_and_can_be_resumed(home: Path, open_config: RunConfig, implementation: Any) -> None:
    implementation("block_start", then=SAVE, summarise=False)
    with pytest.raises(StoppedAfterSaving) as caught:
        list(run_set(open_config, 3, QUIET))
    (folder,) = (home / "runs").rglob("run_0")
    message = f"asked to stop; `podium run laptop --resume {folder}` resumes the run after its first 1,234 samples"
    assert str(caught.value) == message
    assert not list((home / "results").rglob("*.txt"))
    (home / "sample.txt").unlink()
    implementation(
        then="(folder / 'restarts.jsonl').write_text('{}\\n'); assert not (folder / 'failure.json').exists()"
    )
    run = resume(RunFolder(folder), "laptop", QUIET)
    assert run.folder == folder and run.seed == load_resolved(folder / "config.yaml").seed == 7 and run.reached_target
    assert run.result == folder / "result.restarted.txt"  # a name that submissions ignore
    assert run.compliant
    assert not list((home / "results").rglob("*.txt"))
    with pytest.raises(UsageError, match="this run is complete and cannot be resumed; start another one"):
        resume(RunFolder(folder), "laptop", QUIET)


@pytest.fixture
def request_in_job(home: Path, open_config: RunConfig, monkeypatch: pytest.MonkeyPatch) -> RunRequest:
    """The request of each start of a Slurm job that requeues itself, on its first node."""
    for module in ("podium.run.requeue", "podium.launch.container"):
        monkeypatch.setattr(f"{module}.WORKING_FOLDER", home)
    job = JobRecord(Path("runs/laptop/slurm-17"))
    request = RunRequest("laptop", ["bert.seed=7", "launch.binding=none"], recipe="indexed", job=job)
    vars(request)["config"] = open_config
    return request


def test_requeued_job_resumes_its_run_until_it_ends(
    home: Path, request_in_job: RunRequest, implementation: Any
) -> None:
    """It resumes its own run, not the newest one, and with launch settings only; its log is not a result."""
    request, stopped = request_in_job, home / "runs/laptop/slurm-17.stopped"
    assert request.in_requeued_job() is request
    implementation("block_start", then=SAVE, summarise=False)
    with pytest.raises(StoppedAfterSaving):
        list(execute(request, QUIET))
    (folder,) = (home / "runs").rglob("run_0")
    recorded = folder.relative_to(home)
    assert stopped.read_text(encoding="utf-8") == f"0 1234 {recorded}\n"
    shutil.copytree(folder, home / "runs/laptop/9999-12-31_00-00-00/run_0")
    assert replace(request, node_rank=1).in_requeued_job().resumed is None  # other nodes are given the run's folder
    again = request.in_requeued_job()
    assert (again.resumed, again.recipe, again.settings) == (RunFolder(folder), None, ["launch.binding=none"])
    with pytest.raises(StoppedAfterSaving):
        list(execute(again, QUIET))
    assert stopped.read_text(encoding="utf-8") == f"1234 1234 {recorded}\n"
    stopped.unlink()  # as the script does before each start
    implementation(then="(folder / 'restarts.jsonl').write_text('{}\\n')")
    (run,) = execute(request.in_requeued_job(), QUIET)
    assert run.result == folder / "result.restarted.txt"
    assert not stopped.exists()
    assert not list((home / "results").rglob("*.txt"))
    with pytest.raises(UsageError, match="this run is complete and cannot be resumed"):
        list(execute(request.in_requeued_job(), QUIET))
    assert not stopped.exists()


def test_requeued_job_without_a_checkpoint_restarts_its_run(
    home: Path, request_in_job: RunRequest, implementation: Any
) -> None:
    implementation("block_start", then="os.kill(os.getppid(), signal.SIGTERM); time.sleep(60)")
    with pytest.raises(Interrupted):
        list(execute(request_in_job, QUIET))
    (folder,) = (home / "runs").rglob("run_0")
    stopped = home / "runs/laptop/slurm-17.stopped"
    assert stopped.read_text(encoding="utf-8") == f"0 0 {folder.relative_to(home)}\n"
    again = request_in_job.in_requeued_job()
    implementation()
    (run,) = execute(again, QUIET)
    assert (run.folder, run.result) == (folder, folder / "result.restarted.txt")


def test_job_with_a_failed_run_is_not_requeued(home: Path, request_in_job: RunRequest, implementation: Any) -> None:
    failure = json.dumps({"exit_code": 1, "message": "the loss is nan"})
    implementation(
        "block_start", then=f"(folder / 'failure.json').write_text({failure!r}); sys.exit(1)", summarise=False
    )
    with pytest.raises(WorkError, match=r"^the loss is nan"):
        list(execute(request_in_job, QUIET))
    assert not (home / "runs/laptop/slurm-17.stopped").exists()


def test_job_with_a_missing_run_folder_is_an_error(home: Path, request_in_job: RunRequest) -> None:
    record = home / "runs/laptop/slurm-17.run"
    record.parent.mkdir(parents=True)
    for text, found in (("runs/laptop/gone/run_0\n", "runs/laptop/gone/run_0"), ("", "nothing")):
        record.write_text(text, encoding="utf-8")
        message = f"slurm-17.run: names {found}, which is not the folder of a run; resume the run"
        with pytest.raises(WorkError, match=message):
            request_in_job.in_requeued_job()


def test_interrupted_run_resumes_from_its_previous_checkpoint(
    home: Path, open_config: RunConfig, implementation: Any
) -> None:
    implementation("block_start", then=CHECKPOINT + "os.kill(os.getppid(), signal.SIGTERM); time.sleep(60)")
    with pytest.raises(
        StoppedAfterSaving, match=r"^interrupted: stopped before the end; `podium run laptop --resume .* samples$"
    ):
        list(run_set(open_config, 1, QUIET))
    assert not list((home / "results").rglob("*.txt"))


def test_run_that_ends_during_an_interruption_is_finished(
    home: Path, open_config: RunConfig, implementation: Any
) -> None:
    """The run is collected, but the set's next run is not started; a job that requeues itself is not requeued."""
    implementation(
        then="signal.signal(signal.SIGTERM, signal.SIG_IGN); os.kill(os.getppid(), signal.SIGTERM); time.sleep(0.4)"
    )
    (run,) = run_set(open_config, 1, QUIET)
    assert run.reached_target and run.result.name == "result_0.txt"
    with pytest.raises(Interrupted, match=r"^interrupted just after the end of a run; its result is .*result_0\.txt$"):
        list(run_set(open_config, 2, QUIET))
    assert len(list((home / "runs").rglob("run_*"))) == 2


def test_error_of_a_killed_run_has_the_resume_command(home: Path, open_config: RunConfig, implementation: Any) -> None:
    implementation("block_start", then=CHECKPOINT + "sys.exit(3)", summarise=False)
    with pytest.raises(
        WorkError, match=r"; the status in its log is aborted: .*; `podium run laptop --resume .* 1,234 samples$"
    ):
        list(run_set(open_config, 1, QUIET))


def test_run_that_would_fail_again_has_no_resume_command(
    home: Path, open_config: RunConfig, implementation: Any
) -> None:
    failure = json.dumps({"exit_code": 1, "message": "the loss is nan"})
    fail = f"(folder / 'not_finite.json').touch(); (folder / 'failure.json').write_text({failure!r}); sys.exit(1)"
    implementation("block_start", then=CHECKPOINT + fail, summarise=False)
    with pytest.raises(WorkError, match=r"^the loss is nan; the status in its log is aborted: ") as caught:
        list(run_set(open_config, 1, QUIET))
    assert "--resume" not in str(caught.value)


DISK = "result.partial.txt: cannot be written (No space left on device)"
NEWEST = "batch_00000005/rank_0.safetensors: cannot be read (too short); remove this checkpoint's folder"


@pytest.mark.parametrize(
    ("failure", "checkpoints", "resumed_samples"),
    [
        (DISK, [(3, 1234), (5, 2468)], "2,468"),  # the newest is usable
        (NEWEST, [(3, 1234), (5, 2468)], "1,234"),  # the one before it is usable
        (NEWEST, [(5, 2468)], ""),
        (DISK, [], ""),
    ],
)
def test_fixable_failure_resumes_from_the_newest_usable_checkpoint(
    home: Path,
    open_config: RunConfig,
    implementation: Any,
    failure: str,
    checkpoints: list[tuple[int, int]],
    resumed_samples: str,
) -> None:
    subfolder = "'checkpoints/'" if failure.startswith("batch") else "''"
    fail = f"message = str(folder / ({subfolder} + {failure!r}))\n"
    fail += "(folder / 'failure.json').write_text(json.dumps({'exit_code': 1, 'message': message})); sys.exit(1)"
    implementation("block_start", then="".join(checkpointed(*each) for each in checkpoints) + fail, summarise=False)
    with pytest.raises(WorkError) as caught:
        list(run_set(open_config, 1, QUIET))
    (folder,) = (home / "runs").rglob("run_0")
    message = str(caught.value)
    assert failure in message and "; the status in its log is aborted: " in message
    hint = (
        f"; once that is fixed, `podium run laptop --resume {folder}` resumes the run after its first "
        f"{resumed_samples} samples"
    )
    assert message.endswith(hint) if resumed_samples else "--resume" not in message


def test_invalid_resume_fails_before_the_rendezvous(
    home: Path, open_config: RunConfig, implementation: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    implementation("block_start", then="sys.exit(3)", summarise=False)
    with pytest.raises(WorkError):
        list(run_set(open_config, 1, QUIET))
    (folder,) = (home / "runs").rglob("run_0")
    monkeypatch.setattr("podium.run.run_set.node_group", lambda *_: pytest.fail("nodes are waited for"))
    with pytest.raises(UsageError, match="contains no complete checkpoint"):
        resume(RunFolder(folder), "laptop", QUIET)
    with pytest.raises(UsageError, match=r"launch\.nodes: found 2, but the run was started with 1"):
        resume(RunFolder(folder), "laptop", QUIET, ["launch.nodes=2", "launch.rendezvous=127.0.0.1:29500"])
    RunFolder(folder).checkpoints.mkdir()
    (folder / "summary.json").write_text("{}", encoding="utf-8")
    with pytest.raises(UsageError, match="is complete and cannot be resumed"):
        resume(RunFolder(folder), "laptop", QUIET)


def test_resume_during_another_run_fails_before_the_rendezvous(
    home: Path, open_config: RunConfig, implementation: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    implementation("block_start", then=SAVE, summarise=False)
    with pytest.raises(StoppedAfterSaving):
        list(run_set(open_config, 1, QUIET))
    (folder,) = (home / "runs").rglob("run_0")
    (home / "sample.txt").unlink()
    implementation()
    runs = run_set(open_config, 2, QUIET)
    next(runs)
    monkeypatch.setattr("podium.run.run_set.node_group", lambda *_: pytest.fail("nodes are waited for"))
    with pytest.raises(UsageError, match="another `podium run` or `podium sweep` of this system"):
        resume(RunFolder(folder), "laptop", QUIET)
    runs.close()


def test_run_completed_by_another_process_is_not_resumed(
    home: Path, open_config: RunConfig, implementation: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    implementation("block_start", then=SAVE, summarise=False)
    with pytest.raises(StoppedAfterSaving):
        list(run_set(open_config, 1, QUIET))
    (folder,) = (home / "runs").rglob("run_0")

    @contextmanager
    def complete_before_the_lock(_: str) -> Iterator[None]:
        (folder / "summary.json").write_text("{}", encoding="utf-8")
        yield

    monkeypatch.setattr("podium.run.run_set.system_lock", complete_before_the_lock)
    with pytest.raises(UsageError, match="is complete and cannot be resumed"):
        resume(RunFolder(folder), "laptop", QUIET)


def test_launch_settings_of_a_resume_are_written_to_the_folder(
    home: Path, open_config: RunConfig, implementation: Any
) -> None:
    implementation("block_start", then=SAVE, summarise=False)
    with pytest.raises(StoppedAfterSaving):
        list(run_set(open_config, 1, QUIET))
    (folder,) = (home / "runs").rglob("run_0")
    (home / "sample.txt").unlink()
    before = load_resolved(folder / "config.yaml")
    implementation(then="(folder / 'restarts.jsonl').write_text('{}\\n')")
    resume(RunFolder(folder), "laptop", QUIET, ["launch.rendezvous=b:29500", "launch.max_restarts=2"])
    launch = before.launch.model_copy(update={"rendezvous": "b:29500", "max_restarts": 2})
    assert load_resolved(folder / "config.yaml") == before.model_copy(update={"launch": launch})


def test_resume_of_an_unsuitable_folder_is_a_usage_error(
    home: Path, open_config: RunConfig, implementation: Any
) -> None:
    implementation("block_start", then="sys.exit(3)", summarise=False)
    with pytest.raises(WorkError):
        list(run_set(open_config, 1, QUIET))
    (folder,) = (home / "runs").rglob("run_0")
    with pytest.raises(
        UsageError, match=r"contains no complete checkpoint to resume from; .* checkpoint\.every_samples"
    ):
        resume(RunFolder(folder), "laptop", QUIET)
    with pytest.raises(UsageError, match="is a run of laptop, not of h200_1x; name laptop"):
        resume(RunFolder(folder), "h200_1x", QUIET)
    with pytest.raises(UsageError, match=r"holds no config\.yaml; name the folder of a run"):
        resume(RunFolder(folder.parent), "laptop", QUIET)


def saved(home: Path, config: RunConfig, implementation: Any) -> RunFolder:
    """Make a run that was stopped and has saved a checkpoint."""
    implementation("block_start", then=SAVE, summarise=False)
    before = set((home / "runs").rglob("run_0"))
    with pytest.raises(StoppedAfterSaving):
        list(run_set(config, 1, QUIET))
    (path,) = set((home / "runs").rglob("run_0")) - before
    (home / "sample.txt").unlink()
    return RunFolder(path)


def test_failed_resume_leaves_the_results_of_another_set(
    home: Path, open_config: RunConfig, implementation: Any
) -> None:
    """A rank is killed before the run is marked as restarted."""
    stopped = saved(home, open_config, implementation)
    implementation()
    (other,) = run_set(open_config, 1, QUIET)
    result, published = other.result.read_bytes(), content(home / "results")
    assert stopped.log.is_file()  # still open, since the run was stopped to be resumed
    (home / "sample.txt").unlink()
    implementation("block_start", then="os.kill(os.getpid(), signal.SIGKILL)", summarise=False)
    with pytest.raises(
        WorkError, match=rf"killed by SIGKILL.*; the status in its log is aborted: {stopped.restarted_result}; "
    ):
        resume(stopped, "laptop", QUIET)
    assert not stopped.restarts
    assert other.result.read_bytes() == result
    assert content(home / "results") == published and other.published


def test_run_with_live_processes_is_not_resumed(home: Path, open_config: RunConfig, implementation: Any) -> None:
    stopped = saved(home, open_config, implementation)
    with shared_lock(stopped.lock), pytest.raises(UsageError, match="of this run are still running, for example"):
        resume(stopped, "laptop", QUIET)
    assert not stopped.was_restarted and stopped.read_failure()


def test_edited_configuration_is_a_usage_error(home: Path, open_config: RunConfig, implementation: Any) -> None:
    stopped = saved(home, open_config, implementation)
    config = load_resolved(stopped.config)
    write_resolved(config.model_copy(update={"global_batch_size": 32}), stopped.config)
    with pytest.raises(UsageError, match=rf"^{stopped.config}: global_batch_size is 32 and was 16, when .*restore it"):
        resume(stopped, "laptop", QUIET)
    assert not stopped.was_restarted and stopped.read_failure()


def test_unwritable_runs_folder_is_an_error(home: Path, open_config: RunConfig, implementation: Any) -> None:
    implementation()
    (home / "runs" / "laptop" / ".lock").mkdir(parents=True)
    with pytest.raises(WorkError, match=r"\.lock: cannot be written \(Is a directory\); check its permissions"):
        list(run_set(open_config, 1, QUIET))


# Data


def shard_of(data: Path) -> Path:
    return next(data.rglob("part-00001.h5"))


def overwrite_tokens(shard: Path) -> None:
    """Change a token of the first sample in place, without a change of the file's time."""
    tokens, state = Shard(shard).read(0).token_ids.tobytes(), shard.stat()
    with shard.open("r+b") as file:
        content = file.read()
        file.seek(content.index(tokens))
        file.write(bytes([content[content.index(tokens)] ^ 1]))
    os.utime(shard, ns=(state.st_atime_ns, state.st_mtime_ns))


def replace_shard(shard: Path) -> None:
    """Replace a shard by another valid one, and update the manifest."""
    opened = Shard(shard)
    write_shard(shard, gather(opened.samples, np.arange(len(opened) - 1)), opened.origin)
    update_manifest(shard.parent)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (overwrite_tokens, r"part-00001\.h5: the shard cannot be used: its content has the SHA-256"),
        (lambda shard: shard.unlink(), r"part-00001\.h5 is missing, manifest\.json has it"),
        (
            replace_shard,
            r"^data\.store: .*/part-00001\.h5: its samples is \d+, the first run of this set has \d+;",
        ),
    ],
)
def test_data_changed_between_two_runs_is_an_error(
    home: Path, no_data: Path, open_config: RunConfig, implementation: Any, change: Any, message: str
) -> None:
    implementation()
    runs = run_set(open_config, 2, QUIET)
    first = next(runs)
    recorded = read_run_data(RunFolder(first.folder).data)
    assert recorded is not None and recorded.manifests.keys() == {"data.store", "data.evaluation_store"}
    assert recorded.manifests["data.store"] == SampleStore(shard_of(no_data).parent).manifest
    change(shard_of(no_data))
    with pytest.raises(WorkError, match=message):
        next(runs)
    assert len(list((home / "runs").rglob("result_*.txt"))) == 1


def test_run_with_changed_data_is_not_a_result(
    home: Path, no_data: Path, open_config: RunConfig, implementation: Any
) -> None:
    """A change of a file's time counts as a change of the data, a change of its permissions does not."""
    implementation()
    runs = run_set(open_config, 3, QUIET)
    next(runs)
    shard = shard_of(no_data)
    (home / "sample.txt").unlink()
    implementation(then=f"os.chmod({str(shard)!r}, 0o640)")
    next(runs)
    (home / "sample.txt").unlink()
    implementation(then=f"os.utime({str(shard)!r})")
    with pytest.raises(WorkError, match=r"^the data was changed during the run: .*part-00001\.h5 is not the file.*: "):
        next(runs)
    assert len(list((home / "runs").rglob("result_*.txt"))) == 2
    (log,) = (home / "runs").rglob("run_2/result.changed_data.txt")
    record = read_set(log.parents[1])
    assert record is not None and record.complete and [run.is_result for run in record.ended] == [True, True, False]
    assert not list((home / "results").rglob("*.txt"))


def test_resume_requires_the_original_data(
    home: Path, no_data: Path, open_config: RunConfig, implementation: Any
) -> None:
    stopped, shard = saved(home, open_config, implementation), shard_of(no_data)
    before = {name: (shard.parent / name).read_bytes() for name in (shard.name, MANIFEST, FILE)}
    for change, message in ((overwrite_tokens, "its content has the SHA-256"), (replace_shard, "the run has")):
        change(shard)
        with pytest.raises(WorkError, match=message):
            resume(stopped, "laptop", QUIET)
        assert not stopped.was_restarted
        for name, file_content in before.items():
            (shard.parent / name).write_bytes(file_content)
    recorded = stopped.data.read_text(encoding="utf-8")
    stopped.data.write_text(recorded.replace('"samples": ', '"samples": 1', 1), encoding="utf-8")
    with pytest.raises(WorkError, match=r"data\.json: cannot be used \(it has other keys than a manifest"):
        resume(stopped, "laptop", QUIET)
    stopped.data.unlink()
    with pytest.raises(
        WorkError, match=r"facts\.json: was made on other samples than .*/data\.json lists \(data\.store, "
    ):
        resume(stopped, "laptop", QUIET)
    stopped.data.write_text(recorded, encoding="utf-8")
    implementation()
    assert resume(stopped, "laptop", QUIET).reached_target


def test_run_without_a_data_record_resumes_with_a_note(
    home: Path, open_config: RunConfig, implementation: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("podium.run.prepare.write_run_data", lambda path, data: None)
        stopped = saved(home, open_config, implementation)
    implementation()
    notes: list[str] = []
    monkeypatch.setattr(QUIET, "note", notes.append)
    assert resume(stopped, "laptop", QUIET).reached_target
    (note,) = [note for note in notes if note.startswith(f"{stopped.data} does not exist, as for runs of older")]
    assert note.endswith("whether it is the run's data is not checked") and not stopped.data.exists()


def test_resume_with_changed_code_records_both_versions(
    home: Path, open_config: RunConfig, implementation: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped, notes = saved(home, open_config, implementation), list[str]()
    first, now = current_source(), Source("1" * 64, None)
    implementation()
    monkeypatch.setattr("podium.run.prepare.current_source", lambda: now)
    monkeypatch.setattr(QUIET, "note", notes.append)
    assert resume(stopped, "laptop", QUIET).reached_target
    assert read_source(stopped.source) == replace(first, resumed=(now,))
    (note,) = [note for note in notes if "code was changed" in note]
    assert first.code[:12] in note and "resumed by code 111111111111" in note and str(stopped.source) in note


def test_run_of_an_older_layout_resumes(home: Path, open_config: RunConfig, implementation: Any) -> None:
    """A run of an older version has no record of its set and none of its code."""
    stopped = saved(home, open_config, implementation)
    (stopped.path.parent / "set.json").unlink()
    stopped.source.unlink()
    implementation()
    run = resume(stopped, "laptop", QUIET)
    assert run.result == stopped.restarted_result and run.reached_target
    assert not (stopped.path.parent / "set.json").exists() and not stopped.source.exists()


def test_samples_are_not_read_after_the_caches_are_cleared(
    home: Path, no_data: Path, open_config: RunConfig, implementation: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Order before each run: verify (once a set), write back, clear, check the residency, start the processes."""
    events: list[str] = []

    def record_calls(owner: Any, name: str, event: str) -> None:
        original = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda *args, **kwargs: (events.append(event), original(*args, **kwargs))[1])

    implementation()
    record_calls(Shard, "verify", "verify")
    record_calls(shard_module, "map_file", "read")
    record_calls(page_cache, "_write_back_and_drop", "write back and clear")
    record_calls(page_cache, "resident_bytes", "check")
    record_calls(launch, "run_processes", "start")
    list(run_set(open_config, 2, QUIET))
    shards = len([*no_data.rglob("*.h5")])
    last = max(number for number, event in enumerate(events) if event in ("read", "verify"))
    assert events.count("verify") == shards
    runs = " ".join(events[last + 1 :]).replace("write back and clear", "clear").split("start")
    assert [set(run.split()) for run in runs] == [{"clear", "check"}, {"clear", "check"}, set()]
    for run in runs[:-1]:  # a shard that is still in memory is cleared again
        assert run.split()[-shards:] == ["check"] * shards
        assert run.split().count("clear") >= shards


# The initial checkpoint


def write_checkpoint(path: Path, size: Size, vocabulary: int) -> Path:
    shapes = podium_shapes(size, vocabulary)
    write_podium_checkpoint(
        path, Weights(size, vocabulary, {name: np.zeros(shapes[name], np.float32) for name in shapes})
    )
    return path


def run_from(config: RunConfig, checkpoint: Path) -> list[FinishedRun]:
    return list(run_set(config.model_copy(update={"initial_checkpoint": checkpoint}), 1, QUIET))


def test_run_from_a_matching_checkpoint(home: Path, open_config: RunConfig, implementation: Any) -> None:
    implementation()
    (first,) = run_set(open_config, 1, QUIET)
    vocabulary = load_resolved(first.folder / "config.yaml").data.vocabulary
    assert vocabulary
    path = write_checkpoint(home / "x.safetensors", TINY, len(Vocabulary.read(vocabulary).tokens))
    (run,) = run_from(open_config, path)
    assert load_resolved(run.folder / "config.yaml").initial_checkpoint == path


@pytest.mark.parametrize("fault", ["missing", "folder", "other", "damaged", "size"])
def test_unusable_checkpoint_is_an_error_before_data_is_prepared(
    home: Path, no_data: Path, open_config: RunConfig, implementation: Any, fault: str
) -> None:
    implementation()
    path = home / "x.safetensors"
    if fault == "folder":
        path.mkdir()
    elif fault == "other":
        path.write_bytes((2).to_bytes(8, "little") + b"{}")
    elif fault == "damaged":
        path.write_bytes(b"no")
    elif fault == "size":
        write_checkpoint(path, Size("large", 1, 8, 1, 8, 1, 1), 9)
    message, error = {
        "missing": ("there is no such checkpoint; make one with `podium data checkpoint SOURCE OUT`", UsageError),
        "folder": ("is a folder; make one with `podium data checkpoint SOURCE OUT`", UsageError),
        "other": (
            "is not a Podium checkpoint; make one with `podium data checkpoint SOURCE OUT` from it",
            UsageError,
        ),
        "damaged": ("cannot be read as safetensors", WorkError),
        "size": ("lacks layers.1.qkv.weight", WorkError),
    }[fault]
    refused(open_config, path, error, message)
    assert not no_data.exists()


def refused(config: RunConfig, path: Path, error: type[PodiumError], message: str) -> None:
    """Assert that a run from this checkpoint fails with this error before a run folder is made."""
    with pytest.raises(error) as caught:
        run_from(config, path)
    assert str(caught.value).startswith(f"initial_checkpoint: {path}: ")
    assert message in str(caught.value)
    assert not list((path.parent / "runs").rglob("run_*"))


def test_checkpoint_of_another_size_or_vocabulary_is_an_error(
    home: Path, no_data: Path, open_config: RunConfig, implementation: Any
) -> None:
    implementation()
    path = write_checkpoint(home / "x.safetensors", TINY, 12)
    refused(open_config, path, UsageError, "the checkpoint has a vocabulary of 12 tokens, the vocabulary in use ")
    for name, text in (("text", "a b\nc\n\nd\ne\n"), ("vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\nb\n")):
        (home / name).write_text(text, encoding="utf-8")
    own = DataSettings(text=(home / "text",), evaluation_text=home / "text", vocabulary=home / "vocab.txt")
    shutil.rmtree(no_data)
    refused(open_config.model_copy(update={"data": own}), path, UsageError, "the vocabulary in use 7")
    assert not no_data.exists()  # known before samples are made
    large = open_config.model_copy(update={"size": LARGE.name})
    refused(large, path, UsageError, "the checkpoint is of size tiny, the model of size large")


def test_other_nodes_are_started_watched_and_clear_their_caches(
    open_config: RunConfig, implementation: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The calls of the node group in a run of several nodes."""
    calls: list[Any] = []

    class RecordingNodeGroup(NodeGroup):
        def clear_caches(self, config: RunConfig, folder: RunFolder) -> Cleared:
            calls.append(("clear", folder.config.is_file(), config.data.kind))
            return Cleared(False, "node 1: Cleared no caches")

        def start(self, folder: RunFolder, entry: str, options: Sequence[str]) -> None:
            calls.append(("start", entry, tuple(options)))

        def watch(self) -> None:
            calls.append("watch")

        def finish(self) -> None:
            calls.append("finish")

        def stop(self) -> None:
            calls.append("stop")

    @contextmanager
    def recording_node_group(config: RunConfig, runs: Path, note: Callable[[str], None]) -> Iterator[NodeGroup]:
        yield RecordingNodeGroup()

    monkeypatch.setattr("podium.run.run_set.node_group", recording_node_group)
    implementation()
    list(run_set(open_config, 1, QUIET))
    assert calls[:2] == [("clear", True, "store"), ("start", "train", ())]
    assert set(calls[2:-1]) == {"watch"}
    assert calls[-1] == "finish"
    implementation("block_start", then="sys.exit(3)", summarise=False)
    with pytest.raises(WorkError):
        list(run_set(open_config, 1, QUIET))
    assert calls[-1] == "stop"


def test_lost_node_aborts_the_run(
    home: Path, open_config: RunConfig, implementation: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    implementation("block_start", then="time.sleep(60)", summarise=False)

    def watch(self: NodeGroup) -> None:
        if list((home / "runs").rglob("result.partial.txt")):
            raise WorkError("node 1 (b) was lost")

    monkeypatch.setattr(NodeGroup, "watch", watch)
    with pytest.raises(WorkError, match=r"^node 1 \(b\) was lost; the status in its log is aborted: "):
        list(run_set(open_config, 1, QUIET))


def test_run_with_invalid_data_is_not_reported_as_killed(
    home: Path, open_config: RunConfig, implementation: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise WorkError("node 1: a shard is damaged")

    notes: list[str] = []
    monkeypatch.setattr(QUIET, "note", notes.append)
    with monkeypatch.context() as patch, pytest.raises(WorkError, match="node 1"):
        patch.setattr(NodeGroup, "verify_data", refuse)
        list(run_set(open_config, 1, QUIET))
    implementation()
    list(run_set(open_config, 1, QUIET))
    assert not [note for note in notes if "killed" in note]
