"""Faults and attacks, one test each, put to real `podium` processes on a copy of the project: what must happen then.

docs/faults.md is their table; a row's name and part are the test's name. `./run_tests.sh` takes a sample of them; all,
in about half an hour on two cores:

    .venv/bin/pytest tests/test_faults.py -m ""

What the others test, `./run_tests.sh` tests with quick scripts in place of training: killed processes in podium/launch,
changed data, resuming and results/ in podium/run/test_run_set.py, damaged checkpoints in
implementations/pytorch/test_checkpointing.py, the clock in podium/core/test_clock.py and podium/mllog/test_write.py.

With PODIUM_FAULTS_PROJECT=FOLDER they are put to another version of Podium, which is checked out there.
"""

import gzip
import io
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from tests.benchmarks.bert.test_upgrade import write_older_copy
from tests.fault_harness import LONG, SECONDS, SHORT, Ended, Project, copy, flip, overwrite_tokens, rehash, status_of
from tests.podium.launch.conftest import free_port

ROOT = Path(__file__).resolve().parents[1]
VERSION = Path(os.environ.get("PODIUM_FAULTS_PROJECT", ROOT))
SAVING = ("checkpoint.every_samples=64", "checkpoint.keep=9")
TWO = "launch.processes_per_node=2"
TRIAL = ("max_samples=32", "evaluation.samples=32", "evaluation.interval_samples=32", SHORT[-1])

REACHED = ("target_accuracy=1.0e-6", "max_samples=32", "evaluation.interval_samples=16", "evaluation.samples=256")

pytestmark = pytest.mark.slow
whole = pytest.mark.exhaustive
root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    """A project in which the embedded text is prepared and kernels are compiled."""
    if VERSION == ROOT:
        return Path(request.getfixturevalue("warm_project"))
    home = tmp_path_factory.mktemp("prepared")
    copy(VERSION, home)
    project = Project(home, home)
    project.run(0)
    return home


@pytest.fixture
def project(prepared: Path, tmp_path: Path) -> Iterator[Project]:
    home = tmp_path / "project"
    home.mkdir()
    copy(prepared, home, "data")
    project = Project(home, tmp_path)
    try:
        yield project
    finally:
        project.kill_all()


# --- Data ----------------------------------------------------------------------------------------------------------


def test_data_a_byte_of_a_shard_has_changed_on_the_disk(project: Project) -> None:
    flip(project.shard)
    project.run(1, match=r"part-00001\.h5.*SHA-256")
    assert not project.logs()


@whole
def test_data_token_ids_are_overwritten_while_a_run_is_trained_on_them(project: Project) -> None:
    process = project.start("run", "laptop", settings=(*LONG[:1], "max_samples=320", *LONG[2:]))
    folder = project.trained(process, 64)
    overwrite_tokens(project.shard)
    project.end(process, 1, r"part-00001\.h5.*changed")
    assert (folder / "result.changed_data.txt").is_file() and not project.logs()


@whole
def test_data_token_ids_are_overwritten_between_two_runs_of_a_set(project: Project) -> None:
    process = project.start("run", "laptop", "--runs", 2, settings=SHORT)
    folder = project.trained(process, 64)
    while not (folder / "summary.json").exists():
        time.sleep(0.002)
    overwrite_tokens(project.shard)
    project.end(process, 1, r"part-00001\.h5")
    assert not (folder.parent / "run_1" / "metrics.jsonl").exists()


def _interrupted(project: Project, *settings: str) -> Path:
    """A run that has saved a checkpoint and was then asked to stop."""
    process = project.start("run", "laptop", settings=(*LONG, *SAVING, *settings))
    folder = project.trained(process, 144)
    os.killpg(process.pid, signal.SIGTERM)
    project.end(process, 143, "--resume")
    assert list((folder / "checkpoints").iterdir())
    return folder


def _resume(project: Project, folder: Path, code: int | tuple[int, ...], *match: str) -> None:
    project.podium(code, "run", "laptop", "--resume", folder, match=match)


@whole
def test_data_token_ids_are_overwritten_before_a_run_resumes(project: Project) -> None:
    folder = _interrupted(project)
    overwrite_tokens(project.shard)
    _resume(project, folder, 1, r"part-00001\.h5")


@whole
def test_data_another_store_of_the_same_shape_is_put_in_its_place_before_a_run_resumes(project: Project) -> None:
    folder = _interrupted(project)
    with h5py.File(project.shard, "r+", locking=False) as file:
        file["records"][1] = int(file["records"][2]) ^ 1  # a word of the first sample
    rehash(project, project.shard)
    _resume(project, folder, 1, r"part-00001\.h5.*content_sha256")


@whole
def test_data_a_shard_is_deleted_between_two_runs_of_a_set(project: Project) -> None:
    process = project.start("run", "laptop", "--runs", 2, settings=SHORT)
    folder = project.trained(process, 64)
    while not (folder / "summary.json").exists():
        time.sleep(0.002)
    project.shard.unlink()
    project.end(process, 1, r"part-00001\.h5")


def test_data_a_shard_is_replaced_by_a_copy_of_another(project: Project) -> None:
    shutil.copy(project.training / "part-00000.h5", project.shard)
    project.run(1, match=r"part-0000[01]\.h5")


@whole
def test_data_a_shard_is_replaced_by_a_copy_of_another_and_there_is_no_manifest(project: Project) -> None:
    shutil.copy(project.training / "part-00000.h5", project.shard)
    (project.training / "manifest.json").unlink()
    project.run(1, match=r"part-0000[01]\.h5", settings=_own_stores(project))


@whole
def test_data_two_shards_are_swapped(project: Project) -> None:
    other = project.training / "part-00002.h5"
    other.rename(project.tmp / "x")
    project.shard.rename(other)
    (project.tmp / "x").rename(project.shard)
    project.run(1, match=r"part-0000[12]\.h5")


def _own_stores(project: Project) -> tuple[str, ...]:
    """Settings that name the stores, so that nothing is prepared anew."""
    vocabulary = project.home / "data/embedded/text/vocab.txt"
    return (
        f"data.store={project.training}",
        f"data.evaluation_store={project.stores / 'evaluation'}",
        f"data.vocabulary={vocabulary}",
    )


def _text(project: Project) -> Path:
    return project.home / "data/embedded/text"


@whole
def test_data_a_shard_is_missing(project: Project) -> None:
    project.shard.unlink()
    project.run(1, match=r"part-00001\.h5 is missing", settings=_own_stores(project))


@whole
def test_data_an_evaluation_shard_is_among_the_training_shards(project: Project) -> None:
    shutil.copy(project.stores / "evaluation" / "eval.txt.h5", project.training)
    project.run(1, match=r"eval\.txt\.h5", settings=_own_stores(project))


@whole
def test_data_data_store_and_data_evaluation_store_are_the_same(project: Project) -> None:
    settings = _own_stores(project)
    same = f"data.evaluation_store={project.training}"
    project.run((1, 2), match="evaluation", settings=(settings[0], same, settings[2]))
    project.podium((1, 2), "doctor", "laptop", match="not ready", settings=(settings[0], same, settings[2]))


@whole
def test_data_the_doctor_looks_at_a_store_with_a_copied_shard(project: Project) -> None:
    shutil.copy(project.training / "part-00000.h5", project.shard)
    project.podium(1, "doctor", "laptop", match="not ready", settings=_own_stores(project))


@whole
def test_data_masked_token_ids_are_beyond_the_vocabulary_with_a_valid_hash(project: Project) -> None:
    with h5py.File(project.shard, "r+", locking=False) as file:
        tokens, masked = int(file["lengths"][0]), int(file["masked_counts"][0])
        file["records"][tokens + masked] = 65_000  # the first word of the first sample that is masked
    rehash(project, project.shard)
    project.run(1, match=r"part-00001\.h5.*sample \d+.*65,?000", settings=_own_stores(project))


