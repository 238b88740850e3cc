"""The end of a run's processes: it is reported in one message, and no process is left."""

import errno
import json
import os
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from podium.config.load import write_resolved
from podium.config.run_folder import RunFolder
from podium.config.schema import Checkpointing, RunConfig
from podium.core.errors import (
    Interrupted,
    StoppedAfterSaving,
    UsageError,
    WorkError,
    clear_stop_signal,
    raise_interrupted,
)
from podium.core.locks import assert_unlocked
from podium.core.processes import STOP_SIGNALS, stop_signals
from podium.launch import launch as launch_module
from podium.launch.launch import SINGLE_NODE, TORCHRUN, command, launch, torchrun_arguments

PRIVATE = Path("/private")

KILLED = """\
W1120 23:39:28.437000 8454 torch/distributed/elastic/multiprocessing/api.py:1028] Sending process 8458 closing signal SIGTERM
E1120 23:39:28.439000 8454 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: {code}) local_rank: 1 (pid: 8459) of binary: /home/user/podium/.venv/bin/python
Traceback (most recent call last):
  File "/home/user/podium/.venv/lib/python3.11/site-packages/torch/distributed/launcher/api.py", line 383, in launch_agent
    raise ChildFailedError(
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:\x20
======================================================
implementations.pytorch.train FAILED
------------------------------------------------------
Failures:
{others}
------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-20_23:39:28
  host      : localhost
  rank      : 1 (local_rank: 1)
  exitcode  : {code} (pid: 8459)  (SIGKILL)
  error_file: <N/A>
  traceback : Signal 9 (SIGKILL) received by PID 8459
======================================================
"""  # noqa: E501 — output of torchrun of PyTorch 2.13 when rank 1 of two dies

OTHERS = """\
[1]:
  time      : 2026-11-20_23:39:28
  host      : localhost
  rank      : 0 (local_rank: 0)
  exitcode  : -15 (pid: 8458)  (SIGTERM)
  error_file: <N/A>
  traceback : Signal 15 (SIGTERM) received by PID 8458"""


def nothing() -> None:
    pass


def start(config: RunConfig, folder: RunFolder, tick: Callable[[], None] = nothing) -> None:
    launch(config, folder, "train", ["--caches-cleared"], on_tick=tick)


def alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and waits for its parent does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def assert_all_dead(folder: RunFolder) -> None:
    pids = [int(pid) for pid in (folder.path / "pids").read_text(encoding="utf-8").split()]
    assert pids
    deadline = time.monotonic() + 3
    while any(map(alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.02)
    left = [pid for pid in pids if alive(pid)]
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert left == []


def test_command_runs_the_implementation_under_torchrun(open_config: RunConfig, run_folder: RunFolder) -> None:
    config = open_config.model_copy(update={"launch": open_config.launch.model_copy(update={"processes_per_node": 3})})
    found = command(config, run_folder, "train", [], SINGLE_NODE, PRIVATE)
    assert found[:5] == [sys.executable, *TORCHRUN, "--rdzv-backend=c10d"]
    assert "--nproc-per-node=3" in found
    assert found[-3:] == ["implementations.pytorch.train", str(run_folder.config), str(run_folder.path)]
    assert command(config, run_folder, "train", ["--caches-cleared"], SINGLE_NODE, PRIVATE) == [
        *found,
        "--caches-cleared",
    ]


def test_only_training_is_restarted(open_config: RunConfig, run_folder: RunFolder) -> None:
    config = open_config.model_copy(update={"launch": open_config.launch.model_copy(update={"max_restarts": 4})})
    assert "--max-restarts=4" in command(config, run_folder, "train", [], SINGLE_NODE, PRIVATE)
    assert "--max-restarts=0" in command(open_config, run_folder, "train", [], SINGLE_NODE, PRIVATE)
    assert not any(
        "restarts" in argument for argument in command(config, run_folder, "bench", [], SINGLE_NODE, PRIVATE)
    )


def test_run_that_saved_a_checkpoint_raises_saved(
    open_config: RunConfig, run_folder: RunFolder, as_implementation: Any
) -> None:
    failure = json.dumps({"exit_code": 143, "message": "saved after 32 samples"})
    as_implementation(f"(folder / 'failure.json').write_text({failure!r}); sys.exit(143)")
    with pytest.raises(StoppedAfterSaving, match=r"^saved after 32 samples$") as caught:
        start(open_config, run_folder)
    assert caught.value.exit_code == 143


SAVING = """
def save(*_):
    time.sleep(0.6)
    (folder / "failure.json").write_text(json.dumps({"exit_code": 143, "message": "saved"}))
    sys.exit(143)
signal.signal(signal.SIGTERM, save)
print(os.environ.get("TORCH_ELASTIC_SHUTDOWN_TIMEOUT"), flush=True)
(folder / "pids").write_text(str(os.getpid()))
time.sleep(60)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_processes_with_checkpoints_get_time_to_save(
    open_config: RunConfig,
    run_folder: RunFolder,
    as_implementation: Any,
    monkeypatch: pytest.MonkeyPatch,
    number: int,
) -> None:
    monkeypatch.setattr(launch_module, "GRACE_SECONDS", 0.1)
    as_implementation(SAVING)
    thread = interrupt_when_begun(run_folder, number)
    with pytest.raises(StoppedAfterSaving, match=r"^saved$"):
        start(open_config.model_copy(update={"checkpoint": Checkpointing()}), run_folder)
    thread.join()
    assert run_folder.output.read_text(encoding="utf-8") == "60\n"


def test_output_is_appended(
    open_config: RunConfig, run_folder: RunFolder, as_implementation: Any, summary: dict[str, Any]
) -> None:
    run_folder.output.write_text("of the first attempt\n", encoding="utf-8")
    as_implementation(f"print('of the second'); (folder / 'summary.json').write_text({json.dumps(summary)!r})")
    start(open_config, run_folder)
    assert run_folder.output.read_text(encoding="utf-8") == "of the first attempt\nof the second\n"


def test_run_that_ends_normally(
    open_config: RunConfig, run_folder: RunFolder, as_implementation: Any, summary: dict[str, Any]
) -> None:
    as_implementation(
        "print('some output', flush=True); print('and errors', file=sys.stderr)\n"
        "print(os.getcwd(), os.environ['OMP_NUM_THREADS'], sys.stdin.read() == '')\n"
        f"time.sleep(0.5); (folder / 'summary.json').write_text({json.dumps(summary)!r}); sys.exit(1)"
    )
    ticks: list[float] = []
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    start(open_config, run_folder, lambda: ticks.append(time.monotonic()))
    assert len(ticks) >= 2
    assert run_folder.read_summary() == summary
    text = run_folder.output.read_text(encoding="utf-8")
    assert "some output" in text
    assert "and errors" in text
    assert f"{launch_module.WORKING_FOLDER} {open_config.launch.threads} True" in text
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == handlers


@pytest.mark.parametrize("kind", [UsageError, WorkError])
def test_reported_failure_is_raised(
    open_config: RunConfig, run_folder: RunFolder, as_implementation: Any, kind: type[WorkError]
) -> None:
    failure = json.dumps({"exit_code": kind.exit_code, "message": "part-3.h5: is damaged"})
    as_implementation(f"(folder / 'failure.json').write_text({failure!r}); sys.exit(9)")
    with pytest.raises(kind, match=r"^part-3\.h5: is damaged$"):
        start(open_config, run_folder)


def test_unreported_failure_has_the_exit_code_and_last_line(
    open_config: RunConfig, run_folder: RunFolder, as_implementation: Any
) -> None:
    as_implementation("sys.stdout.buffer.write(b'\\xff not UTF-8'); sys.exit(7)")
    with pytest.raises(
        WorkError,
        match=r"^torchrun ended with exit code 7 \(the last line that was printed: . not UTF-8\), so the run was "
        r"aborted; its output is in ",
    ) as caught:
        start(open_config, run_folder)
    assert str(run_folder.output) in str(caught.value)


def test_killed_torchrun_is_reported(open_config: RunConfig, run_folder: RunFolder, as_implementation: Any) -> None:
    as_implementation("os.kill(os.getpid(), signal.SIGKILL)")
    with pytest.raises(WorkError, match=r"^torchrun was killed by SIGKILL, so the run was aborted"):
        start(open_config, run_folder)


def failing(text: str) -> str:
    return f"print({text!r}); sys.exit(1)"


def test_killed_rank_is_reported_with_the_signal(
    open_config: RunConfig, run_folder: RunFolder, as_implementation: Any
) -> None:
    as_implementation(failing(KILLED.format(code=-9, others="  <NO_OTHER_FAILURES>")))
    with pytest.raises(WorkError, match=r"^rank 1 was killed by SIGKILL, so the run was aborted; its output"):
        start(open_config, run_folder)


def test_reported_rank_is_the_first_that_died(
    open_config: RunConfig, run_folder: RunFolder, as_implementation: Any
) -> None:
    """torchrun lists the ranks that it terminated before the one that died."""
    as_implementation(failing(KILLED.format(code=-9, others=OTHERS)))
    with pytest.raises(WorkError, match=r"^rank 1 was killed by SIGKILL, "):
        start(open_config, run_folder)


def test_failed_rank_is_reported_with_its_exit_code(
    open_config: RunConfig, run_folder: RunFolder, as_implementation: Any
) -> None:
    as_implementation(failing(KILLED.format(code=3, others="  <NO_OTHER_FAILURES>")))
    with pytest.raises(WorkError, match=r"^rank 1 ended with exit code 3, so the run was aborted"):
        start(open_config, run_folder)


def test_signal_without_a_name_is_reported_by_its_number(
    open_config: RunConfig, run_folder: RunFolder, as_implementation: Any
) -> None:
    as_implementation(failing(KILLED.format(code=-40, others="  <NO_OTHER_FAILURES>")))
    with pytest.raises(WorkError, match="40"):
        start(open_config, run_folder)


# A launcher with a child that does not end. torchrun starts its workers in new sessions.
FAMILY = """
import subprocess
worker = "import time; from podium.core.processes import end_with_parent; {end}; print(1, flush=True); time.sleep(60)"
child = subprocess.Popen([sys.executable, "-c", worker], start_new_session={new_session}, stdout=subprocess.PIPE)
assert child.stdout.readline()
(folder / "pids.partial").write_text(f"{{os.getpid()}} {{child.pid}}")
{before}
os.rename(folder / "pids.partial", folder / "pids")
{after}
"""


def interrupt_when_begun(folder: RunFolder, number: int) -> threading.Thread:
    def interrupt() -> None:
        deadline = time.monotonic() + 10
        while not (folder.path / "pids").exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        os.kill(os.getpid(), number)

    thread = threading.Thread(target=interrupt)
    thread.start()
    return thread


@pytest.mark.parametrize(
    ("number", "ignores_sigterm"), [*((number, False) for number in STOP_SIGNALS), (signal.SIGTERM, True)]
)
def test_interruption_ends_every_process_of_the_group(
    open_config: RunConfig,
    run_folder: RunFolder,
    as_implementation: Any,
    monkeypatch: pytest.MonkeyPatch,
    number: int,
    ignores_sigterm: bool,
) -> None:
    monkeypatch.setattr(launch_module, "GRACE_SECONDS", 0.3)
    if number not in stop_signals():
        pytest.skip("nohup started the tests")
    before = "signal.signal(signal.SIGTERM, signal.SIG_IGN)" if ignores_sigterm else ""
    as_implementation(FAMILY.format(new_session=False, end="pass", before=before, after="time.sleep(60)"))
    handler, thread = signal.getsignal(number), interrupt_when_begun(run_folder, number)
    begun = time.monotonic()
    with pytest.raises(Interrupted, match=r"^interrupted: stopped before the end$"):
        start(open_config, run_folder)
    thread.join()
    assert time.monotonic() - begun < 10
    assert signal.getsignal(number) is handler
    assert_all_dead(run_folder)


def test_no_process_is_started_after_an_interruption_that_was_lost(
    open_config: RunConfig, run_folder: RunFolder, as_implementation: Any
) -> None:
    as_implementation("(folder / 'begun').touch()")
    with suppress(Interrupted):
        raise_interrupted()
    try:
        with pytest.raises(Interrupted):
            start(open_config, run_folder)
    finally:
        clear_stop_signal()
    assert not (run_folder.path / "begun").exists()


def test_signal_ignored_by_nohup_ends_nothing(
    open_config: RunConfig, run_folder: RunFolder, as_implementation: Any, summary: dict[str, Any]
) -> None:
    written = f"(folder / 'summary.json').write_text({json.dumps(summary)!r})"
    as_implementation(f"os.kill(os.getppid(), signal.SIGHUP); time.sleep(0.3); {written}")
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        start(open_config, run_folder)
    finally:
        signal.signal(signal.SIGHUP, before)
    assert run_folder.read_summary() == summary


def test_killed_torchrun_leaves_no_child(open_config: RunConfig, run_folder: RunFolder, as_implementation: Any) -> None:
    as_implementation(
        FAMILY.format(new_session=False, end="pass", before="", after="os.kill(os.getpid(), signal.SIGKILL)")
    )
    with pytest.raises(WorkError, match="torchrun was killed by SIGKILL"):
        start(open_config, run_folder)
    assert_all_dead(run_folder)


def test_workers_in_other_sessions_end(open_config: RunConfig, run_folder: RunFolder, as_implementation: Any) -> None:
    """torchrun starts its workers so; they would continue after it is killed, such as by the OOM killer."""
    as_implementation(
        FAMILY.format(
            new_session=True, end="end_with_parent()", before="", after="os.kill(os.getpid(), signal.SIGKILL)"
        )
    )
    with pytest.raises(WorkError, match="torchrun was killed by SIGKILL"):
        start(open_config, run_folder)
    assert_all_dead(run_folder)


def test_error_in_on_tick_ends_the_processes(
    open_config: RunConfig, run_folder: RunFolder, as_implementation: Any
) -> None:
    as_implementation(FAMILY.format(new_session=False, end="pass", before="", after="time.sleep(60)"))

    def tick() -> None:
        if (run_folder.path / "pids").exists():
            raise RuntimeError("a defect")

    with pytest.raises(RuntimeError, match="a defect"):
        start(open_config, run_folder, tick)
    assert_all_dead(run_folder)


LISTENING = """\
import os, sys
from pathlib import Path
from implementations.pytorch.distributed.process_group import init_distributed
from podium.config.load import load_resolved
from podium.core.files import write_atomically

def addresses():
    sockets, torchrun = set(), os.getppid()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((process / "stat").read_text().rpartition(")")[2].split()[1])
            if torchrun in (parent, int(process.name)):
                sockets |= {os.readlink(descriptor) for descriptor in process.glob("fd/*")}
        except OSError:
            continue
    for table in ("tcp", "tcp6"):
        for line in Path("/proc/net", table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in sockets:
                yield fields[1].partition(":")[0]

with init_distributed(load_resolved(Path(sys.argv[1]))) as processes:
    processes.barrier()
    if processes.first:
        write_atomically(Path(sys.argv[2]), " ".join(addresses()))
    processes.barrier()
"""
LOOPBACKS = (
    "0100007F",
    "00000000000000000000000001000000",
    "0000000000000000FFFF00000100007F",
)  # in the kernel's format


def test_processes_of_a_single_node_listen_only_at_the_loopback(
    open_config: RunConfig, run_folder: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    two = open_config.model_copy(update={"launch": open_config.launch.model_copy(update={"processes_per_node": 2})})
    write_resolved(two, run_folder.config)
    script, found = tmp_path / "listening.py", tmp_path / "found"
    script.write_text(LISTENING, encoding="utf-8")
    places: list[Path] = []

    def started(config: RunConfig, folder: RunFolder, entry: str, options: Any, node: Any, private: Path) -> list[str]:
        places.append(private)
        assert stat.S_IMODE(private.stat().st_mode) == 0o700
        return [
            sys.executable,
            *torchrun_arguments(config, folder, node, private),
            str(script),
            str(folder.config),
            str(found),
        ]

    monkeypatch.setattr(launch_module, "command", started)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    assert launch_module.run_processes(two, run_folder, "train", [], nothing) == 0, run_folder.output.read_text()
    listening = found.read_text(encoding="utf-8").split()
    assert listening, "gloo listens"
    assert set(listening) <= set(LOOPBACKS)
    assert not places[0].exists()
    assert [path.name for path in tmp_path.glob("*torch*")] == []


def test_installed_torchrun_reports_killed_ranks_in_the_expected_form(
    tmp_path: Path, open_config: RunConfig, run_folder: RunFolder
) -> None:
    """The text above is torchrun's: the installed version must report a killed rank in the same form."""
    script = tmp_path / "die.py"
    script.write_text("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", encoding="utf-8")
    arguments = [sys.executable, *torchrun_arguments(open_config, run_folder, SINGLE_NODE, tmp_path), str(script)]
    with run_folder.output.open("wb") as output:
        done = subprocess.run(arguments, stdout=output, stderr=subprocess.STDOUT, cwd=tmp_path, check=False)
    failure = launch_module.diagnose_failure(run_folder, done.returncode)
    assert str(failure).startswith("rank 0 was killed by SIGKILL, so the run was aborted")


def test_torchrun_inherits_the_lock_of_the_run_folder(
    open_config: RunConfig, run_folder: RunFolder, as_implementation: Any, summary: dict[str, Any]
) -> None:
    """The folder stays locked if Podium is killed; torchrun only inherits the open lock file."""
    as_implementation(
        "print([os.readlink(f'/proc/self/fd/{n}') for n in range(3, 4096) if os.path.exists(f'/proc/self/fd/{n}')])\n"
        f"(folder / 'summary.json').write_text({json.dumps(summary)!r})"
    )
    start(open_config, run_folder)
    assert f"'{run_folder.lock}'" in run_folder.output.read_text(encoding="utf-8")
    assert_unlocked(run_folder.lock, "it is still locked")


def test_full_disk_is_the_error_if_no_failure_was_written(
    open_config: RunConfig, run_folder: RunFolder, as_implementation: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    as_implementation("sys.exit(1)")
    with pytest.raises(
        WorkError, match=rf"^{run_folder.path}: the disk is full \(No space left on device\); free some"
    ):
        start(open_config, run_folder)


def test_unwritable_output_is_an_error(open_config: RunConfig, run_folder: RunFolder, as_implementation: Any) -> None:
    as_implementation("pass")
    run_folder.output.mkdir()
    with pytest.raises(WorkError, match=r"output\.txt: cannot be written \(Is a directory\)"):
        start(open_config, run_folder)
