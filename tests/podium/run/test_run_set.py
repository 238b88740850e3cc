"""A set of runs, from data to verdict, with a script in the place of the implementation."""

import fcntl
import hashlib
import json
import multiprocessing
import os
import shutil
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from benchmarks.bert import shard as shard_module
from benchmarks.bert.checkpoint.names import podium_shapes
from benchmarks.bert.checkpoint.podium import write_podium
from benchmarks.bert.checkpoint.weights import Weights
from benchmarks.bert.demo_text import write_embedded_text
from benchmarks.bert.length_index import FILE
from benchmarks.bert.manifest import MANIFEST
from benchmarks.bert.preparation.tokenization import Vocabulary
from benchmarks.bert.samples import gather
from benchmarks.bert.shard import Shard, write_shard
from benchmarks.bert.sizes import LARGE, TINY, Size
from benchmarks.bert.store import SampleStore, renew_manifest
from podium.config.load import load_resolved, write_resolved
from podium.config.run_data import read_run_data
from podium.config.run_folder import FACTS, RunFolder, facts_of, kept
from podium.config.schema import DataSettings, RunConfig
from podium.core.errors import Interrupted, PodiumError, Saved, UsageError, WorkError
from podium.core.files import sha256_of
from podium.core.locks import shared_lock
from podium.launch import launch, page_cache
from podium.launch.node_group import NodeGroup
from podium.launch.page_cache import Cleared
from podium.mllog.compliance import check_compliance
from podium.mllog.read import read_log
from podium.run.collect import FinishedRun
from podium.run.progress import Progress
from podium.run.requeue import JobRecord
from podium.run.results import close_left
from podium.run.run_set import RunRequest, execute, resume, run_set, why_unpublished
from podium.run.set_record import EndedRun, SetRecord, read_set, write_set
from podium.run.source import Source, read_source, source_here

QUIET = Progress(Console(quiet=True))


@pytest.fixture(scope="module")
def small_text() -> Iterator[None]:
    """The embedded text of these tests."""
    with pytest.MonkeyPatch.context() as patch, TemporaryDirectory() as folder:
        patch.setattr("benchmarks.bert.demo_text.ARTICLES_A_PART", 2)
        patch.setattr("benchmarks.bert.demo_text.EVALUATION_ARTICLES", 2)
        text = write_embedded_text(Path(folder))
        content = b"".join(path.read_bytes() for path in (*text.training, text.evaluation, text.vocabulary))
        patch.setattr("benchmarks.bert.demo_text.TEXT_SHA256", hashlib.sha256(content).hexdigest())
        yield


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data of these tests, made by the first that needs them."""
    return tmp_path_factory.mktemp("data")


@pytest.fixture(autouse=True)
def place(small_text: None, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Results and runs of a test."""
    monkeypatch.setattr("podium.run.run_set.RUNS", tmp_path / "runs")
    monkeypatch.setattr("podium.run.data.DATA", data)
    monkeypatch.setattr("podium.run.data.os.cpu_count", lambda: 1)

    monkeypatch.setattr("podium.run.results.RESULTS", tmp_path / "results")
    monkeypatch.setattr("podium.run.collect.check_compliance", lambda result: {"5.0.0": ""})
    return tmp_path