@whole
def test_data_a_first_segment_is_longer_than_its_sample_with_a_valid_hash(project: Project) -> None:
    with h5py.File(project.shard, "r+", locking=False) as file:
        tokens, masked = int(file["lengths"][0]), int(file["masked_counts"][0])
        file["records"][tokens + 2 * masked] = 600
    rehash(project, project.shard)
    project.run(1, match=r"part-00001\.h5.*sample 0", settings=_own_stores(project))


@whole
def test_data_a_masked_position_is_beyond_its_sample_with_a_valid_hash(project: Project) -> None:
    with h5py.File(project.shard, "r+", locking=False) as file:
        file["records"][int(file["lengths"][0])] = 511
    rehash(project, project.shard)
    project.run(1, match=r"part-00001\.h5.*sample 0", settings=_own_stores(project))


def _truncate(path: Path, share: float) -> None:
    os.truncate(path, int(path.stat().st_size * share))


@whole
def test_data_a_shard_is_cut_short(project: Project) -> None:
    _truncate(project.shard, 0.7)
    project.run(1, match=r"part-00001\.h5", settings=_own_stores(project))


@whole
def test_data_a_shard_is_empty(project: Project) -> None:
    _truncate(project.shard, 0)
    project.run(1, match=r"part-00001\.h5", settings=_own_stores(project))


@whole
def test_data_a_shard_is_a_fifo(project: Project) -> None:
    project.shard.unlink()
    os.mkfifo(project.shard)
    project.run((1, 2), match=r"part-00001\.h5", settings=_own_stores(project))


@whole
def test_data_a_shard_is_a_link_that_leads_nowhere(project: Project) -> None:
    project.shard.unlink()
    project.shard.symlink_to("/nowhere")
    project.run((1, 2), match=r"part-00001\.h5", settings=_own_stores(project))


@whole
def test_data_a_shard_s_array_lies_in_another_file(project: Project) -> None:
    with h5py.File(project.shard, "r+", locking=False) as file:
        del file["records"]
        file["records"] = h5py.ExternalLink("part-00000.h5", "records")
    project.run(1, match=r"part-00001\.h5", settings=_own_stores(project))


@whole
def test_data_the_manifest_is_no_json(project: Project) -> None:
    (project.training / "manifest.json").write_text("{")
    project.run(1, match=r"manifest\.json", settings=_own_stores(project))


@whole
def test_data_the_manifest_names_a_file_elsewhere(project: Project) -> None:
    manifest = project.training / "manifest.json"
    manifest.write_text(manifest.read_text().replace("part-00001.h5", "../evaluation/eval.txt.h5"))
    project.run(1, match=r"manifest\.json", settings=_own_stores(project))


@whole
def test_data_a_byte_of_the_length_index_has_changed_on_the_disk(project: Project) -> None:
    flip(project.training / "lengths.bin")
    project.run(1, match=r"lengths\.bin.*podium data upgrade")
    project.podium(0, "data", "upgrade", project.training)
    project.run(0)


@whole
def test_data_the_length_index_is_a_fifo(project: Project) -> None:
    (project.training / "lengths.bin").unlink()
    os.mkfifo(project.training / "lengths.bin")
    project.run(1, match=r"lengths\.bin")
    project.podium(1, "data", "upgrade", project.training, match=r"lengths\.bin.*pipe")


@whole
def test_data_a_shard_of_an_older_version_is_cut_short(project: Project) -> None:
    older = write_older_copy(project.training, project.tmp / "older")
    settings = (f"data.store={older}", *_own_stores(project)[1:])
    project.run(1, match="podium data upgrade", settings=settings)
    os.truncate(older / "part-00001.h5", 1000)
    project.podium(1, "data", "upgrade", older, match=r"part-00001\.h5")
    texts = [word for shard in sorted(older.glob("*.h5")) for word in ("--text", _text(project) / shard.stem)]
    project.podium(0, "data", "prepare", *texts, "--vocab", _text(project) / "vocab.txt", "--out", older)
    for path in older.iterdir():
        assert path.read_bytes() == (project.training / path.name).read_bytes()
    project.run(0, settings=settings)


@whole
def test_data_staging_is_killed(project: Project) -> None:
    copied, settings = project.tmp / "copied", _own_stores(project)
    process = project.start("data", "stage", project.training, copied, "--files", 1)
    while not list(copied.glob("*.h5")) and process.poll() is None:
        time.sleep(0.001)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    (copied / "manifest.json").unlink(missing_ok=True)  # where it was too late
    (copied / "manifest.unfinished").touch()
    project.run(1, match="unfinished", settings=(f"data.store={copied}", *settings[1:]))
    project.podium(0, "data", "stage", project.training, copied)
    project.run(0, settings=(f"data.store={copied}", *settings[1:]))


@whole
def test_data_a_byte_of_a_staged_shard_has_changed_on_the_disk(project: Project) -> None:
    copied, settings = project.tmp / "copied", _own_stores(project)
    project.podium(0, "data", "stage", project.training, copied)
    flip(copied / "part-00001.h5")
    project.run(1, match=r"copied/part-00001\.h5.*SHA-256", settings=(f"data.store={copied}", *settings[1:]))
    project.podium(1, "data", "stage", project.training, copied, match=r"part-00001\.h5.*remove it")


@whole
def test_data_a_preparation_was_killed_some_shards_are_there_and_no_manifest(project: Project) -> None:
    text, out = project.home / "data/embedded/text", project.tmp / "store"
    process = project.start(
        *("data", "prepare", *(word for number in range(4) for word in ("--text", text / f"part-0000{number}"))),
        *("--vocab", text / "vocab.txt", "--out", out, "--processes", 1),
    )
    while not list(out.glob("*.h5")) and process.poll() is None:
        time.sleep(0.002)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    settings = _own_stores(project)
    project.run(1, match="unfinished|not finished", settings=(f"data.store={out}", *settings[1:]))


@whole
def test_data_a_worker_of_a_preparation_is_killed(project: Project) -> None:
    text, out = project.home / "data/embedded/text", project.tmp / "store"
    process = project.start(
        *("data", "prepare", *(word for number in range(4) for word in ("--text", text / f"part-0000{number}"))),
        *("--vocab", text / "vocab.txt", "--out", out, "--processes", 2),
    )
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        workers = [pid for pid, line in project.processes().items() if "spawn_main" in line]
        if workers and out.is_dir():
            break
        time.sleep(0.005)
    os.kill(workers[0], signal.SIGKILL)
    project.end(process, 1, "died")
    project.assert_nothing_left()
    whole = [path for path in out.iterdir() if path.suffix == ".h5"]
    assert {path.name for path in out.iterdir()} <= {path.name for path in whole} | {"manifest.unfinished"}


@whole
def test_data_the_vocabulary_is_another_one(project: Project) -> None:
    settings = _own_stores(project)
    tokens = (project.home / "data/embedded/text/vocab.txt").read_text().splitlines()
    tokens[-2:] = reversed(tokens[-2:])
    (project.tmp / "vocab.txt").write_text("\n".join(tokens) + "\n")
    project.run((1, 2), match="vocabulary", settings=(*settings[:2], f"data.vocabulary={project.tmp / 'vocab.txt'}"))


@whole
def test_data_the_store_is_not_there(project: Project) -> None:
    settings = _own_stores(project)
    project.run((1, 2), match="/nowhere", settings=("data.store=/nowhere", *settings[1:]))


@whole
def test_data_files_are_only_touched(project: Project) -> None:
    for path in project.stores.rglob("*"):
        path.touch()
    project.run(0)
    assert project.statuses() == ["aborted"] or project.statuses() == ["success"]


