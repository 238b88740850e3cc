"""Start a run's processes and see them to their end, whatever that end is."""

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from benchmarks.errors import Interrupted as Interrupted
from benchmarks.errors import PodiumError, Saved, WorkError
from benchmarks.files import require_room, unwritable
from benchmarks.locks import shared_lock
from benchmarks.processes import end_with_parent
from podium.config import RunConfig, RunFolder
from podium.config.loading import ROOT
from podium.config.patience import asked, torchrun_seconds
from podium.launching.node import ALONE, Node, interface_of
from podium.launching.torchrun import torchrun

GRACE_SECONDS = 10.0
"""How long processes have to leave that were asked to; those that save themselves get torchrun's patience besides."""
SPIN_COUNT = "2000"
"""How long an OpenMP thread spins before it sleeps: microseconds instead of libgomp's milliseconds.

Alone on a machine that makes no difference; beside any other load, threads that spin for each other take ten times as
long (docs/lab-notebook.md). A value in the environment is kept.
"""
INTERRUPTED = (signal.SIGINT, signal.SIGTERM)


def command(
    config: RunConfig, folder: RunFolder, entry: str, options: Sequence[str] = (), node: Node = ALONE
) -> list[str]:
    """The command line that runs an entry point of the configured implementation in this folder, on this node.

    Raises UsageError where the configuration's processes cannot be started from here.
    """
    module = [f"implementations.{config.implementation}.{entry}", str(folder.config), str(folder.path)]
    if config.launch.binding == "cores":
        module = ["podium.launching.binding", *module]
    restarts = [f"--max-restarts={config.launch.max_restarts}"] if entry == "train" else []
    return [sys.executable, *torchrun(config, folder, node), *restarts, "-m", *module, *options]


def environment(config: RunConfig, node: Node = ALONE) -> dict[str, str]:
    """What the processes find in their environment besides this process's own."""
    ours = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": str(config.launch.threads)}
    defaults = {"GOMP_SPINCOUNT": SPIN_COUNT}
    interface = interface_of(node.address) if node.address else None
    if interface is not None:
        defaults["GLOO_SOCKET_IFNAME"] = interface  # else gloo takes the one that the machine's name belongs to
    return {name: os.environ.get(name, value) for name, value in defaults.items()} | ours


def launch(
    config: RunConfig,
    folder: RunFolder,
    entry: str,
    options: Sequence[str],
    on_tick: Callable[[], None],
    node: Node = ALONE,
) -> None:
    """Run an entry point (`train`, `bench`) to the end, calling `on_tick` a few times a second.

    What the processes print goes to output.txt. Returns when they ended by themselves and left a summary. Raises
    Interrupted after Ctrl-C or SIGTERM, and for any other end the failure that the processes told of, or WorkError
    naming the disk that is full or the rank that died. Raises Saved instead where the run has saved itself, to be gone
    on with. Output is added to what is there. All processes have ended in every case.
    """
    exit_code = run_processes(config, folder, entry, options, on_tick, node)
    if isinstance(saved := folder.told_failure(), Saved):
        raise saved
    if folder.read_summary() is None:
        raise failure(folder, exit_code)


def run_processes(
    config: RunConfig,
    folder: RunFolder,
    entry: str,
    options: Sequence[str],
    on_tick: Callable[[], None],
    node: Node = ALONE,
) -> int:
    """`launch` on this node, without a verdict: torchrun's exit code. Raises Interrupted, unless the run has saved
    itself then, WorkError where nothing can be written into the folder, and what `on_tick` raises.

    torchrun holds the run's folder too, so that it is held while any of its processes lives, should this one be killed.
    """
    saves = entry == "train" and config.checkpoint is not None
    patience = asked() if saves else {}
    saving_seconds = torchrun_seconds(os.environ | patience) if saves else 0
    with (
        shared_lock(folder.lock) as lock,
        _opened(node.output(folder)) as output,
        _interruptible() as interrupted,
    ):
        process = subprocess.Popen(
            command(config, folder, entry, options, node),
            stdout=output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env=os.environ | environment(config, node) | patience,
            cwd=ROOT,
            start_new_session=True,
            preexec_fn=end_with_parent,
            pass_fds=(lock,),
        )
        try:
            while process.poll() is None and not interrupted.wait(0.2):
                on_tick()
        finally:
            _end(process, saving_seconds + GRACE_SECONDS)
    on_tick()
    if interrupted.is_set() and not isinstance(folder.told_failure(), Saved):
        raise Interrupted("interrupted: stopped before the end")
    return process.returncode


def _opened(output: Path) -> IO[bytes]:
    try:
        return output.open("ab")
    except OSError as error:
        raise unwritable(output, error) from None


@contextmanager
def _interruptible() -> Iterator[threading.Event]:
    """An event that is set by Ctrl-C or SIGTERM; the handlers before are back in place afterwards."""
    event = threading.Event()
    before = {number: signal.signal(number, lambda *_: event.set()) for number in INTERRUPTED}
    try:
        yield event
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _end(process: subprocess.Popen[bytes], grace_seconds: float) -> None:
    """End the whole group of processes: politely, then by force."""
    for number, seconds in ((signal.SIGTERM, grace_seconds), (signal.SIGKILL, None)):
        if process.poll() is not None:
            break
        os.killpg(process.pid, number)
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            continue
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def failure(folder: RunFolder, exit_code: int, node: Node = ALONE) -> PodiumError:
    """Why the processes of this node ended before the run did: what they told, or else what torchrun printed.

    Neither is there on a disk that is full, which is why that is looked for first.
    """
    told = folder.told_failure()
    if told is not None:
        return told
    try:
        require_room(folder.path)
    except WorkError as error:
        return error
    text = node.output(folder).read_text(encoding="utf-8", errors="replace")
    _, _, root_cause = text.rpartition("Root Cause")
    died = re.search(r"^\s*rank\s*:\s*(\d+).*?^\s*exitcode\s*:\s*(-?\d+)", root_cause, re.DOTALL | re.MULTILINE)
    who, code = (f"rank {died[1]}", int(died[2])) if died else ("torchrun", exit_code)
    how = f"was killed by {_signal_name(-code)}" if code < 0 else f"ended with exit code {code}"
    return WorkError(f"{who} {how}, so the run was aborted; what it printed is in {node.output(folder)}")


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
