"""A run's processes, seen to their end: whatever the end is, it is told in a sentence and nothing lives on."""

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
from pathlib import Path
from typing import Any

import pytest

from podium.config.load import write_resolved
from podium.config.run_folder import RunFolder
from podium.config.schema import Checkpointing, RunConfig
from podium.core.errors import Interrupted, Saved, UsageError, WorkError
from podium.core.locks import assert_unlocked
from podium.core.processes import STOP_SIGNALS, stop_signals
from podium.launch import launch as launch_module
from podium.launch.launch import ALONE, TORCHRUN, command, launch, torchrun

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
"""  # noqa: E501
"""What torchrun of PyTorch 2.13 prints when rank 1 of two dies."""

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


def test_the_command_runs_the_implementation_under_torchrun(open_config: RunConfig, run_folder: RunFolder) -> None:
    config = open_config.model_copy(update={"launch": open_config.launch.model_copy(update={"processes_per_node": 3})})
    found = command(config, run_folder, "train", [], ALONE, PRIVATE)
    assert found[:5] == [sys.executable, *TORCHRUN, "--rdzv-backend=c10d"]
    assert "--nproc-per-node=3" in found
    assert found[-3:] == ["implementations.pytorch.train", str(run_folder.config), str(run_folder.path)]
    assert command(config, run_folder, "train", ["--caches-cleared"], ALONE, PRIVATE) == [*found, "--caches-cleared"]


def test_only_training_is_started_again(open_config: RunConfig, run_folder: RunFolder) -> None:
    config = open_config.model_copy(update={"launch": open_config.launch.model_copy(update={"max_restarts": 4})})
    assert "--max-restarts=4" in command(config, run_folder, "train", [], ALONE, PRIVATE)
    assert "--max-restarts=0" in command(open_config, run_folder, "train", [], ALONE, PRIVATE)
    assert not any("restarts" in word for word in command(config, run_folder, "bench", [], ALONE, PRIVATE))


def test_a_run_that_has_saved_itself_is_no_failure(
    open_config: RunConfig, run_folder: RunFolder, as_implementation: Any
) -> None:
    failure = json.dumps({"exit_code": 143, "message": "saved after 32 samples"})
    as_implementation(f"(folder / 'failure.json').write_text({failure!r}); sys.exit(143)")
    with pytest.raises(Saved, match=r"^saved after 32 samples$") as caught:
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
def test_processes_that_make_checkpoints_get_the_time_to_save(
    open_config: RunConfig,
    run_folder: RunFolder,
    as_implementation: Any,
    monkeypatch: pytest.MonkeyPatch,
    number: int,
) -> None:
    monkeypatch.setattr(launch_module, "GRACE_SECONDS", 0.1)
    as_implementation(SAVING)
    thread = interrupt_when_begun(run_folder, number)
    with pytest.raises(Saved, match=r"^saved$"):
        start(open_config.model_copy(update={"checkpoint": Checkpointing()}), run_folder)
    thread.join()
    assert run_folder.output.read_text(encoding="utf-8") == "60\n"


def test_output_is_added_to_what_is_there(
    open_config: RunConfig, run_folder: RunFolder, as_implementation: Any, summary: dict[str, Any]
) -> None:
    run_folder.output.write_text("of the first attempt\n", encoding="utf-8")
    as_implementation(f"print('of the second'); (folder / 'summary.json').write_text({json.dumps(summary)!r})")
    start(open_config, run_folder)
    assert run_folder.output.read_text(encoding="utf-8") == "of the first attempt\nof the second\n"


def test_a_run_that_ends_by_itself(
    open_config: RunConfig, run_folder: RunFolder, as_implementation: Any, summary: dict[str, Any]
) -> None:
    as_implementation(
        "print('some words', flush=True); print('and errors', file=sys.stderr)\n"
        "print(os.getcwd(), os.environ['OMP_NUM_THREADS'], sys.stdin.read() == '')\n"
        f"time.sleep(0.5); (folder / 'summary.json').write_text({json.dumps(summary)!r}); sys.exit(1)"
    )
    ticks: list[float] = []
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    start(open_config, run_folder, lambda: ticks.append(time.monotonic()))
    assert len(ticks) >= 2
    assert run_folder.read_summary() == summary
    text = run_folder.output.read_text(encoding="utf-8")
    assert "some words" in text
    assert "and errors" in text
    assert f"{launch_module.WORKING_FOLDER} {open_config.launch.threads} True" in text
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == handlers


@pytest.mark.parametrize("kind", [UsageError, WorkError])
def test_a_failure_that_was_told_is_the_one_raised(
    open_config: RunConfig, run_folder: RunFolder, as_implementation: Any, kind: type[WorkError]
) -> None:
    failure = json.dumps({"exit_code": kind.exit_code, "message": "part-3.h5: is damaged"})
    as_implementation(f"(folder / 'failure.json').write_text({failure!r}); sys.exit(9)")
    with pytest.raises(kind, match=r"^part-3\.h5: is damaged$"):
        start(open_config, run_folder)


def test_an_end_without_words_is_told_by_its_exit_code(
    open_config: RunConfig, run_folder: RunFolder, as_implementation: Any
) -> None:
    as_implementation("sys.stdout.buffer.write(b'\\xff not UTF-8'); sys.exit(7)")
    with pytest.raises(
        WorkError,
        match=r"^torchrun ended with exit code 7 \(the last line that was printed: . not UTF-8\), so the run was "
        r"aborted; what it printed is in ",
    ) as caught:
        start(open_config, run_folder)
    assert str(run_folder.output) in str(caught.value)


def test_a_launcher_that_was_killed_is_told(
    open_config: RunConfig, run_folder: RunFolder, as_implementation: Any
) -> None:
    as_implementation("os.kill(os.getpid(), signal.SIGKILL)")
    with pytest.raises(WorkError, match=r"^torchrun was killed by SIGKILL, so the run was aborted"):
        start(open_config, run_folder)


def failing(text: str) -> str:
    return f"print({text!r}); sys.exit(1)"


def test_a_rank_that_was_killed_is_named_with_the_signal(
    open_config: RunConfig, run_folder: RunFolder, as_implementation: Any
) -> None:
    as_implementation(failing(KILLED.format(code=-9, others="  <NO_OTHER_FAILURES>")))
    with pytest.raises(WorkError, match=r"^rank 1 was killed by SIGKILL, so the run was aborted; what it"):
        start(open_config, run_folder)


def test_the_rank_that_is_named_is_the_first_that_died(
    open_config: RunConfig, run_folder: RunFolder, as_implementation: Any
) -> None:
    """torchrun lists the ranks that it ended itself before the one that died."""
    as_implementation(failing(KILLED.format(code=-9, others=OTHERS)))
    with pytest.raises(WorkError, match=r"^rank 1 was killed by SIGKILL, "):
        start(open_config, run_folder)


def test_a_rank_that_ended_is_named_with_its_exit_code(
    open_config: RunConfig, run_folder: RunFolder, as_implementation: Any
) -> None:
    as_implementation(failing(KILLED.format(code=3, others="  <NO_OTHER_FAILURES>")))
    with pytest.raises(WorkError, match=r"^rank 1 ended with exit code 3, so the run was aborted"):
        start(open_config, run_folder)


def test_a_signal_without_a_name_is_told_too(
    open_config: RunConfig, run_folder: RunFolder, as_implementation: Any
) -> None:
    as_implementation(failing(KILLED.format(code=-40, others="  <NO_OTHER_FAILURES>")))
    with pytest.raises(WorkError, match="40"):
        start(open_config, run_folder)


FAMILY = """
import subprocess
worker = "import time; from podium.core.processes import end_with_parent; {end}; print(1, flush=True); time.sleep(60)"
child = subprocess.Popen([sys.executable, "-c", worker], start_new_session={alone}, stdout=subprocess.PIPE)
assert child.stdout.readline()
(folder / "pids.partial").write_text(f"{{os.getpid()}} {{child.pid}}")
{before}
os.rename(folder / "pids.partial", folder / "pids")
{after}
"""
"""A launcher with a child that has no end of its own; torchrun's workers lead sessions of their own (alone)."""


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
    ("number", "stubborn"), [*((number, False) for number in STOP_SIGNALS), (signal.SIGTERM, True)]
)
def test_an_interruption_ends_every_process_of_the_group(
    open_config: RunConfig,
    run_folder: RunFolder,
    as_implementation: Any,
    monkeypatch: pytest.MonkeyPatch,
    number: int,
    stubborn: bool,
) -> None:
    monkeypatch.setattr(launch_module, "GRACE_SECONDS", 0.3)
    if number not in stop_signals():
        pytest.skip("nohup started the tests")
    before = "signal.signal(signal.SIGTERM, signal.SIG_IGN)" if stubborn else ""
    as_implementation(FAMILY.format(alone=False, end="pass", before=before, after="time.sleep(60)"))
    handler, thread = signal.getsignal(number), interrupt_when_begun(run_folder, number)
    begun = time.monotonic()
    with pytest.raises(Interrupted, match=r"^interrupted: stopped before the end$"):
        start(open_config, run_folder)
    thread.join()
    assert time.monotonic() - begun < 10
    assert signal.getsignal(number) is handler
    assert_all_dead(run_folder)