@whole
@root
def test_data_the_prepared_data_lies_in_a_folder_that_cannot_be_written(project: Project) -> None:
    mount = f'mount --bind -o ro {project.home}/data {project.home}/data && exec "$@"'
    project.run(0, wrapper=("unshare", "--mount", "sh", "-c", mount, "sh"))


# --- The log states what happened -----------------------------------------------------------------------------------


def _logged(log: Path, key: str) -> list[Any]:
    events = [json.loads(line.removeprefix(":::MLLOG ")) for line in log.read_text().splitlines()]
    return [event["value"] for event in events if event["key"] == key]


def _only_log(project: Project) -> Path:
    return sorted(project.home.glob("runs/laptop/*/result_*.txt"))[-1]


@whole
def test_log_the_samples_are_on_a_file_system_in_memory(project: Project) -> None:
    memory = Path(f"/dev/shm/podium_faults_{os.getpid()}")
    shutil.copytree(project.stores, memory)
    try:
        settings = [one.replace(str(project.stores), str(memory)) for one in _own_stores(project)]
        project.run(0, settings=settings, match="memory")
    finally:
        shutil.rmtree(memory)
    assert _logged(_only_log(project), "cache_clear") in ([False], [])


@whole
def test_log_another_process_keeps_the_samples_in_memory(project: Project) -> None:
    program = (
        "import mmap, sys, time; f = open(sys.argv[1], 'rb'); m = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ)\n"
        "sum(m[place] for place in range(0, len(m), 4096)); print('mapped', flush=True)\n"
        "while True: sum(m[place] for place in range(0, len(m), 4096)); time.sleep(0.001)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program, project.shard], stdout=subprocess.PIPE) as other:
        try:
            assert other.stdout and other.stdout.readline() == b"mapped\n"
            project.run(0, match="memory|cleared")
        finally:
            other.kill()
    assert _logged(_only_log(project), "cache_clear") in ([False], [])


@whole
def test_log_the_samples_were_copied_a_moment_ago_pages_not_yet_written(project: Project) -> None:
    copied = project.tmp / "copied"
    shutil.copytree(project.stores, copied)
    settings = [one.replace(str(project.stores), str(copied)) for one in _own_stores(project)]
    project.run(0, settings=settings)
    assert _logged(_only_log(project), "cache_clear") == [True]


SHIM = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>
static long step(void) {
    FILE *file = fopen(getenv("STEP_FILE"), "r");
    long seconds = 0;
    if (file) { if (fscanf(file, "%ld", &seconds) != 1) seconds = 0; fclose(file); }
    return seconds;
}
int clock_gettime(clockid_t clock, struct timespec *now) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int result = real(clock, now);
    if (clock == CLOCK_REALTIME) now->tv_sec += step();
    return result;
}
int gettimeofday(struct timeval *now, void *zone) {
    struct timespec time;
    int result = clock_gettime(CLOCK_REALTIME, &time);
    now->tv_sec = time.tv_sec; now->tv_usec = time.tv_nsec / 1000;
    return result;
}
time_t time(time_t *where) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (where) *where = now.tv_sec;
    return now.tv_sec;
}
"""


def _stepped(project: Project, seconds: int) -> tuple[Ended, Path]:
    """A run in which the machine's clock is set by `seconds`."""
    shim, step = project.tmp / "clock.so", project.tmp / "step"
    command = ["cc", "-shared", "-fPIC", "-O1", "-x", "c", "-", "-o", str(shim), "-ldl"]
    subprocess.run(command, input=SHIM, text=True, check=True)
    environment = {"LD_PRELOAD": str(shim), "STEP_FILE": str(step)}
    process = project.start("run", "laptop", settings=(LONG[0], "max_samples=320", *LONG[2:]), env=environment)
    folder = project.trained(process, 64)
    step.write_text(str(seconds))
    return project.end(process, 1, "clock"), folder


@whole
@pytest.mark.parametrize("step", [-3, 3, -3600, 3600])
def test_log_the_clock_is_set_by_3_or_3600_s_in_a_run(project: Project, step: int) -> None:
    _, folder = _stepped(project, step)
    logs = [*project.logs(), *folder.glob("result*.txt")]
    assert logs and {status_of(log) for log in logs} == {"aborted"}
    for log in logs:
        times = [json.loads(line.removeprefix(":::MLLOG "))["time_ms"] for line in log.read_text().splitlines()]
        assert times == sorted(times) and times[-1] - times[0] < 1000 * SECONDS


# --- Disks ---------------------------------------------------------------------------------------------------------


def _on_small_disk(project: Project, folder: str, size: str) -> tuple[str, ...]:
    """What starts a command with that folder on a disk of this size, filled but for 64 KiB."""
    target = project.home / folder
    target.mkdir(parents=True, exist_ok=True)
    return ("unshare", "--mount", "sh", "-c", f'mount -t tmpfs -o size={size} none {target} && exec "$@"', "sh")


@whole
@root
def test_disks_the_disk_of_runs_is_full_from_the_start(project: Project) -> None:
    project.run(1, wrapper=_on_small_disk(project, "runs", "4k"), match="runs|disk|space|room")


@whole
@root
def test_disks_the_disk_of_runs_is_full_in_a_run(project: Project) -> None:
    settings = (*LONG, "checkpoint.every_samples=32", "checkpoint.keep=99")
    project.podium(
        1, "run", "laptop", settings=settings, wrapper=_on_small_disk(project, "runs", "5m"), match="disk|space|room"
    )
    assert not list(project.home.glob("results/*/bert/*"))


@whole
@root
def test_disks_results_cannot_be_written(project: Project) -> None:
    results = project.home / "results"
    results.mkdir()
    mount = f'mount --bind -o ro {results} {results} && exec "$@"'
    project.run(1, wrapper=("unshare", "--mount", "sh", "-c", mount, "sh"), match="results")


@whole
@root
def test_disks_the_disk_is_full_while_data_is_prepared(project: Project) -> None:
    text = project.home / "data/embedded/text"
    out = project.home / "small" / "store"
    project.podium(
        *(1, "data", "prepare", "--text", text / "part-00000", "--vocab", text / "vocab.txt", "--out", out),
        wrapper=_on_small_disk(project, "small", "400k"),
        match="disk|space|room",
    )


@whole
@root
def test_disks_the_journal_of_a_search_is_on_a_full_disk(project: Project) -> None:
    project.podium(
        *(1, "tune", "laptop", "--search", "laptop_adamw", "--trials", 3, "--repeats", 0),
        settings=TRIAL,
        wrapper=_on_small_disk(project, "runs", "24k"),
        match="disk|space|room",
    )


# --- Users ---------------------------------------------------------------------------------------------------------


@whole
@root
def test_users_an_ordinary_user_starts_a_project_of_another_user(project: Project) -> None:
    for path in (project.tmp, *project.tmp.parents):
        if path.owner() == "root" and path.is_relative_to("/tmp/") and path != Path("/tmp"):
            path.chmod(path.stat().st_mode | 0o055)
    wrapper = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
    project.run((1, 2), wrapper=wrapper, match=r"runs|results|data", env={"HOME": "/nonexistent"})


@whole
def test_users_there_is_no_home_folder(project: Project) -> None:
    project.run(0, env={"HOME": "/nonexistent"})


# --- Machines and their names --------------------------------------------------------------------------------------


@whole
@root
@pytest.mark.parametrize("name", ["podium-nowhere", "my laptop", "a" * 64], ids=["unresolvable", "space", "64"])
def test_host_names_the_machine_s_name_does_not_resolve_has_a_space_or_64_letters(project: Project, name: str) -> None:
    program = "import socket, sys, os; socket.sethostname(sys.argv[1]); os.execvp(sys.argv[2], sys.argv[2:])"
    project.run(0, wrapper=("unshare", "--uts", sys.executable, "-c", program, name), settings=(TWO,))