@pytest.fixture
def no_data(place: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a test's data would be made; there are none yet."""
    monkeypatch.setattr("podium.run.data.DATA", place / "data")
    return place / "data"


@pytest.fixture
def official_verdict(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The official checker's own words on results: it is started for every ruleset, which takes seconds."""
    monkeypatch.setattr("podium.run.collect.check_compliance", check_compliance)


@pytest.fixture
def implementation(
    write_log: Any,
    open_config: RunConfig,
    as_implementation: Any,
    summary: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> Any:
    """An implementation that leaves a whole log (or its first lines) and a summary.

    What its checkpoints say is written before it starts, which then need not import Podium.
    """

    def make(log_until: str | None = None, then: str = "", summarise: bool = True) -> None:
        text = write_log(open_config, name="sample.txt").read_text(encoding="utf-8")
        if log_until:
            text = text[: text.index("\n", text.index(f'"{log_until}"')) + 1]
        script = f"(folder / 'result.partial.txt').write_text({text!r})\n{then}\n"
        as_implementation(
            script + (f"(folder / 'summary.json').write_text({json.dumps(summary)!r})" if summarise else "")
        )
        started = launch.command

        def command(config: RunConfig, folder: RunFolder, *others: Any) -> list[str]:
            made_with = kept(load_resolved(folder.config))
            for batches, samples in CHECKPOINTS:
                data = read_run_data(folder.data)
                facts = facts_of(batches, samples, 0, 0, "", made_with, {}, data and data.digests)
                (folder.path / f"facts_of_{samples}").write_text(facts, encoding="utf-8")
            return started(config, folder, *others)

        monkeypatch.setattr(launch, "command", command)

    return make


def test_runs_become_results_with_seeds_of_their_own(
    place: Path, open_config: RunConfig, implementation: Any, request: pytest.FixtureRequest
) -> None:
    """A set stays where it was made, whatever is run afterwards; results/ has copies of the last one and names it."""
    implementation()
    config, results = open_config.model_copy(update={"seed": None}), place / "results" / "laptop"
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
    assert all(read_source(RunFolder(run.folder).source) == source_here() for run in runs)
    assert not (runs[0].folder / "result.partial.txt").exists()
    record = read_set(folder)
    assert record is not None and record.whole and (record.system, record.runs) == ("laptop", 2)
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
    assert not list((place / "runs").rglob("replaced_results"))  # they were copies


@pytest.mark.parametrize("seed", [0, 7])
def test_a_fixed_seed_is_used(open_config: RunConfig, implementation: Any, seed: int) -> None:
    implementation()
    (run,) = run_set(open_config.model_copy(update={"seed": seed}), 1, QUIET)
    assert run.seed == load_resolved(run.folder / "config.yaml").seed == seed


def content(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_run_that_breaks_off_is_in_its_set_as_aborted(
    place: Path, open_config: RunConfig, implementation: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And results/ stays as it was."""
    implementation()
    list(run_set(open_config, 2, QUIET))
    before, said = content(place / "results"), list[str]()
    (place / "sample.txt").unlink()
    implementation("block_start", then="sys.exit(3)", summarise=False)
    monkeypatch.setattr(QUIET, "note", said.append)
    with pytest.raises(
        WorkError, match=r"ended with exit code 3, .*; its log says aborted: .*/result_0\.txt$"
    ) as caught:
        list(run_set(open_config, 3, QUIET))
    result = Path(str(caught.value).rpartition(": ")[2])
    assert [e.metadata["status"] for e in read_log(result).events if e.key == "run_stop"] == ["aborted"]
    assert said[-1] == f"The set broke off: its logs are in {result.parent}, and {place}/results/laptop is as it was"
    assert content(place / "results") == before
    record = read_set(result.parent)
    assert record is not None and not record.whole
    assert record.ended == (EndedRun(0, "aborted", "result_0.txt", sha256_of(result)),)


def test_ctrl_c_and_a_set_without_a_success_leave_the_results_alone(
    place: Path, open_config: RunConfig, implementation: Any, summary: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    implementation()
    list(run_set(open_config, 1, QUIET))
    before, said = content(place / "results"), list[str]()
    (place / "sample.txt").unlink()
    implementation("block_start", then="os.kill(os.getppid(), signal.SIGINT); time.sleep(60)")
    with pytest.raises(Interrupted, match=r"its log says aborted: .*/runs/laptop/.*/result_0\.txt$"):
        list(run_set(open_config, 1, QUIET))
    (place / "sample.txt").unlink()
    summary["reached_target"] = False  # as with a mistyped learning rate
    implementation()
    monkeypatch.setattr(QUIET, "note", said.append)
    (run,) = run_set(open_config, 1, QUIET)
    assert said[-1].startswith(f"No run succeeded: the logs are in {run.folder.parent}, and ")
    assert content(place / "results") == before and run.published is None and run.result.is_file()


DONE = EndedRun(0, "success", "result_0.txt", "0" * 64)


@pytest.mark.parametrize(
    ("ended", "shortfalls", "why"),
    [
        ([DONE], [""], ""),
        ([DONE, replace(DONE, number=1, status="aborted")], ["", "missed"], ""),
        ([replace(DONE, status="aborted")], [""], "No run succeeded"),  # without a target nothing falls short
        ([DONE], ["the checker finds errors"], "No run succeeded"),
        (
            [DONE, replace(DONE, number=1, log="run_1/result.restarted.txt", restarted=True)],
            ["", ""],
            "The log of run 1",
        ),
        ([DONE, replace(DONE, number=1, fault="its data was changed")], ["", ""], "The log of run 1 is no result"),
    ],
)
def test_results_are_replaced_by_a_set_of_results_of_which_one_succeeded(
    tmp_path: Path, ended: list[EndedRun], shortfalls: list[str], why: str
) -> None:
    write_set(tmp_path, SetRecord("laptop", len(ended), tuple(ended)))
    assert why_unpublished(tmp_path, shortfalls).startswith(why)
    assert bool(why_unpublished(tmp_path, shortfalls)) == bool(why)


def test_a_results_folder_that_cannot_be_written_at_the_end_is_a_sentence_with_the_place_of_the_logs(
    place: Path, open_config: RunConfig, implementation: Any
) -> None:
    """As where results/ became read-only while a run was at work."""
    results = place / "results" / "laptop"
    implementation(then=f"import shutil; shutil.rmtree({str(results)!r}); Path({str(results)!r}).touch()")
    runs = run_set(open_config, 1, QUIET)
    run = next(runs)
    with pytest.raises(WorkError) as caught:
        next(runs)
    assert f"no run is lost: the set is whole, and its logs are {run.folder.parent}/result_*.txt" in str(caught.value)
    assert read_log(run.result).status == "success" and caught.value.exit_code == 1


def killed(place: Path, config: RunConfig, implementation: Any, then: str = "", runs: int = 2) -> RunFolder:
    """A run whose `podium run` was killed by SIGKILL while it was at work; with a checkpoint it has saved itself."""
    if then:
        failure = json.dumps({"exit_code": 143, "message": "asked to stop"})
        then += f"(folder / 'failure.json').write_text({failure!r})"
    implementation("block_start", then=f"{then}\nos.kill(os.getppid(), signal.SIGKILL)", summarise=False)
    before = set((place / "runs").rglob("run_0"))
    make_killed(place, lambda: list(run_set(config, runs, QUIET)))
    (path,) = set((place / "runs").rglob("run_0")) - before
    return RunFolder(path)


def make_killed(place: Path, command: Callable[[], object]) -> None:
    process = multiprocessing.get_context("fork").Process(target=command)
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    for path in (place / "runs").rglob("run_0/.lock"):
        with path.open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # until its processes have ended too
    (place / "sample.txt").unlink()


def test_a_run_that_was_left_when_podium_run_was_killed_is_closed_by_the_next(
    place: Path, open_config: RunConfig, implementation: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = killed(place, open_config, implementation)
    result, said = left.path.parent / "result_0.txt", list[str]()
    assert left.log.is_file() and not result.exists()
    implementation()
    monkeypatch.setattr(QUIET, "note", said.append)
    (run,) = run_set(open_config, 1, QUIET)
    assert said[0] == f"{left.path}: was left open when its `podium run` was killed; its log says aborted: {result}"
    assert read_log(result).status == "aborted" and not left.log.exists()
    record = read_set(left.path.parent)
    assert record is not None and not record.whole
    assert record.ended == (EndedRun(0, "aborted", "result_0.txt", sha256_of(result)),)
    assert run.published is not None
    said.clear()
    list(run_set(open_config, 1, QUIET))
    assert not [line for line in said if "killed" in line]


def test_a_run_that_was_killed_with_a_checkpoint_is_closed_and_can_still_be_resumed(
    place: Path, open_config: RunConfig, implementation: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    left, said = killed(place, open_config, implementation, then=CHECKPOINT), list[str]()
    implementation()
    monkeypatch.setattr(QUIET, "note", said.append)
    list(run_set(open_config, 1, QUIET))
    assert said[0].endswith(f"result_0.txt; `podium run laptop --resume {left.path}` can still resume it")
    aborted = left.path.parent / "result_0.txt"
    assert aborted.is_file()
    run = resume(left, "laptop", QUIET)
    assert run.reached_target and run.result == left.restarted_result and aborted.is_file()
    record = read_set(left.path.parent)
    assert record is not None
    assert [(one.log, one.restarted, one.status) for one in record.ended if one.log] == [
        ("result_0.txt", False, "aborted"),
        ("run_0/result.restarted.txt", True, "success"),
    ]
    assert record.by_number[0].restarted


def test_a_resumed_run_whose_podium_run_was_killed_is_closed_as_restarted(
    place: Path, open_config: RunConfig, implementation: Any
) -> None:
    stopped = saved(place, open_config, implementation)
    implementation("block_start", then="os.kill(os.getppid(), signal.SIGKILL)", summarise=False)
    make_killed(place, lambda: resume(stopped, "laptop", QUIET))
    assert stopped.log.is_file() and not stopped.restarted_result.exists()
    implementation()
    list(run_set(open_config, 1, QUIET))
    assert read_log(stopped.restarted_result).status == "aborted" and not stopped.log.exists()
    assert resume(stopped, "laptop", QUIET).reached_target
    record = read_set(stopped.path.parent)
    assert record is not None
    assert [(one.status, one.restarted) for one in record.ended if one.log] == [("aborted", True), ("success", True)]


def test_resuming_a_run_closes_others_that_were_left_and_not_itself(
    place: Path, open_config: RunConfig, implementation: Any
) -> None:
    left = killed(place, open_config, implementation, then=CHECKPOINT)
    other = RunFolder(shutil.copytree(left.path.parent, left.path.parents[1] / "other") / "run_0")
    implementation()
    assert resume(left, "laptop", QUIET).reached_target
    records = [read_set(folder.path.parent) for folder in (left, other)]
    assert [[one.restarted for one in record.ended if one.log] for record in records if record] == [[True], [False]]
    assert not (left.path.parent / "result_0.txt").exists() and (other.path.parent / "result_0.txt").is_file()


def test_a_run_that_had_ended_when_podium_run_was_killed_is_no_result_by_itself(
    place: Path, open_config: RunConfig, implementation: Any
) -> None:
    """No process has compared its data after it."""
    left = killed(place, open_config, implementation)
    implementation()
    (whole,) = run_set(open_config, 1, QUIET)
    write_set(left.path.parent, SetRecord("laptop", 1))
    (left.path.parent / "result_0.txt").unlink()
    shutil.copy(whole.result, left.log)
    close_left(left.path.parents[1], lambda text: None)
    record = read_set(left.path.parent)
    assert record is not None and record.ended[0].status == "success" and not record.ended[0].is_result


def test_a_run_that_had_not_begun_leaves_the_results_alone(
    place: Path, open_config: RunConfig, implementation: Any
) -> None:
    implementation("init_start", then="sys.exit(3)", summarise=False)
    with pytest.raises(WorkError, match=r"ended with exit code 3, .*; it had not begun: no result file$"):
        list(run_set(open_config, 1, QUIET))
    assert not list((place / "results").rglob("*.txt"))


def test_a_run_that_failed_after_its_end_is_not_said_to_be_aborted(
    place: Path, open_config: RunConfig, implementation: Any
) -> None:
    implementation(then="sys.exit(3)", summarise=False)
    with pytest.raises(WorkError) as caught:
        list(run_set(open_config, 1, QUIET))
    (result,) = (place / "runs").rglob("result_0.txt")
    assert [e.metadata["status"] for e in read_log(result).events if e.key == "run_stop"] == ["success"]
    assert str(caught.value).endswith(f"; its log says success: {result}")
    assert not list((place / "results").rglob("*.txt"))


@pytest.mark.parametrize(
    ("verdict", "target", "failed"),
    [
        ("FAILED", 0.72, "the official compliance checker finds errors in "),
        ("", 0.72, "the target accuracy of 0.72 was not reached within max_samples "),
        ("", None, ""),
    ],
)
def test_other_nodes_end_with_1_after_a_run_that_falls_short(
    open_config: RunConfig,
    implementation: Any,
    summary: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    verdict: str,
    target: float | None,
    failed: str,
) -> None:
    nodes, others = NodeGroup(), list[tuple[str, int]]()
    monkeypatch.setattr(nodes, "fail", lambda message, exit_code: others.append((message, exit_code)))
    monkeypatch.setattr("podium.run.run_set.node_group", lambda *_: nullcontext(nodes))
    monkeypatch.setattr("podium.run.collect.check_compliance", lambda result: {"5.0.0": verdict})
    summary["reached_target"] = bool(verdict)
    implementation()
    (run,) = run_set(open_config.model_copy(update={"target_accuracy": target}), 1, QUIET)
    assert [(message.startswith(failed), code) for message, code in others] == [(True, 1)] * bool(failed)
    assert run.shortfall(open_config.model_copy(update={"target_accuracy": target})).startswith(failed)


def test_a_finished_run_is_one_object(tmp_path: Path, summary: dict[str, Any]) -> None:
    run = FinishedRun(tmp_path / "result_0.txt", tmp_path, 3, summary, {"4.1.0": "", "5.0.0": "FAILED"})
    assert (run.reached_target, run.compliant) == (True, False)
    assert run.as_json()["compliance"] == {"4.1.0": True, "5.0.0": False}


def test_two_sets_of_runs_at_once_are_refused(place: Path, open_config: RunConfig, implementation: Any) -> None:
    implementation()
    runs = run_set(open_config, 2, QUIET)
    next(runs)
    with pytest.raises(UsageError, match="another `podium run` is at work on this system"):
        next(run_set(open_config, 1, QUIET))
    next(runs)


# Going on


def checkpointed(batches: int, samples: int) -> str:
    """What leaves a checkpoint after this many batches, as one of CHECKPOINTS."""
    return f"""
path = folder / "checkpoints" / "batch_{batches:08}"
path.mkdir(parents=True, exist_ok=True)
(path / {FACTS!r}).write_text((folder / "facts_of_{samples}").read_text())
"""


CHECKPOINTS = ((3, 1234), (5, 2468))
CHECKPOINT = checkpointed(*CHECKPOINTS[0])
SAVE = (
    CHECKPOINT
    + """
(folder / "failure.json").write_text(json.dumps({"exit_code": 143, "message": "asked to stop"}))
sys.exit(143)
"""
)


@pytest.mark.usefixtures("official_verdict")
def test_a_run_that_has_saved_itself_is_no_result_and_is_gone_on_with(
    place: Path, open_config: RunConfig, implementation: Any
) -> None:
    implementation("block_start", then=SAVE, summarise=False)
    with pytest.raises(Saved) as caught:
        list(run_set(open_config, 3, QUIET))
    (folder,) = (place / "runs").rglob("run_0")
    words = f"asked to stop; `podium run laptop --resume {folder}` goes on after its first 1,234 samples"
    assert str(caught.value) == words
    assert not list((place / "results").rglob("*.txt"))
    (place / "sample.txt").unlink()
    implementation(
        then="(folder / 'restarts.jsonl').write_text('{}\\n'); assert not (folder / 'failure.json').exists()"
    )
    run = resume(RunFolder(folder), "laptop", QUIET)
    assert run.folder == folder and run.seed == load_resolved(folder / "config.yaml").seed == 7 and run.reached_target
    assert run.result == folder / "result.restarted.txt"  # no submission finds it
    assert run.compliant
    assert not list((place / "results").rglob("*.txt"))
    with pytest.raises(UsageError, match="this run has come to its end; start another one"):
        resume(RunFolder(folder), "laptop", QUIET)


@pytest.fixture
def request_in_job(place: Path, open_config: RunConfig, monkeypatch: pytest.MonkeyPatch) -> RunRequest:
    """The request that a Slurm job which requeues itself makes on its first node each time it starts."""
    for module in ("podium.run.requeue", "podium.launch.container"):
        monkeypatch.setattr(f"{module}.WORKING_FOLDER", place)
    job = JobRecord(Path("runs/laptop/slurm-17"))
    request = RunRequest("laptop", ["bert.seed=7", "launch.binding=none"], recipe="indexed", job=job)
    vars(request)["config"] = open_config
    return request


def test_a_requeued_job_resumes_its_own_run_until_it_ends(
    place: Path, request_in_job: RunRequest, implementation: Any
) -> None:
    """Not the newest run, and without the settings that are the run's own; what it leaves is no result."""
    request, stopped = request_in_job, place / "runs/laptop/slurm-17.stopped"
    assert request.in_requeued_job() is request
    implementation("block_start", then=SAVE, summarise=False)
    with pytest.raises(Saved):
        list(execute(request, QUIET))
    (folder,) = (place / "runs").rglob("run_0")
    named = folder.relative_to(place)
    assert stopped.read_text(encoding="utf-8") == f"0 1234 {named}\n"
    shutil.copytree(folder, place / "runs/laptop/9999-12-31_00-00-00/run_0")
    assert replace(request, node_rank=1).in_requeued_job().resumed is None  # other nodes are given the run's folder
    again = request.in_requeued_job()
    assert (again.resumed, again.recipe, again.settings) == (RunFolder(folder), None, ["launch.binding=none"])
    with pytest.raises(Saved):
        list(execute(again, QUIET))
    assert stopped.read_text(encoding="utf-8") == f"1234 1234 {named}\n"
    stopped.unlink()  # as the script does before each start
    implementation(then="(folder / 'restarts.jsonl').write_text('{}\\n')")
    (run,) = execute(request.in_requeued_job(), QUIET)
    assert run.result == folder / "result.restarted.txt"
    assert not stopped.exists()
    assert not list((place / "results").rglob("*.txt"))
    with pytest.raises(UsageError, match="this run has come to its end"):
        list(execute(request.in_requeued_job(), QUIET))
    assert not stopped.exists()


def test_a_requeued_job_that_was_stopped_before_any_checkpoint_begins_its_run_again(
    place: Path, request_in_job: RunRequest, implementation: Any
) -> None:
    implementation("block_start", then="os.kill(os.getppid(), signal.SIGTERM); time.sleep(60)")
    with pytest.raises(Interrupted):
        list(execute(request_in_job, QUIET))
    (folder,) = (place / "runs").rglob("run_0")
    stopped = place / "runs/laptop/slurm-17.stopped"
    assert stopped.read_text(encoding="utf-8") == f"0 0 {folder.relative_to(place)}\n"
    again = request_in_job.in_requeued_job()
    implementation()
    (run,) = execute(again, QUIET)
    assert (run.folder, run.result) == (folder, folder / "result.restarted.txt")


def test_a_job_whose_run_failed_for_good_records_no_stop(
    place: Path, request_in_job: RunRequest, implementation: Any
) -> None:
    failure = json.dumps({"exit_code": 1, "message": "the loss is nan"})
    implementation(
        "block_start", then=f"(folder / 'failure.json').write_text({failure!r}); sys.exit(1)", summarise=False
    )
    with pytest.raises(WorkError, match=r"^the loss is nan"):
        list(execute(request_in_job, QUIET))
    assert not (place / "runs/laptop/slurm-17.stopped").exists()


def test_a_job_whose_run_is_gone_says_so(place: Path, request_in_job: RunRequest) -> None:
    record = place / "runs/laptop/slurm-17.run"
    record.parent.mkdir(parents=True)
    for text, named in (("runs/laptop/gone/run_0\n", "runs/laptop/gone/run_0"), ("", "nothing")):
        record.write_text(text, encoding="utf-8")
        with pytest.raises(WorkError, match=f"slurm-17.run: names {named}, which is no run's folder; resume the run"):
            request_in_job.in_requeued_job()


def test_a_run_that_was_interrupted_before_it_could_save_goes_on_from_the_checkpoint_before(
    place: Path, open_config: RunConfig, implementation: Any
) -> None:
    implementation("block_start", then=CHECKPOINT + "os.kill(os.getppid(), signal.SIGTERM); time.sleep(60)")
    with pytest.raises(Saved, match=r"^interrupted: stopped before the end; `podium run laptop --resume .* samples$"):
        list(run_set(open_config, 1, QUIET))
    assert not list((place / "results").rglob("*.txt"))


def test_a_run_that_ends_just_as_it_is_asked_to_stop_has_ended(
    place: Path, open_config: RunConfig, implementation: Any
) -> None:
    """It is collected, though no run follows it; a job that requeues itself is not requeued for it."""
    implementation(
        then="signal.signal(signal.SIGTERM, signal.SIG_IGN); os.kill(os.getppid(), signal.SIGTERM); time.sleep(0.4)"
    )
    (run,) = run_set(open_config, 1, QUIET)
    assert run.reached_target and run.result.name == "result_0.txt"
    with pytest.raises(
        Interrupted, match=r"^interrupted when a run had come to its end; its result is .*result_0\.txt$"
    ):
        list(run_set(open_config, 2, QUIET))
    assert len(list((place / "runs").rglob("run_*"))) == 2


def test_a_run_that_was_killed_says_how_to_go_on(place: Path, open_config: RunConfig, implementation: Any) -> None:
    implementation("block_start", then=CHECKPOINT + "sys.exit(3)", summarise=False)
    with pytest.raises(WorkError, match=r"; its log says aborted: .*; `podium run laptop --resume .* 1,234 samples$"):
        list(run_set(open_config, 1, QUIET))


def test_what_would_fail_again_is_not_gone_on_with(place: Path, open_config: RunConfig, implementation: Any) -> None:
    failure = json.dumps({"exit_code": 1, "message": "the loss is nan"})
    told = f"(folder / 'not_finite.json').touch(); (folder / 'failure.json').write_text({failure!r}); sys.exit(1)"
    implementation("block_start", then=CHECKPOINT + told, summarise=False)
    with pytest.raises(WorkError, match=r"^the loss is nan; its log says aborted: ") as caught:
        list(run_set(open_config, 1, QUIET))
    assert "--resume" not in str(caught.value)


DISK = "result.partial.txt: cannot be written (No space left on device)"
NEWEST = "batch_00000005/rank_0.safetensors: cannot be read (too short); remove this checkpoint's folder"


@pytest.mark.parametrize(
    ("failure", "checkpoints", "way"),
    [
        (DISK, [(3, 1234), (5, 2468)], "2,468"),  # whole ones are there
        (NEWEST, [(3, 1234), (5, 2468)], "1,234"),  # the one before it is
        (NEWEST, [(5, 2468)], ""),
        (DISK, [], ""),
    ],
)
def test_what_can_be_mended_is_gone_on_with_from_a_checkpoint_that_is_whole(
    place: Path,
    open_config: RunConfig,
    implementation: Any,
    failure: str,
    checkpoints: list[tuple[int, int]],
    way: str,
) -> None:
    where = "'checkpoints/'" if failure.startswith("batch") else "''"
    told = f"words = str(folder / ({where} + {failure!r}))\n"
    told += "(folder / 'failure.json').write_text(json.dumps({'exit_code': 1, 'message': words})); sys.exit(1)"
    implementation("block_start", then="".join(checkpointed(*one) for one in checkpoints) + told, summarise=False)
    with pytest.raises(WorkError) as caught:
        list(run_set(open_config, 1, QUIET))
    (folder,) = (place / "runs").rglob("run_0")
    words = str(caught.value)
    assert failure in words and "; its log says aborted: " in words
    offered = f"; once that is mended, `podium run laptop --resume {folder}` goes on after its first {way} samples"
    assert words.endswith(offered) if way else "--resume" not in words


def test_a_wrong_resume_is_told_before_other_nodes_are_waited_for(
    place: Path, open_config: RunConfig, implementation: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    implementation("block_start", then="sys.exit(3)", summarise=False)
    with pytest.raises(WorkError):
        list(run_set(open_config, 1, QUIET))
    (folder,) = (place / "runs").rglob("run_0")
    monkeypatch.setattr("podium.run.run_set.node_group", lambda *_: pytest.fail("nodes are waited for"))
    with pytest.raises(UsageError, match="holds no whole checkpoint"):
        resume(RunFolder(folder), "laptop", QUIET)
    with pytest.raises(UsageError, match=r"launch\.nodes: found 2, but the run was made with 1"):
        resume(RunFolder(folder), "laptop", QUIET, ["launch.nodes=2", "launch.rendezvous=127.0.0.1:29500"])
    RunFolder(folder).checkpoints.mkdir()
    (folder / "summary.json").write_text("{}", encoding="utf-8")
    with pytest.raises(UsageError, match="has come to its end"):
        resume(RunFolder(folder), "laptop", QUIET)


def test_a_resume_beside_another_run_is_told_before_other_nodes_are_waited_for(
    place: Path, open_config: RunConfig, implementation: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    implementation("block_start", then=SAVE, summarise=False)
    with pytest.raises(Saved):
        list(run_set(open_config, 1, QUIET))
    (folder,) = (place / "runs").rglob("run_0")
    (place / "sample.txt").unlink()
    implementation()
    runs = run_set(open_config, 2, QUIET)
    next(runs)
    monkeypatch.setattr("podium.run.run_set.node_group", lambda *_: pytest.fail("nodes are waited for"))
    with pytest.raises(UsageError, match="another `podium run` is at work on this system"):
        resume(RunFolder(folder), "laptop", QUIET)
    runs.close()


def test_a_run_that_another_has_seen_to_its_end_meanwhile_is_not_gone_on_with(
    place: Path, open_config: RunConfig, implementation: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    implementation("block_start", then=SAVE, summarise=False)
    with pytest.raises(Saved):
        list(run_set(open_config, 1, QUIET))
    (folder,) = (place / "runs").rglob("run_0")

    @contextmanager
    def alone(_: Path) -> Iterator[None]:
        (folder / "summary.json").write_text("{}", encoding="utf-8")
        yield

    monkeypatch.setattr("podium.run.run_set._alone", alone)
    with pytest.raises(UsageError, match="has come to its end"):
        resume(RunFolder(folder), "laptop", QUIET)


def test_nodes_read_in_the_folder_how_a_run_is_started_anew(
    place: Path, open_config: RunConfig, implementation: Any
) -> None:
    implementation("block_start", then=SAVE, summarise=False)
    with pytest.raises(Saved):
        list(run_set(open_config, 1, QUIET))
    (folder,) = (place / "runs").rglob("run_0")
    (place / "sample.txt").unlink()
    before = load_resolved(folder / "config.yaml")
    implementation(then="(folder / 'restarts.jsonl').write_text('{}\\n')")
    resume(RunFolder(folder), "laptop", QUIET, ["launch.rendezvous=b:29500", "launch.max_restarts=2"])
    launch = before.launch.model_copy(update={"rendezvous": "b:29500", "max_restarts": 2})
    assert load_resolved(folder / "config.yaml") == before.model_copy(update={"launch": launch})


def test_what_cannot_be_gone_on_with_is_refused(place: Path, open_config: RunConfig, implementation: Any) -> None:
    implementation("block_start", then="sys.exit(3)", summarise=False)
    with pytest.raises(WorkError):
        list(run_set(open_config, 1, QUIET))
    (folder,) = (place / "runs").rglob("run_0")
    with pytest.raises(UsageError, match=r"holds no whole checkpoint to go on from; set checkpoint\.every_samples"):
        resume(RunFolder(folder), "laptop", QUIET)
    with pytest.raises(UsageError, match="is a run of laptop, and h200_1x is named; name laptop"):
        resume(RunFolder(folder), "h200_1x", QUIET)
    with pytest.raises(UsageError, match=r"holds no config\.yaml; name the folder of a run"):
        resume(RunFolder(folder.parent), "laptop", QUIET)


def saved(place: Path, config: RunConfig, implementation: Any) -> RunFolder:
    """A run that was stopped and has saved itself."""
    implementation("block_start", then=SAVE, summarise=False)
    before = set((place / "runs").rglob("run_0"))
    with pytest.raises(Saved):
        list(run_set(config, 1, QUIET))
    (path,) = set((place / "runs").rglob("run_0")) - before
    (place / "sample.txt").unlink()
    return RunFolder(path)


def test_a_resume_that_fails_early_leaves_the_results_of_another_set(
    place: Path, open_config: RunConfig, implementation: Any
) -> None:
    """Its rank is killed before it can mark the run as restarted."""
    stopped = saved(place, open_config, implementation)
    implementation()
    (other,) = run_set(open_config, 1, QUIET)
    result, held = other.result.read_bytes(), content(place / "results")
    assert stopped.log.is_file()  # open, as it was left to be resumed
    (place / "sample.txt").unlink()
    implementation("block_start", then="os.kill(os.getpid(), signal.SIGKILL)", summarise=False)
    with pytest.raises(WorkError, match=rf"killed by SIGKILL.*; its log says aborted: {stopped.restarted_result}; "):
        resume(stopped, "laptop", QUIET)
    assert not stopped.restarts
    assert other.result.read_bytes() == result
    assert content(place / "results") == held and other.published


def test_a_run_whose_processes_still_live_is_not_gone_on_with(
    place: Path, open_config: RunConfig, implementation: Any
) -> None:
    stopped = saved(place, open_config, implementation)
    with shared_lock(stopped.lock), pytest.raises(UsageError, match="of this run are still at work, such as some"):
        resume(stopped, "laptop", QUIET)
    assert not stopped.gone_on_with and stopped.told_failure()


def test_a_configuration_that_was_edited_is_refused_before_anything_is_touched(
    place: Path, open_config: RunConfig, implementation: Any
) -> None:
    stopped = saved(place, open_config, implementation)
    config = load_resolved(stopped.config)
    write_resolved(config.model_copy(update={"global_batch_size": 32}), stopped.config)
    with pytest.raises(UsageError, match=rf"^{stopped.config}: global_batch_size is 32 and was 16, as .*put that back"):
        resume(stopped, "laptop", QUIET)
    assert not stopped.gone_on_with and stopped.told_failure()


def test_runs_that_cannot_be_written_are_a_sentence(place: Path, open_config: RunConfig, implementation: Any) -> None:
    implementation()
    (place / "runs" / "laptop" / ".lock").mkdir(parents=True)
    with pytest.raises(WorkError, match=r"runs/laptop/\.lock: cannot be written \(Is a directory\); see who may write"):
        list(run_set(open_config, 1, QUIET))


# Data


def shard_of(data: Path) -> Path:
    return next(data.rglob("part-00001.h5"))


def overwrite_tokens(shard: Path) -> None:
    """Change a token of the first sample in place, and put the file's time back, as a fault or a person might."""
    tokens, state = Shard(shard).read(0).token_ids.tobytes(), shard.stat()
    with shard.open("r+b") as file:
        content = file.read()
        file.seek(content.index(tokens))
        file.write(bytes([content[content.index(tokens)] ^ 1]))
    os.utime(shard, ns=(state.st_atime_ns, state.st_mtime_ns))


def replace_shard(shard: Path) -> None:
    """Put another sound shard in its place, and have the store list that."""
    opened = Shard(shard)
    write_shard(shard, gather(opened.samples, np.arange(len(opened) - 1)), opened.origin)
    renew_manifest(shard.parent)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (overwrite_tokens, r"part-00001\.h5: the shard cannot be used: its content has the SHA-256"),
        (lambda shard: shard.unlink(), r"part-00001\.h5 is missing, manifest\.json has it"),
        (
            replace_shard,
            r"^data\.store: .*/part-00001\.h5: its samples is \d+, the first run of this set has \d+;",
        ),
    ],
)
def test_data_that_is_changed_between_two_runs_of_a_set_is_not_trained_on(
    place: Path, no_data: Path, open_config: RunConfig, implementation: Any, change: Any, said: str
) -> None:
    implementation()
    runs = run_set(open_config, 2, QUIET)
    first = next(runs)
    kept = read_run_data(RunFolder(first.folder).data)
    assert kept is not None and kept.manifests.keys() == {"data.store", "data.evaluation_store"}
    assert kept.manifests["data.store"] == SampleStore(shard_of(no_data).parent).manifest
    change(shard_of(no_data))
    with pytest.raises(WorkError, match=said):
        next(runs)
    assert len(list((place / "runs").rglob("result_*.txt"))) == 1


def test_a_run_whose_data_was_changed_meanwhile_is_no_result(
    place: Path, no_data: Path, open_config: RunConfig, implementation: Any
) -> None:
    """A change of a file's rights changes no sample."""
    implementation()
    runs = run_set(open_config, 3, QUIET)
    next(runs)
    shard = shard_of(no_data)
    (place / "sample.txt").unlink()
    implementation(then=f"os.chmod({str(shard)!r}, 0o640)")
    next(runs)
    (place / "sample.txt").unlink()
    implementation(then=f"os.utime({str(shard)!r})")
    with pytest.raises(WorkError, match=r"^the data was changed during the run: .*part-00001\.h5 is not the file.*: "):
        next(runs)
    assert len(list((place / "runs").rglob("result_*.txt"))) == 2
    (aside,) = (place / "runs").rglob("run_2/result.changed_data.txt")
    record = read_set(aside.parents[1])
    assert record is not None and record.whole and [one.is_result for one in record.ended] == [True, True, False]
    assert not list((place / "results").rglob("*.txt"))


def test_a_run_resumes_on_the_data_that_it_began_with(
    place: Path, no_data: Path, open_config: RunConfig, implementation: Any
) -> None:
    stopped, shard = saved(place, open_config, implementation), shard_of(no_data)
    before = {name: (shard.parent / name).read_bytes() for name in (shard.name, MANIFEST, FILE)}
    for change, said in ((overwrite_tokens, "its content has the SHA-256"), (replace_shard, "the run has")):
        change(shard)
        with pytest.raises(WorkError, match=said):
            resume(stopped, "laptop", QUIET)
        assert not stopped.gone_on_with
        for name, whole in before.items():
            (shard.parent / name).write_bytes(whole)
    kept = stopped.data.read_text(encoding="utf-8")
    stopped.data.write_text(kept.replace('"samples": ', '"samples": 1', 1), encoding="utf-8")
    with pytest.raises(WorkError, match=r"data\.json: cannot be used \(it has other keys than a manifest"):
        resume(stopped, "laptop", QUIET)
    stopped.data.unlink()
    with pytest.raises(
        WorkError, match=r"facts\.json: was made on other samples than .*/data\.json lists \(data\.store, "
    ):
        resume(stopped, "laptop", QUIET)
    stopped.data.write_text(kept, encoding="utf-8")
    implementation()
    assert resume(stopped, "laptop", QUIET).reached_target


def test_a_run_of_an_older_version_resumes_and_says_that_its_data_is_not_known(
    place: Path, open_config: RunConfig, implementation: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("podium.run.prepare.write_run_data", lambda path, data: None)
        stopped = saved(place, open_config, implementation)
    implementation()
    said: list[str] = []
    monkeypatch.setattr(QUIET, "note", said.append)
    assert resume(stopped, "laptop", QUIET).reached_target
    note = f"{stopped.data} is not there, as with runs of older versions: the data is whole, and compared with nothing"
    assert note in said and not stopped.data.exists()


def test_a_run_that_is_resumed_by_other_code_says_so_and_names_both(
    place: Path, open_config: RunConfig, implementation: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped, said = saved(place, open_config, implementation), list[str]()
    began, now = source_here(), Source("1" * 64, None)
    implementation()
    monkeypatch.setattr("podium.run.prepare.source_here", lambda: now)
    monkeypatch.setattr(QUIET, "note", said.append)
    assert resume(stopped, "laptop", QUIET).reached_target
    assert read_source(stopped.source) == replace(began, resumed=(now,))
    (line,) = [line for line in said if "code was changed" in line]
    assert began.code[:12] in line and "resumed by code 111111111111" in line and str(stopped.source) in line


def test_a_run_of_the_layout_before_resumes(place: Path, open_config: RunConfig, implementation: Any) -> None:
    """It has no record of its set, and perhaps none of its code."""
    stopped = saved(place, open_config, implementation)
    (stopped.path.parent / "set.json").unlink()
    stopped.source.unlink()
    implementation()
    run = resume(stopped, "laptop", QUIET)
    assert run.result == stopped.restarted_result and run.reached_target
    assert not (stopped.path.parent / "set.json").exists() and not stopped.source.exists()


def test_nothing_reads_samples_once_the_caches_are_cleared(
    place: Path, no_data: Path, open_config: RunConfig, implementation: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The order before each run: verify, write back, clear, look, start the processes; samples are read once a set."""
    events: list[str] = []

    def noted(owner: Any, name: str, event: str) -> None:
        really = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda *given, **more: (events.append(event), really(*given, **more))[1])

    implementation()
    noted(Shard, "verify", "verify")
    noted(shard_module, "mapped_file", "read")
    noted(page_cache, "_write_back_and_drop", "write back and clear")
    noted(page_cache, "resident_bytes", "look")
    noted(launch, "run_processes", "start")
    list(run_set(open_config, 2, QUIET))
    shards = len([*no_data.rglob("*.h5")])
    last = max(number for number, event in enumerate(events) if event in ("read", "verify"))
    assert events.count("verify") == shards
    runs = " ".join(events[last + 1 :]).replace("write back and clear", "clear").split("start")
    assert [set(run.split()) for run in runs] == [{"clear", "look"}, {"clear", "look"}, set()]
    for run in runs[:-1]:  # a shard that did not leave memory at once is cleared again
        assert run.split()[-shards:] == ["look"] * shards
        assert run.split().count("clear") >= shards


# The initial checkpoint


def write_checkpoint(path: Path, size: Size, vocabulary: int) -> Path:
    shapes = podium_shapes(size, vocabulary)
    write_podium(path, Weights(size, vocabulary, {name: np.zeros(shapes[name], np.float32) for name in shapes}))
    return path


def run_from(config: RunConfig, checkpoint: Path) -> list[FinishedRun]:
    return list(run_set(config.model_copy(update={"initial_checkpoint": checkpoint}), 1, QUIET))


def test_a_run_from_a_checkpoint_that_fits_is_made(place: Path, open_config: RunConfig, implementation: Any) -> None:
    implementation()
    (first,) = run_set(open_config, 1, QUIET)
    vocabulary = load_resolved(first.folder / "config.yaml").data.vocabulary
    assert vocabulary
    path = write_checkpoint(place / "x.safetensors", TINY, len(Vocabulary.read(vocabulary).words))
    (run,) = run_from(open_config, path)
    assert load_resolved(run.folder / "config.yaml").initial_checkpoint == path


@pytest.mark.parametrize("fault", ["missing", "folder", "other", "damaged", "size"])
def test_a_checkpoint_that_cannot_serve_is_refused_before_anything_is_made(
    place: Path, no_data: Path, open_config: RunConfig, implementation: Any, fault: str
) -> None:
    implementation()
    path = place / "x.safetensors"
    if fault == "folder":
        path.mkdir()
    elif fault == "other":
        path.write_bytes((2).to_bytes(8, "little") + b"{}")
    elif fault == "damaged":
        path.write_bytes(b"no")
    elif fault == "size":
        write_checkpoint(path, Size("large", 1, 8, 1, 8, 1, 1), 9)
    words, error = {
        "missing": ("there is no such checkpoint; make one with `podium data checkpoint SOURCE OUT`", UsageError),
        "folder": ("is a folder; make one with `podium data checkpoint SOURCE OUT`", UsageError),
        "other": (
            "is not a Podium checkpoint; make one with `podium data checkpoint SOURCE OUT` from it",
            UsageError,
        ),
        "damaged": ("cannot be read as safetensors", WorkError),
        "size": ("lacks layers.1.qkv.weight", WorkError),
    }[fault]
    refused(open_config, path, error, words)
    assert not no_data.exists()


def refused(config: RunConfig, path: Path, error: type[PodiumError], words: str) -> None:
    with pytest.raises(error) as caught:
        run_from(config, path)
    assert str(caught.value).startswith(f"{path}: ")
    assert words in str(caught.value)
    assert not list((path.parent / "runs").rglob("run_*"))


def test_a_checkpoint_of_another_size_or_vocabulary_is_refused(
    place: Path, no_data: Path, open_config: RunConfig, implementation: Any
) -> None:
    implementation()
    path = write_checkpoint(place / "x.safetensors", TINY, 12)
    refused(open_config, path, UsageError, "the checkpoint has a vocabulary of 12 tokens, the vocabulary in use ")
    for name, text in (("text", "a b\nc\n\nd\ne\n"), ("vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\nb\n")):
        (place / name).write_text(text, encoding="utf-8")
    own = DataSettings(text=(place / "text",), evaluation_text=place / "text", vocabulary=place / "vocab.txt")
    shutil.rmtree(no_data)
    refused(open_config.model_copy(update={"data": own}), path, UsageError, "the vocabulary in use 7")
    assert not no_data.exists()  # known before samples are made
    large = open_config.model_copy(update={"size": LARGE.name})
    refused(large, path, UsageError, "the checkpoint is of size tiny, the model of size large")


def test_other_nodes_are_told_watched_and_their_caches_count(
    open_config: RunConfig, implementation: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run of several nodes, with a node group that only notes what is asked of it."""
    asked: list[Any] = []

    class Noted(NodeGroup):
        def clear_caches(self, config: RunConfig, folder: RunFolder) -> Cleared:
            asked.append(("clear", folder.config.is_file(), config.data.kind))
            return Cleared(False, "node 1: Cleared no caches")

        def start(self, folder: RunFolder, entry: str, options: Sequence[str]) -> None:
            asked.append(("start", entry, tuple(options)))

        def watch(self) -> None:
            asked.append("watch")

        def finish(self) -> None:
            asked.append("finish")

        def stop(self) -> None:
            asked.append("stop")

    @contextmanager
    def noted(config: RunConfig, runs: Path, note: Callable[[str], None]) -> Iterator[NodeGroup]:
        yield Noted()

    monkeypatch.setattr("podium.run.run_set.node_group", noted)
    implementation()
    list(run_set(open_config, 1, QUIET))
    assert asked[:2] == [("clear", True, "store"), ("start", "train", ())]
    assert set(asked[2:-1]) == {"watch"}
    assert asked[-1] == "finish"
    implementation("block_start", then="sys.exit(3)", summarise=False)
    with pytest.raises(WorkError):
        list(run_set(open_config, 1, QUIET))
    assert asked[-1] == "stop"


def test_a_node_that_is_lost_aborts_the_run(
    place: Path, open_config: RunConfig, implementation: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    implementation("block_start", then="time.sleep(60)", summarise=False)

    def watch(self: NodeGroup) -> None:
        if list((place / "runs").rglob("result.partial.txt")):
            raise WorkError("node 1 (b) was lost")

    monkeypatch.setattr(NodeGroup, "watch", watch)
    with pytest.raises(WorkError, match=r"^node 1 \(b\) was lost; its log says aborted: "):
        list(run_set(open_config, 1, QUIET))


def test_a_run_whose_data_was_refused_was_not_left_open_by_a_kill(
    place: Path, open_config: RunConfig, implementation: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise WorkError("node 1: a shard is damaged")

    said: list[str] = []
    monkeypatch.setattr(QUIET, "note", said.append)
    with monkeypatch.context() as patch, pytest.raises(WorkError, match="node 1"):
        patch.setattr(NodeGroup, "verify_data", refuse)
        list(run_set(open_config, 1, QUIET))
    implementation()
    list(run_set(open_config, 1, QUIET))
    assert not [note for note in said if "killed" in note]
