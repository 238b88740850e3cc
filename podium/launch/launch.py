"""Starts the processes of a run by torchrun, on one machine or as one node of several, and waits for their end."""

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import IO

from podium.config.run_folder import RunFolder
from podium.config.schema import RunConfig
from podium.core.errors import Interrupted, PodiumError, Saved, UsageError, WorkError
from podium.core.files import private_folder, require_room, unwritable, user_cache_folder
from podium.core.locks import shared_lock
from podium.core.paths import CODE_FOLDER, INSTALLED, WORKING_FOLDER, process_environment
from podium.core.process_tree import StartedProcesses, adopted_orphans, send
from podium.core.processes import end_with_parent, leave_closed_terminal, stop_signals
from podium.launch.addresses import interface_of
from podium.launch.failure_cause import cause_of
from podium.launch.progress_watch import HEARTBEATS, ProgressWatch, make_heartbeats
from podium.launch.timeouts import asked, torchrun_seconds

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class Node:
    """A machine's number among the nodes, and the address at which the others reach it (None: there are no others)."""

    rank: int = 0
    address: str | None = None

    def output(self, folder: RunFolder) -> Path:
        """Where what this node's processes print goes: all nodes share the run's folder."""
        return folder.output if self.rank == 0 else folder.path / f"output_{self.rank}.txt"


ALONE = Node()


def require_torch() -> None:
    """UsageError where PyTorch is not installed, which whatever trains or evaluates needs."""
    if find_spec("torch") is None:
        raise UsageError("this needs PyTorch, which is not installed here: pip install 'podium[train]'")


JOIN_SECONDS = 600
TORCHRUN = ("-m", "podium.launch.single_shutdown", "torch.distributed.run")
# Environment variables with the folders in which compilers keep machine code, which whoever finds it runs.
CODE_CACHES = {"TRITON_CACHE_DIR": "triton", "TORCHINDUCTOR_CACHE_DIR": "inductor"}
STORE = "PODIUM_STORE"  # environment variable with the file by which the ranks of a single node find each other
# Files of a run's private folder: by which torchrun finds its ranks, they each other, torchrun's own logs, and the
# heartbeats of the ranks.
RENDEZVOUS, RANKS, LOGS, BEATS = "rendezvous", "ranks", "logs", "heartbeats"


def torchrun(config: RunConfig, folder: RunFolder, node: Node, private: Path) -> list[str]:
    """The words after `python` up to the module that is run; `private` is a folder that no other user can enter.

    A single node needs no network port: torchrun's `--standalone` would listen on all interfaces and unpickle what
    strangers send. Several nodes use its static rendezvous, which holds addresses and JSON alone. Raises UsageError for
    a launcher that is not torchrun, and for several nodes where this one has not met the others.
    """
    wanted = config.launch
    if wanted.launcher != "torchrun":
        raise UsageError(
            f"launch.launcher is {wanted.launcher}, which only `podium run` and `podium doctor` start; on the machine "
            "itself set launch.launcher=torchrun, launch.container=null, launch.slurm_options=[], launch.requeue=null"
        )
    words = [*TORCHRUN, *(_alone(private) if wanted.nodes == 1 else _met(config, folder, node))]
    words += [f"--nnodes={wanted.nodes}", f"--nproc-per-node={wanted.processes_per_node}"]
    words.append(f"--log-dir={private / LOGS}")
    if wanted.device == "cuda" and wanted.binding != "none":
        words.append(f"--numa-binding={wanted.binding}")
    return words


def _alone(private: Path) -> list[str]:
    return [
        "--rdzv-backend=c10d",
        "--rdzv-conf=store_type=file",
        f"--rdzv-endpoint={private / RENDEZVOUS}",
        f"--local-addr={LOOPBACK}",  # the machine's name may not resolve
    ]


def _met(config: RunConfig, folder: RunFolder, node: Node) -> list[str]:
    if config.launch.rendezvous is None or node.address is None:
        raise UsageError(
            f"launch.nodes is {config.launch.nodes}: several nodes work together in `podium run` and `podium doctor` "
            "alone, and need launch.rendezvous; set launch.nodes=1 for this machine by itself"
        )
    return [
        "--rdzv-backend=static",
        f"--rdzv-endpoint={config.launch.rendezvous}",
        f"--rdzv-id={config.system}-{folder.path.parent.name}-{folder.path.name}",
        f"--rdzv-conf=timeout={JOIN_SECONDS}",
        f"--node-rank={node.rank}",
        f"--local-addr={node.address}",
    ]


# How long processes have to leave that were asked to; those that save themselves get torchrun's patience besides.
GRACE_SECONDS = 10.0
# How long an OpenMP thread spins before it sleeps: microseconds instead of libgomp's milliseconds.
#
# Alone on a machine that makes no difference; beside any other load, threads that spin for each other take ten times as
# long (docs/lab-notebook.md). A value in the environment is kept.
SPIN_COUNT = "2000"


def command(
    config: RunConfig, folder: RunFolder, entry: str, options: Sequence[str], node: Node, private: Path
) -> list[str]:
    """The command line of an implementation's entry point in this folder; UsageError if it cannot start here."""
    module = [f"implementations.{config.implementation}.{entry}", str(folder.config), str(folder.path)]
    if config.launch.binding == "cores":
        module = ["podium.launch.cpu_affinity", *module]
    restarts = [f"--max-restarts={config.launch.max_restarts}"] if entry == "train" else []
    return [sys.executable, *torchrun(config, folder, node, private), *restarts, "-m", *module, *options]