def test_a_signal_that_nohup_has_ignored_ends_nothing(
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


def test_a_launcher_that_dies_leaves_no_child_behind(
    open_config: RunConfig, run_folder: RunFolder, as_implementation: Any
) -> None:
    as_implementation(FAMILY.format(alone=False, end="pass", before="", after="os.kill(os.getpid(), signal.SIGKILL)"))
    with pytest.raises(WorkError, match="torchrun was killed by SIGKILL"):
        start(open_config, run_folder)
    assert_all_dead(run_folder)


def test_workers_in_sessions_of_their_own_end_too(
    open_config: RunConfig, run_folder: RunFolder, as_implementation: Any
) -> None:
    """torchrun starts its workers so; when it is killed itself (no memory left), they would go on."""
    as_implementation(
        FAMILY.format(alone=True, end="end_with_parent()", before="", after="os.kill(os.getpid(), signal.SIGKILL)")
    )
    with pytest.raises(WorkError, match="torchrun was killed by SIGKILL"):
        start(open_config, run_folder)
    assert_all_dead(run_folder)


def test_an_error_while_looking_for_news_ends_the_processes(
    open_config: RunConfig, run_folder: RunFolder, as_implementation: Any
) -> None:
    as_implementation(FAMILY.format(alone=False, end="pass", before="", after="time.sleep(60)"))

    def tick() -> None:
        if (run_folder.path / "pids").exists():
            raise RuntimeError("a defect")

    with pytest.raises(RuntimeError, match="a defect"):
        start(open_config, run_folder, tick)
    assert_all_dead(run_folder)


LISTENING = """\
import os, sys
from pathlib import Path
from implementations.pytorch.distributed.process_group import joined
from podium.config.load import load_resolved
from podium.core.files import write_whole

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
            words = line.split()
            if words[3] == "0A" and f"socket:[{words[9]}]" in sockets:
                yield words[1].partition(":")[0]

with joined(load_resolved(Path(sys.argv[1]))) as processes:
    processes.barrier()
    if processes.first:
        write_whole(Path(sys.argv[2]), " ".join(addresses()))
    processes.barrier()
"""
LOOPBACKS = (
    "0100007F",
    "00000000000000000000000001000000",
    "0000000000000000FFFF00000100007F",
)  # as the kernel has them


def test_no_process_of_a_single_node_listens_to_other_machines(
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
        return [sys.executable, *torchrun(config, folder, node, private), str(script), str(folder.config), str(found)]

    monkeypatch.setattr(launch_module, "command", started)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    assert launch_module.run_processes(two, run_folder, "train", [], nothing) == 0, run_folder.output.read_text()
    listening = found.read_text(encoding="utf-8").split()
    assert listening, "gloo listens"
    assert set(listening) <= set(LOOPBACKS)
    assert not places[0].exists()
    assert [path.name for path in tmp_path.glob("*torch*")] == []


def test_torchrun_still_prints_what_is_looked_for(
    tmp_path: Path, open_config: RunConfig, run_folder: RunFolder
) -> None:
    """The text above is torchrun's own: a rank that is killed under the installed one is told in the same form."""
    script = tmp_path / "die.py"
    script.write_text("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", encoding="utf-8")
    arguments = [sys.executable, *torchrun(open_config, run_folder, ALONE, tmp_path), str(script)]
    with run_folder.output.open("wb") as output:
        done = subprocess.run(arguments, stdout=output, stderr=subprocess.STDOUT, cwd=tmp_path, check=False)
    failure = launch_module.failure(run_folder, done.returncode)
    assert str(failure).startswith("rank 0 was killed by SIGKILL, so the run was aborted")


def test_the_launcher_holds_the_run_s_folder_too(
    open_config: RunConfig, run_folder: RunFolder, as_implementation: Any, summary: dict[str, Any]
) -> None:
    """So that it is held if Podium is killed. By what it inherits: it knows nothing of locks."""
    as_implementation(
        "print([os.readlink(f'/proc/self/fd/{n}') for n in range(3, 4096) if os.path.exists(f'/proc/self/fd/{n}')])\n"
        f"(folder / 'summary.json').write_text({json.dumps(summary)!r})"
    )
    start(open_config, run_folder)
    assert f"'{run_folder.lock}'" in run_folder.output.read_text(encoding="utf-8")
    assert_unlocked(run_folder.lock, "nobody holds it any more")


def test_a_full_disk_is_named_where_nothing_could_be_told(
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


def test_output_that_cannot_be_written_is_a_sentence(
    open_config: RunConfig, run_folder: RunFolder, as_implementation: Any
) -> None:
    as_implementation("pass")
    run_folder.output.mkdir()
    with pytest.raises(WorkError, match=r"output\.txt: cannot be written \(Is a directory\)"):
        start(open_config, run_folder)