@whole
@root
def test_host_names_there_is_no_network_but_the_loopback(project: Project) -> None:
    project.run(0, wrapper=("unshare", "--net", "sh", "-c", 'ip link set lo up; exec "$@"', "sh"), settings=(TWO,))


# --- Processes -----------------------------------------------------------------------------------------------------

IMPATIENT = "launch.timeout_seconds=4"


def _while_training(project: Project, *settings: str, samples: int = 64) -> tuple[subprocess.Popen[str], Path]:
    process = project.start("run", "laptop", settings=(*LONG, *settings))
    return process, project.trained(process, samples)


def _placed(folder: Path) -> list[str]:
    """The statuses of the logs of a set, by which a run that was aborted is known as such."""
    return [status_of(log) for log in sorted(folder.parent.glob("result_*.txt"))]


@pytest.mark.parametrize(
    "number", [pytest.param(name, marks=whole) for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT")]
)
def test_processes_podium_run_gets_sigint_sigterm_sighup_or_sigquit(project: Project, number: str) -> None:
    process, folder = _while_training(project, TWO)
    process.send_signal(signal.Signals[number])
    project.end(process, 130 if number in ("SIGINT", "SIGQUIT") else 143, "interrupted")
    project.assert_nothing_left()
    assert _placed(folder) == ["aborted"]


@whole
def test_processes_a_rank_is_killed(project: Project) -> None:
    process, folder = _while_training(project, TWO)
    os.kill(project.ranks()[1], signal.SIGKILL)
    project.end(process, 1, r"rank [01].*SIGKILL")
    project.assert_nothing_left()
    assert _placed(folder) == ["aborted"]


@whole
def test_processes_a_rank_is_killed_and_may_be_started_again(project: Project) -> None:
    settings = (LONG[0], "max_samples=320", *LONG[2:], *SAVING, TWO, "launch.max_restarts=1")
    process = project.start("run", "laptop", settings=settings)
    folder = project.trained(process, 144)
    os.kill(project.ranks()[1], signal.SIGKILL)
    project.end(process, 0)
    assert json.loads((folder / "summary.json").read_text())["restarts"] == 1
    assert not project.logs() or not _placed(folder), "a run that was restarted is no result"


@whole
def test_processes_torchrun_is_killed(project: Project) -> None:
    process, folder = _while_training(project, TWO)
    os.kill(project.torchrun(), signal.SIGKILL)
    project.end(process, 1, "SIGKILL")
    project.assert_nothing_left()
    assert _placed(folder) == ["aborted"]


@whole
def test_processes_podium_run_is_killed_and_started_again(project: Project) -> None:
    process, folder = _while_training(project)
    process.kill()
    process.communicate()
    project.assert_nothing_left()
    project.run(0, match=re.escape(folder.parent.name))
    assert _placed(folder) == ["aborted"]


@whole
def test_processes_podium_run_is_killed_and_its_run_resumed(project: Project) -> None:
    process, folder = _while_training(project, *SAVING, samples=144)
    process.kill()
    process.communicate()
    project.assert_nothing_left()
    resumed = project.start("run", "laptop", "--resume", folder)
    project.trained(resumed, 208)
    resumed.send_signal(signal.SIGTERM)
    project.end(resumed, 143)


@whole
def test_processes_all_ranks_are_stopped_sigstop_a_frozen_container(project: Project) -> None:
    process, folder = _while_training(project, TWO, IMPATIENT)
    for pid in project.ranks():
        os.kill(pid, signal.SIGSTOP)
    project.end(process, 1, "stopped")
    project.assert_nothing_left()
    assert _placed(folder) == ["aborted"]


@whole
def test_processes_one_rank_is_stopped(project: Project) -> None:
    process, _ = _while_training(project, TWO, IMPATIENT)
    os.kill(project.ranks()[1], signal.SIGSTOP)
    project.end(process, 1, "rank 1")
    project.assert_nothing_left()


def test_processes_one_rank_is_stopped_then_ctrl_c(project: Project) -> None:
    process, _ = _while_training(project, TWO)
    os.kill(project.ranks()[1], signal.SIGSTOP)
    process.send_signal(signal.SIGINT)
    project.end(process, 130, "interrupted")
    project.assert_nothing_left()


@whole
def test_processes_torchrun_is_stopped_then_ctrl_c(project: Project) -> None:
    process, _ = _while_training(project, TWO)
    os.kill(project.torchrun(), signal.SIGSTOP)
    process.send_signal(signal.SIGINT)
    project.end(process, 130, "interrupted")
    project.assert_nothing_left()


@whole
def test_processes_all_processes_are_stopped_and_continued_ctrl_z_fg(project: Project) -> None:
    process = project.start("run", "laptop", settings=(LONG[0], "max_samples=480", *LONG[2:], IMPATIENT))
    folder = project.trained(process, 64)
    pids = [process.pid, *(pid for pid in project.processes() if pid != process.pid)]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    time.sleep(6)
    for pid in reversed(pids):
        os.kill(pid, signal.SIGCONT)
    project.end(process, 0)
    assert json.loads((folder / "summary.json").read_text())["seconds"] > 6


@whole
def test_processes_a_second_podium_run_of_the_system_is_started(project: Project) -> None:
    process, _ = _while_training(project)
    project.run(2, match="another `podium run`")
    assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    project.end(process, 143)


@whole
def test_processes_a_rank_ends_with_an_error_of_one_line(project: Project) -> None:
    train = project.home / "implementations/pytorch/train.py"
    train.write_text(train.read_text() + "\n    raise RuntimeError('the one line that is the cause')\n")
    train.write_text(
        train.read_text().replace(
            'if __name__ == "__main__":',
            'if __name__ == "__main__":\n    raise RuntimeError("the one line that is the cause")',
        )
    )
    project.run(1, match="the one line that is the cause")


@whole
def test_processes_there_is_not_enough_memory_for_the_ranks(project: Project) -> None:
    project.run(1, wrapper=("prlimit", "--data=400000000"), match="emory|allocat")


# --- Several nodes -------------------------------------------------------------------------------------------------


def _node(
    project: Project, rank: int, port: int, *settings: str, base: Sequence[str] = SHORT, wrapper: Sequence[str] = ()
) -> subprocess.Popen[str]:
    nodes = ("launch.nodes=2", f"launch.rendezvous=127.0.0.1:{port}")
    return project.start(*("run", "laptop", "--node-rank", rank), settings=(*base, *nodes, *settings), wrapper=wrapper)


def _wait_for_listener(port: int) -> None:
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        lines = Path("/proc/net/tcp").read_text() + Path("/proc/net/tcp6").read_text()
        if re.search(rf":{port:04X} \S+ 0A ", lines):
            return
        time.sleep(0.05)
    raise AssertionError(f"nothing listens at port {port}")


def _with_strangers(project: Project, *messages: bytes) -> None:
    """Strangers connect before the second node does and send these messages, a byte every so often the last one."""
    port = free_port()
    first = _node(project, 0, port)
    _wait_for_listener(port + 1)
    strangers = [socket.create_connection(("127.0.0.1", port + 1)) for _ in messages]
    for stranger, message in zip(strangers, messages, strict=True):
        stranger.sendall(message)
    second = _node(project, 1, port)
    project.end(first, 0)
    project.end(second, 0)
    for stranger in strangers:
        stranger.close()


@whole
def test_several_nodes_strangers_connect_first_and_are_silent_or_send_something_else(project: Project) -> None:
    hello = json.dumps({"node": 1, "host": "x", "system": "laptop"}).encode() + b"\n"
    _with_strangers(
        project, b"", b"GET / HTTP/1.0\r\n\r\n", hello, b'{"failed": "no"}\n', b"\xff" * 70_000, b"\0\0\0\x08x"
    )


@whole
def test_several_nodes_something_else_answers_as_the_first_node(project: Project) -> None:
    port = free_port()
    order = {"do": "run", "folder": "/tmp", "entry": "os", "options": []}
    with socket.create_server(("127.0.0.1", port + 1)) as server:
        second = _node(project, 1, port)
        server.settimeout(SECONDS)
        connection, _ = server.accept()
        with connection:
            connection.sendall(b'{"refused": ""}\n' + json.dumps(order).encode() + b"\n")
            time.sleep(1)
        assert list(project.processes()) == [second.pid]
    second.send_signal(signal.SIGTERM)
    project.end(second, (1, 2, 143))


@whole
@root
def test_several_nodes_a_shard_is_missing_on_one_node_of_two(project: Project) -> None:
    port, elsewhere = free_port(), project.tmp / "data_of_node_1"
    shutil.copytree(project.home / "data", elsewhere)
    next(elsewhere.rglob("training/part-00001.h5")).unlink()
    mount = f'mount --bind {elsewhere} {project.home}/data && exec "$@"'
    stores = _own_stores(project)
    first = _node(project, 0, port, *stores)
    second = _node(project, 1, port, *stores, wrapper=("unshare", "--mount", "sh", "-c", mount, "sh"))
    project.end(first, 1, r"node 1.*part-00001\.h5")
    project.end(second, 1)
    assert not project.logs()


@whole
@root
def test_several_nodes_a_shard_is_another_on_one_node_of_two(project: Project) -> None:
    port, elsewhere = free_port(), project.tmp / "data_of_node_1"
    shutil.copytree(project.home / "data", elsewhere)
    with h5py.File(next(elsewhere.rglob("training/part-00001.h5")), "r+", locking=False) as file:
        file["records"][1] = int(file["records"][2]) ^ 1  # a word of the first sample
        shard = Path(file.filename)
    rehash(project, shard)
    mount = f'mount --bind {elsewhere} {project.home}/data && exec "$@"'
    stores = _own_stores(project)
    first = _node(project, 0, port, *stores)
    second = _node(project, 1, port, *stores, wrapper=("unshare", "--mount", "sh", "-c", mount, "sh"))
    project.end(first, 1, r"node 1.*part-00001\.h5")
    project.end(second, 1)


@whole
@root
def test_several_nodes_a_node_has_only_the_shards_of_the_other_s_part(project: Project) -> None:
    port, elsewhere = free_port(), project.tmp / "data_of_node_1"
    shutil.copytree(project.home / "data", elsewhere)
    for shard in sorted(elsewhere.rglob("training/*.h5"))[1:]:
        shard.unlink()
    mount = f'mount --bind {elsewhere} {project.home}/data && exec "$@"'
    settings = (*_own_stores(project), "shards=per_rank", "balancing=random")
    first = _node(project, 0, port, *settings)
    second = _node(project, 1, port, *settings, wrapper=("unshare", "--mount", "sh", "-c", mount, "sh"))
    project.end(first, 1, r"node 1.*part-0000\d\.h5 is missing")
    project.end(second, 1)
    assert not project.logs()


@whole
def test_several_nodes_podium_run_is_killed_on_one_of_two(project: Project) -> None:
    port = free_port()
    first, second = (_node(project, rank, port, "launch.timeout_seconds=10", base=LONG) for rank in range(2))
    folder = project.trained(first, 64)
    second.kill()
    project.end(first, 1, "node 1")
    second.communicate()
    project.assert_nothing_left()
    assert _placed(folder) == ["aborted"]


# --- Training ------------------------------------------------------------------------------------------------------

HOT = ("optimizer.learning_rate=1.0e+30", "optimizer.warmup_steps=0", "clipping=null", "precision=fp32")


@whole
def test_training_the_loss_is_no_number(project: Project) -> None:
    project.run(1, settings=HOT, match=r"the loss of step \d+ is (nan|inf)")
    assert not any(status_of(log) == "success" for log in project.logs())


@whole
def test_training_gradients_are_not_finite_in_the_last_step_before_an_evaluation(project: Project) -> None:
    settings = (*HOT, "max_samples=16", "evaluation.interval_samples=16", "target_accuracy=1.0e-9")
    ended = project.run((0, 1), settings=settings)
    for log in project.logs():
        accuracies = _logged(log, "eval_accuracy")
        assert all(isinstance(one, float) and np.isfinite(one) for one in accuracies), ended.text


# --- Checkpoints ---------------------------------------------------------------------------------------------------


def _two_checkpoints(project: Project) -> tuple[Path, list[Path]]:
    folder = _interrupted(project)
    checkpoints = sorted((folder / "checkpoints").glob("batch_*"))
    assert len(checkpoints) > 1
    return folder, checkpoints


def _resumed_from_before(project: Project, folder: Path, newest: Path, kept: Sequence[Path]) -> None:
    """The checkpoint before is used, a message names the newest, and nothing is deleted."""
    process = project.start("run", "laptop", "--resume", folder)
    project.trained(process, int(newest.name.removeprefix("batch_")) * 16 + 16)
    process.send_signal(signal.SIGTERM)
    project.end(process, 143, re.escape(newest.name))
    found = {path.read_bytes() for path in (folder / "checkpoints").rglob("*") if path.is_file()}
    assert all(content in found for content in (path.read_bytes() for path in kept))


@whole
def test_checkpoints_a_bit_of_the_newest_checkpoint_flips(project: Project) -> None:
    folder, checkpoints = _two_checkpoints(project)
    rank_file = checkpoints[-1] / "rank_0.safetensors"
    flip(rank_file)
    kept = project.tmp / "kept"
    shutil.copy(rank_file, kept)
    _resumed_from_before(project, folder, checkpoints[-1], [kept])


@whole
def test_checkpoints_a_rank_s_file_of_the_newest_checkpoint_is_missing(project: Project) -> None:
    folder, checkpoints = _two_checkpoints(project)
    (checkpoints[-1] / "rank_0.safetensors").unlink()
    kept = project.tmp / "kept"
    shutil.copy(checkpoints[-1] / "facts.json", kept)
    _resumed_from_before(project, folder, checkpoints[-1], [kept])


@whole
def test_checkpoints_the_newest_checkpoint_is_of_a_newer_version(project: Project) -> None:
    folder, checkpoints = _two_checkpoints(project)
    facts = checkpoints[-1] / "facts.json"
    facts.write_text(re.sub(r'"version": \d+', '"version": 99', facts.read_text(), count=1))
    before = {path: path.read_bytes() for path in checkpoints[-1].iterdir()}
    project.podium((1, 2), "run", "laptop", "--resume", folder, match="version")
    assert before == {path: path.read_bytes() for path in checkpoints[-1].iterdir()}


@whole
def test_checkpoints_facts_of_a_checkpoint_are_deeply_nested_json(project: Project) -> None:
    folder, checkpoints = _two_checkpoints(project)
    for checkpoint in checkpoints:
        (checkpoint / "facts.json").write_text("[" * 200_000)
    project.podium((1, 2), "run", "laptop", "--resume", folder)


@whole
def test_checkpoints_a_checkpoint_holds_a_pickle(project: Project) -> None:
    folder, checkpoints = _two_checkpoints(project)
    proof = project.tmp / "executed"
    pickle = b"cos\nsystem\n(S'touch " + str(proof).encode() + b"'\ntR."
    for checkpoint in checkpoints:
        (checkpoint / "rank_0.safetensors").write_bytes(pickle)
    project.podium((1, 2), "run", "laptop", "--resume", folder)
    assert not proof.exists()


@whole
def test_checkpoints_the_code_was_changed_before_a_run_resumes(project: Project) -> None:
    folder = _interrupted(project)
    before = json.loads((folder / "source.json").read_text())["code"]
    (project.home / "podium/added.py").write_text("")
    process = project.start("run", "laptop", "--resume", folder)
    project.trained(process, 208)
    process.send_signal(signal.SIGTERM)
    project.end(process, 143, before[:8])
    after = (folder / "source.json").read_text()
    assert before in after and len(set(re.findall(r"[0-9a-f]{64}", after))) == 2


@whole
def test_checkpoints_the_configuration_in_the_run_s_folder_was_edited(project: Project) -> None:
    folder = _interrupted(project)
    config = folder / "config.yaml"
    config.write_text(re.sub(r"global_batch_size: \d+", "global_batch_size: 8", config.read_text()))
    project.podium((1, 2), "run", "laptop", "--resume", folder, match="global_batch_size")


# --- Results -------------------------------------------------------------------------------------------------------


@whole
def test_results_a_later_run_is_stopped_by_ctrl_c(project: Project) -> None:
    project.run(0, settings=REACHED)
    before = {path: path.read_bytes() for path in project.home.glob("results/*/bert/*.txt")}
    process, _ = _while_training(project)
    process.send_signal(signal.SIGINT)
    project.end(process, 130)
    assert before == {path: path.read_bytes() for path in project.home.glob("results/*/bert/*.txt")}


@whole
def test_results_a_later_run_is_restarted_or_has_no_target(project: Project) -> None:
    project.run(0, settings=REACHED)
    before = {path: path.read_bytes() for path in project.home.glob("results/*/bert/*.txt")}
    project.run(0, match="No run succeeded")
    settings = ("target_accuracy=1.0e-6", "max_samples=3200", "evaluation.samples=256", *SAVING)
    process = project.start(
        "run", "laptop", settings=(*settings, "launch.max_restarts=1", "evaluation.interval_samples=3200")
    )
    project.trained(process, 144)
    os.kill(project.ranks()[0], signal.SIGKILL)
    project.end(process, 0, "not a result")
    assert before and before == {path: path.read_bytes() for path in project.home.glob("results/*/bert/*.txt")}


@whole
def test_results_a_setting_of_a_later_run_is_misspelt(project: Project) -> None:
    project.run(0, settings=REACHED)
    before = {path: path.read_bytes() for path in project.home.glob("results/*/bert/*.txt")}
    project.run(2, settings=("optimizer.lerning_rate=1",), match="lerning_rate")
    assert before == {path: path.read_bytes() for path in project.home.glob("results/*/bert/*.txt")}


@whole
def test_results_a_set_of_one_run_follows_a_set_of_two(project: Project) -> None:
    project.run(0, "--runs", 2)
    first = {path.parent for path in project.runs()}
    project.run(0)
    (other,) = {path.parent for path in project.runs()} - first
    assert [len(list(folder.glob("result_*.txt"))) for folder in (*first, other)] == [2, 1]


# --- Packages ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ten_runs(prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project in a separate repository with a set of ten runs that reached a target of nearly nothing.

    A package of it is refused for that target alone, so that what else is refused is due to the fault.
    """
    folder = tmp_path_factory.mktemp("ten")
    home = folder / "project"
    home.mkdir()
    copy(prepared, home, "data")
    for name in ("README.md", "setup.py", "setup.sh", "run_and_time.sh", ".gitignore"):
        shutil.copy(ROOT / name, home / name)
    for command in (["init", "--quiet"], ["add", "--all"], ["commit", "--quiet", "--message=All"]):
        identity = ["-c", "user.name=Tester", "-c", "user.email=tester@example.org", "-c", "commit.gpgsign=false"]
        subprocess.run(["git", *identity, *command], cwd=home, check=True)
    Project(home, folder).run(0, "--runs", 10, settings=REACHED)
    return home


class Packaged:
    """A copy of a project with ten runs, and how `podium submit package` refuses it after a fault."""

    def __init__(self, home: Path, tmp: Path) -> None:
        self.project = Project(home, tmp)
        (self.set,) = {path.parent for path in self.project.runs()}

    def refused(self, *match: str, folder: str = "laptop") -> None:
        out = self.project.tmp / "package"
        arguments = ("submit", "package", folder, "--out", out, "--org", "Podium")
        self.project.podium((1, 2), *arguments, match=match)
        assert not out.exists() or not list(out.iterdir())

    def edit(self, number: int, change: Callable[[list[dict[str, Any]]], None]) -> None:
        """Change the events of a log in both places where it is."""
        for log in (self.set / f"result_{number}.txt", self.project.home / f"results/laptop/bert/result_{number}.txt"):
            events = [json.loads(line.removeprefix(":::MLLOG ")) for line in log.read_text().splitlines()]
            change(events)
            log.write_text("".join(f":::MLLOG {json.dumps(event)}\n" for event in events))


@pytest.fixture
def packaged(ten_runs: Path, tmp_path: Path) -> Iterator[Packaged]:
    home = tmp_path / "project"
    shutil.copytree(ten_runs, home, symlinks=True)
    packaged = Packaged(home, tmp_path)
    try:
        yield packaged
    finally:
        packaged.project.kill_all()


def _shortened(share: float) -> Callable[[list[dict[str, Any]]], None]:
    def change(events: list[dict[str, Any]]) -> None:
        start = next(event["time_ms"] for event in events if event["key"] == "run_start")
        for event in events:
            if event["time_ms"] > start:
                event["time_ms"] = round(start + share * (event["time_ms"] - start))

    return change


@whole
@pytest.mark.parametrize("share", [0.991, 0.5])
def test_packages_the_times_of_a_log_are_edited_by_0_9_or_by_half(packaged: Packaged, share: float) -> None:
    packaged.edit(3, _shortened(share))
    packaged.refused("result_3.*SHA-256")


@whole
def test_packages_a_failed_run_is_edited_to_success(packaged: Packaged) -> None:
    def fail(events: list[dict[str, Any]]) -> None:
        next(event for event in events if event["key"] == "run_stop")["metadata"]["status"] = "aborted"

    packaged.edit(4, fail)  # as good as the other way round: the log is not what the run wrote
    packaged.refused("result_4.*SHA-256")


@whole
def test_packages_a_log_is_copied_with_another_seed(packaged: Packaged) -> None:
    logs = packaged.project.home / "results/laptop/bert"
    for folder in (packaged.set, logs):
        shutil.copy(folder / "result_1.txt", folder / "result_2.txt")

    def seed(events: list[dict[str, Any]]) -> None:
        next(event for event in events if event["key"] == "seed")["value"] = 12345

    packaged.edit(2, seed)
    packaged.refused("result_2.*SHA-256|seed")


@whole
def test_packages_a_slow_run_is_deleted_with_its_folder(packaged: Packaged) -> None:
    project = packaged.project
    shutil.rmtree(packaged.set / "run_9")
    for log in (packaged.set / "result_9.txt", project.home / "results/laptop/bert/result_9.txt"):
        log.unlink()
    packaged.refused("run_9|10 runs|9 runs")


@whole
def test_packages_the_summary_of_a_run_disagrees_with_its_log(packaged: Packaged) -> None:
    summary = packaged.set / "run_5" / "summary.json"
    content = json.loads(summary.read_text())
    summary.write_text(json.dumps(content | {"seconds": 3 * content["seconds"] + 9}))
    packaged.refused("result_5.*summary|run_5.*summary")


@whole
def test_packages_a_run_was_made_by_other_code(packaged: Packaged) -> None:
    source = packaged.set / "run_6" / "source.json"
    source.write_text(re.sub(r'"code": "[0-9a-f]{4}', '"code": "0000', source.read_text()))
    packaged.refused("code")


@whole
def test_packages_the_record_of_the_set_is_lost_or_has_fewer_runs(packaged: Packaged) -> None:
    record = packaged.set / "set.json"
    content = record.read_text()
    record.write_text(content.replace('"runs": 10', '"runs": 9'))
    packaged.refused("9 runs were requested, and 10 have ended")
    record.unlink()
    for folder in ("laptop", str(packaged.set)):
        packaged.refused(r"set\.json is missing|set\.json: is missing", folder=folder)


@whole
def test_packages_a_run_was_trained_on_other_data(packaged: Packaged) -> None:
    data = packaged.set / "run_7" / "data.json"
    data.write_text(re.sub(r'"content_sha256": "[0-9a-f]{4}', '"content_sha256": "0000', data.read_text(), count=1))
    packaged.refused("run_7|data")


@whole
def test_packages_the_store_was_changed_since_the_runs(ten_runs: Path, packaged: Packaged) -> None:
    shard = Project(ten_runs, ten_runs).shard  # which the copied runs name as theirs
    kept = shard.read_bytes()
    overwrite_tokens(shard)
    try:
        packaged.refused(r"part-00001\.h5")
    finally:
        shard.write_bytes(kept)


@whole
def test_packages_the_command_is_killed_at_any_moment(packaged: Packaged) -> None:
    out = packaged.project.tmp / "package"
    for seconds in (0.6, 1.5, 2.5, 3.5, 4.5):
        arguments = ("submit", "package", "laptop", "--out", out, "--org", "Podium")
        process = packaged.project.start(*arguments)
        try:
            process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
        assert not (out / "Podium").exists(), "a part of a package by its final name"
    packaged.project.assert_nothing_left()
    packaged.refused("0.72")


@whole
def test_packages_a_run_of_the_system_is_at_work(packaged: Packaged) -> None:
    process, _ = _while_training(packaged.project)
    logs = {log: log.read_bytes() for log in packaged.set.glob("result_*.txt")}
    packaged.refused("0.72", folder=str(packaged.set))
    assert process.poll() is None and logs == {log: log.read_bytes() for log in packaged.set.glob("result_*.txt")}
    process.send_signal(signal.SIGTERM)
    packaged.project.end(process, 143)


# --- Files of others -----------------------------------------------------------------------------------------------

MEASURED = (
    "import resource, subprocess, sys; code = subprocess.call(sys.argv[1:]); "
    "print('KILOBYTES', resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, flush=True); sys.exit(code)"
)


def _within(project: Project, megabytes: int, code: int | tuple[int, ...], *arguments: object, **options: Any) -> None:
    """A command of which no process takes more memory than `megabytes`."""
    ended = project.podium(code, *arguments, wrapper=(sys.executable, "-c", MEASURED), **options)
    kilobytes = re.search(r"KILOBYTES (\d+)", ended.text)
    assert kilobytes and int(kilobytes[1]) < 1000 * megabytes, f"{ended.text[-500:]}"


def _tar(path: Path, *members: tarfile.TarInfo, content: bytes = b"x") -> Path:
    with tarfile.open(path, "w:gz", format=tarfile.PAX_FORMAT) as archive:
        for member in members:
            member.size = len(content) if member.isreg() else 0
            archive.addfile(member, io.BytesIO(content) if member.isreg() else None)
    return path


def _member(name: str, **attributes: Any) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    for key, value in attributes.items():
        setattr(member, key, value)
    return member


@whole
def test_files_of_others_an_archive_s_member_leads_out_of_the_folder(project: Project) -> None:
    archive = _tar(project.tmp / "p.tar.gz", _member("../../outside.txt"), _member("/tmp/podium_outside.txt"))
    project.podium((1, 2), "submit", "check", archive)
    assert not list(project.tmp.rglob("outside.txt")) and not Path("/tmp/podium_outside.txt").exists()


@whole
def test_files_of_others_an_archive_s_member_is_a_link_out_of_the_folder(project: Project) -> None:
    link = _member("Org/results/s/bert/result_0.txt", type=tarfile.SYMTYPE, linkname="/etc/passwd")
    ended = project.podium((1, 2), "submit", "check", _tar(project.tmp / "p.tar.gz", link))
    assert "root:x" not in ended.text


@whole
def test_files_of_others_11_kb_of_sparse_maps_in_an_archive(project: Project) -> None:
    maps = ",".join(f"{place},1" for place in range(0, 4_000_000, 2))
    member = _member(
        "Org/a", pax_headers={"GNU.sparse.map": maps, "GNU.sparse.size": "9000000", "GNU.sparse.numblocks": "9"}
    )
    _within(project, 600, (1, 2), "submit", "check", _tar(project.tmp / "p.tar.gz", member))


@whole
def test_files_of_others_very_many_global_headers_in_an_archive(project: Project) -> None:
    path = project.tmp / "p.tar.gz"
    with gzip.open(path, "wb") as file:
        for number in range(200):
            headers = {f"key{number}_{key}": "v" * 1000 for key in range(1000)}
            info = tarfile.TarInfo.create_pax_global_header(headers)
            file.write(info)
    _within(project, 600, (1, 2), "submit", "check", path)


@whole
def test_files_of_others_a_gigabyte_of_zeros_in_1_mb_of_archive(project: Project) -> None:
    path = project.tmp / "p.tar.gz"
    with tarfile.open(path, "w:gz", compresslevel=9) as archive:
        member = _member("Org/results/s/bert/result_0.txt", size=2**30)
        archive.addfile(member, _Zeros(2**30))
    _within(project, 600, (1, 2), "submit", "check", path)


class _Zeros(io.RawIOBase):
    def __init__(self, size: int) -> None:
        self.left = size

    def read(self, size: int = -1) -> bytes:
        size = min(size, self.left)
        self.left -= size
        return bytes(size)


def _import(project: Project, file: Path, code: int | tuple[int, ...] = (1, 2), megabytes: int = 1500) -> None:
    vocabulary = project.home / "data/embedded/text/vocab.txt"
    _within(project, megabytes, code, "data", "import", file, "--vocab", vocabulary, "--out", project.tmp / "imported")
    assert not list(project.tmp.glob("imported/*.h5"))


@whole
def test_files_of_others_2_mb_of_hdf5_whose_chunk_unpacks_to_2_gb(project: Project) -> None:
    path = project.tmp / "file.hdf5"
    with h5py.File(path, "w") as file:
        file.create_dataset("input_ids", (2**21, 512), "i2", chunks=(2**21, 512), compression="gzip", fillvalue=0)
        file["input_ids"].id.write_direct_chunk((0, 0), zlib.compress(bytes(2**20)))
        for name in ("input_mask", "segment_ids"):
            file.create_dataset(name, (2**21, 512), "i1", chunks=(1024, 512))
        for name in ("masked_lm_positions", "masked_lm_ids"):
            file.create_dataset(name, (2**21, 76), "i2", chunks=(1024, 76))
        file.create_dataset("next_sentence_labels", (2**21,), "i1", chunks=(1024,))
    _import(project, path)


@whole
def test_files_of_others_4_mb_of_hdf5_whose_8_192_rows_are_all_the_same_long_one(project: Project) -> None:
    path, rows, places = project.tmp / "file.hdf5", 8192, []
    with h5py.File(path, "w") as file:
        for name in ("input_ids", "segment_ids", "masked_lm_positions", "masked_lm_ids"):
            dataset = file.create_dataset(name, (rows,), h5py.vlen_dtype(np.int32))
            dataset[0] = np.full(200_000, 5, np.int32)
            places.append(dataset.id.get_offset())
        file.create_dataset("next_sentence_labels", data=np.zeros(rows, np.int8))
    content = bytearray(path.read_bytes())
    for place in places:
        content[place : place + 16 * rows] = content[place : place + 16] * rows
    path.write_bytes(content)
    _import(project, path)


@whole
def test_files_of_others_the_file_to_import_is_a_fifo(project: Project) -> None:
    os.mkfifo(project.tmp / "file.hdf5")
    _import(project, project.tmp / "file.hdf5")


@whole
def test_files_of_others_the_text_is_dev_zero(project: Project) -> None:
    vocabulary = project.home / "data/embedded/text/vocab.txt"
    _within(
        project,
        1500,
        (1, 2),
        "data",
        "prepare",
        "--text",
        "/dev/zero",
        "--vocab",
        vocabulary,
        "--out",
        project.tmp / "o",
    )


@whole
def test_files_of_others_the_vocabulary_is_dev_zero(project: Project) -> None:
    text = project.home / "data/embedded/text/part-00000"
    _within(
        project, 1500, (1, 2), "data", "prepare", "--text", text, "--vocab", "/dev/zero", "--out", project.tmp / "o"
    )


@whole
def test_files_of_others_a_result_to_report_on_is_a_fifo(project: Project) -> None:
    project.run(0)
    (folder,) = project.runs()
    for name in ("metrics.jsonl", "summary.json"):
        (folder / name).unlink()
        os.mkfifo(folder / name)
    project.podium((0, 1, 2), "report", folder)


@whole
def test_files_of_others_a_summary_is_deeply_nested_json(project: Project) -> None:
    project.run(0)
    (folder,) = project.runs()
    (folder / "summary.json").write_text("[" * 200_000)
    project.podium((0, 1, 2), "report", folder)


@whole
def test_files_of_others_escape_sequences_are_in_a_checkpoint_s_configuration(project: Project) -> None:
    folder = project.tmp / "hf"
    folder.mkdir()
    (folder / "config.json").write_text(
        json.dumps({"model_type": "\x1b[31mred\x1b]0;title\x07", "hidden_act": "\x9b2J"})
    )
    (folder / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    project.podium((1, 2), "data", "checkpoint", folder, "--out", project.tmp / "c")


@whole
def test_files_of_others_escape_sequences_are_in_a_shard_s_attributes(project: Project) -> None:
    with h5py.File(project.shard, "r+", locking=False) as file:
        file.attrs["source"] = "\x1b[31mred\x1b]0;title\x07"
    project.podium((1, 2), "data", "verify", project.training)


@whole
def test_files_of_others_a_search_s_journal_is_damaged(project: Project) -> None:
    folder = project.tmp / "tune"
    arguments = ("tune", "laptop", "--search", "laptop_adamw", "--trials", 1, "--repeats", 0, "--folder", folder)
    project.podium((0, 1), *arguments, settings=TRIAL)
    journals = [path for path in folder.rglob("*") if path.is_file() and "journal" in path.name]
    assert journals
    for journal in journals:
        journal.write_bytes(b'{"op_code": 0, \xff\n' + journal.read_bytes()[:-20])
    project.podium((1, 2), *arguments, settings=TRIAL, match="journal")


# --- System files --------------------------------------------------------------------------------------------------


@whole
@pytest.mark.parametrize("option", ["--wrap=id", "--wra=id", "--output=/tmp/x", "--export=LD_PRELOAD=/tmp/x"])
def test_system_files_slurm_s_options_replace_what_is_run_or_where_it_writes(project: Project, option: str) -> None:
    project.podium(
        2,
        "run",
        "dgxa100_n8",
        "--dry-run",
        settings=(f"launch.slurm_options=['{option}']",),
        match=r"slurm_options.*--(wra|output|export)",
    )


@whole
def test_system_files_an_image_is_called_like_an_option_of_docker(project: Project) -> None:
    image = "launch.container={runtime: docker, image: --privileged}"
    project.podium(2, "run", "dgxa100_n1", "--dry-run", settings=(image,), match="--privileged")


@whole
def test_system_files_a_system_file_is_called_so_that_its_runs_are_written_elsewhere(project: Project) -> None:
    shutil.copy(project.home / "systems/laptop.yaml", project.tmp / "...yaml")
    project.podium(2, "run", project.tmp / "...yaml", settings=SHORT)
    assert not project.logs()


@whole
def test_system_files_a_system_file_has_an_alias_bomb(project: Project) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]
    (project.tmp / "bomb.yaml").write_text("\n".join(lines))
    project.podium(2, "run", project.tmp / "bomb.yaml")


@whole
def test_system_files_a_system_file_has_an_object_of_python(project: Project) -> None:
    proof = project.tmp / "executed"
    (project.tmp / "mine.yaml").write_text(f"launch: !!python/object/apply:os.system ['touch {proof}']\n")
    project.podium(2, "run", project.tmp / "mine.yaml")
    assert not proof.exists()


ODD_VALUES = {
    "huge_integer": "description: {system_name: " + "9" * 5000 + "}",
    "sexagesimal": "bert: {seed: " + ":".join(["1"] * 50_000) + "}",
    "nul": 'bert: {data: {store: "a\\0b"}}',
    "long_path": "bert: {data: {store: " + "a" * 10_000 + "}}",
}


@whole
@pytest.mark.parametrize("text", ODD_VALUES.values(), ids=ODD_VALUES)
def test_system_files_a_value_is_a_huge_number_has_a_nul_or_10_000_characters(project: Project, text: str) -> None:
    (project.tmp / "mine.yaml").write_text(text)
    project.podium((1, 2), "run", project.tmp / "mine.yaml")


# --- Network and caches --------------------------------------------------------------------------------------------


@whole  # tests/podium/launch/test_processes.py looks at the sockets of one process
def test_network_and_caches_a_stranger_looks_for_a_port_of_a_one_node_run(project: Project) -> None:
    process, _ = _while_training(project, TWO)
    sockets = set()
    for pid in project.processes():
        for descriptor in Path(f"/proc/{pid}/fd").glob("*"):
            try:
                sockets.add(str(descriptor.readlink()).removeprefix("socket:[").removesuffix("]"))
            except OSError:
                continue
    open_to_all = []
    for name in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]:
            fields = line.split()
            loopback = fields[1].startswith(
                ("0100007F", "00000000000000000000000001000000", "0000000000000000FFFF00000100007F")
            )
            if fields[3] == "0A" and fields[9] in sockets and not loopback:
                open_to_all.append(fields[1])
    process.send_signal(signal.SIGTERM)
    project.end(process, 143)
    assert not open_to_all


@whole
@root
def test_network_and_caches_another_user_has_prepared_numba_s_cache(project: Project) -> None:
    cache = project.tmp / "cache"
    cache.mkdir()
    os.chown(cache, 65534, 65534)
    cache.chmod(0o777)
    project.run(
        0, env={"NUMBA_CACHE_DIR": str(cache), "TRITON_CACHE_DIR": str(cache), "TORCHINDUCTOR_CACHE_DIR": str(cache)}
    )
    assert not list(cache.rglob("*.nbi"))


# --- The table -----------------------------------------------------------------------------------------------------


def test_each_fault_has_a_row_and_each_row_a_fault() -> None:
    document, rows, part = ROOT / "docs" / "faults.md", [], ""
    for line in document.read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            part = line.removeprefix("## ")
        elif line.startswith("| ") and not line.startswith("| what "):
            rows.append(re.sub(r"[^a-z0-9]+", "_", f"test_{part}_{line.split(' | ')[0]}".lower()).strip("_"))
    assert rows == [
        name
        for name in globals()
        if name.startswith("test_") and name != "test_each_fault_has_a_row_and_each_row_a_fault"
    ]