def environment(config: RunConfig, node: Node, private: Path) -> dict[str, str]:
    """What the processes find in their environment besides this process's own."""
    ours = process_environment() if INSTALLED else {"PYTHONPATH": str(CODE_FOLDER)}
    ours |= {"OMP_NUM_THREADS": str(config.launch.threads), HEARTBEATS: str(private / BEATS)}
    defaults = {"GOMP_SPINCOUNT": SPIN_COUNT}
    if config.launch.nodes == 1:
        ours |= {STORE: str(private / RANKS), "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}  # a file instead of a port
    for name, cache in CODE_CACHES.items():
        folder = private_folder(Path(os.environ.get(name) or user_cache_folder() / cache))
        ours[name] = str(folder or private / cache)
    # Else gloo takes the interface that the machine's name belongs to, if it belongs to any.
    interface = interface_of(node.address or LOOPBACK)
    if interface is not None:
        defaults["GLOO_SOCKET_IFNAME"] = interface
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
    Interrupted after one of STOP_SIGNALS, and for any other end the failure that the processes told of, or WorkError
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
    itself then, WorkError where nothing can be written into the folder or torchrun was killed from outside while the
    run saved itself, and what `on_tick` raises.

    torchrun holds the run's folder too, so that it is held while any of its processes lives, should this one be killed.
    Ranks that stand still are killed, which torchrun answers as it does when one dies. Whatever happens, nothing that
    was started here is left when this returns.
    """
    saves = entry == "train" and config.checkpoint is not None
    patience = asked() if saves else {}
    saving_seconds = torchrun_seconds(os.environ | patience) if saves else 0
    with (
        tempfile.TemporaryDirectory(prefix="podium_", ignore_cleanup_errors=True) as folder_name,
        shared_lock(folder.lock) as lock,
        _opened(node.output(folder)) as output,
        _interruptible() as interrupted,
        adopted_orphans(),
    ):
        private = Path(folder_name)
        make_heartbeats(private / BEATS, config.launch.processes_per_node)
        process = subprocess.Popen(
            command(config, folder, entry, options, node, private),
            stdout=output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env=os.environ | environment(config, node, private) | patience,
            cwd=WORKING_FOLDER,
            start_new_session=True,
            preexec_fn=end_with_parent,
            pass_fds=(lock,),
        )
        started = StartedProcesses(process.pid, (HEARTBEATS, str(private / BEATS)))
        watch = ProgressWatch(started, private / BEATS, config.launch.timeout_seconds)
        killed_by = 0
        try:
            while process.poll() is None and not interrupted.wait(0.2):
                on_tick()
                if not _moves(watch, folder):
                    break
            if not interrupted.is_set():
                killed_by = max(0, -(process.poll() or 0))
        finally:
            _end(process, started, saving_seconds + GRACE_SECONDS, output)
    on_tick()
    if killed_by and isinstance(saved := folder.told_failure(), Saved):
        # The ranks were asked to stop by the kernel, since their parent was gone, and not by a user or a scheduler.
        raise WorkError(f"torchrun was killed by {_signal_name(killed_by)}, so the run was aborted ({saved})")
    if interrupted.is_set() and not isinstance(folder.told_failure(), Saved):
        raise Interrupted("interrupted: stopped before the end")
    return process.returncode


def _moves(watch: ProgressWatch, folder: RunFolder) -> bool:
    """Whether torchrun can go on. Ranks that stand still are reported and killed; it may then start them again."""
    standstill = watch.look()
    if standstill is None:
        return True
    if folder.told_failure() is None:  # else the watchdog of another rank has named them
        error = WorkError(standstill.sentence)
        try:
            folder.tell_failure(error, final=False)
        except PodiumError:  # the disk may be full
            raise error from None
    for rank in standstill.ranks:
        send(rank, signal.SIGKILL)
    return not standstill.torchrun


def _opened(output: Path) -> IO[bytes]:
    try:
        return output.open("ab")
    except OSError as error:
        raise unwritable(output, error) from None


@contextmanager
def _interruptible() -> Iterator[threading.Event]:
    """An event that is set by Ctrl-C, SIGTERM and the like; the handlers before are back in place afterwards."""
    event = threading.Event()

    def interrupt(number: int, _: object) -> None:
        if number == signal.SIGHUP:
            leave_closed_terminal()
        event.set()

    before = {number: signal.signal(number, interrupt) for number in stop_signals()}
    try:
        yield event
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _end(process: subprocess.Popen[bytes], started: StartedProcesses, grace_seconds: float, output: IO[bytes]) -> None:
    """End torchrun and all that it has started: politely, then by force."""
    deadline = time.monotonic() + grace_seconds
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGTERM)
        started.resume_stopped()
        with suppress(subprocess.TimeoutExpired):
            process.wait(grace_seconds)
    if process.poll() is None:
        started.left()  # whose parents are gone in a moment
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    for left in started.end(deadline - time.monotonic()):
        output.write(f"process {left.pid} does not end, not even by SIGKILL (state {left.state})\n".encode())


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
    death = cause_of(node.output(folder))
    who, code = ("torchrun", exit_code) if death.rank is None else (f"rank {death.rank}", death.exit_code)
    how = f"was killed by {_signal_name(-code)}" if code < 0 else f"ended with exit code {code}"
    line = f" ({death.line})" if death.line else ""
    return WorkError(f"{who} {how}{line}, so the run was aborted; what it printed is in {node.output(folder)}")


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
