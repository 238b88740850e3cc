"""Start the processes of a run by torchrun, on one machine or as one node of several, and wait for their end."""

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import IO

from podium.config.run_folder import RunFolder
from podium.config.schema import RunConfig
from podium.core.console import print_command
from podium.core.errors import (
    Interrupted,
    PodiumError,
    StoppedAfterSaving,
    UsageError,
    WorkError,
    raise_if_stopped,
    record_stop_signal,
)
from podium.core.files import private_folder, require_disk_space, user_cache_folder, write_error
from podium.core.locks import shared_lock
from podium.core.paths import CODE_FOLDER, INSTALLED, WORKING_FOLDER, child_environment, install_command
from podium.core.process_tree import DescendantProcesses, adopted_orphans, send_signal
from podium.core.processes import discard_closed_terminal_output, end_with_parent, stop_signals
from podium.launch.addresses import interface_of
from podium.launch.failure_cause import find_root_cause
from podium.launch.gpu_power import sampled_power
from podium.launch.progress_watch import HEARTBEATS, ProgressWatch, make_heartbeats
from podium.launch.timeouts import shutdown_environment, shutdown_seconds

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class Node:
    """Rank of this node, and the address at which other nodes reach it; None if there is only one node."""

    rank: int = 0
    address: str | None = None

    def output(self, folder: RunFolder) -> Path:
        """File for the output of this node's processes; all nodes share the run's folder."""
        return folder.output if self.rank == 0 else folder.path / f"output_{self.rank}.txt"


SINGLE_NODE = Node()


def require_torch() -> None:
    """Raise UsageError if PyTorch is not installed."""
    if find_spec("torch") is None:
        raise UsageError(f"this needs PyTorch, which is not installed here: {install_command('podium[train]')}")


JOIN_SECONDS = 600  # timeout of torchrun's rendezvous
TORCHRUN = ("-m", "podium.launch.single_shutdown", "torch.distributed.run")
# Environment variables with the caches of compiled machine code. Every process that finds code there executes it, so
# no other user must be able to write there.
CODE_CACHES = {"TRITON_CACHE_DIR": "triton", "TORCHINDUCTOR_CACHE_DIR": "inductor"}
STORE = "PODIUM_STORE"  # environment variable with the file store by which the ranks of a single node initialize
# In a run's private folder: file stores of torchrun and of the ranks, torchrun's logs, and the ranks' heartbeats.
RENDEZVOUS_FILE, RANKS_FILE, LOG_FOLDER, HEARTBEAT_FILE = "rendezvous", "ranks", "logs", "heartbeats"


def torchrun_arguments(config: RunConfig, folder: RunFolder, node: Node, private: Path) -> list[str]:
    """Arguments of python that start torchrun, up to the module; `private` is a folder that only this user can enter.

    Raises UsageError for a launcher other than torchrun, and for several nodes if this one has no rendezvous.
    """
    settings = config.launch
    if settings.launcher != "torchrun":
        raise UsageError(
            f"launch.launcher is {settings.launcher}, which only `podium run` and `podium doctor` start; on the "
            "machine itself set launch.launcher=torchrun, launch.container=null, launch.slurm_options=[], "
            "launch.requeue=null"
        )
    # A single node opens no network port: torchrun's `--standalone` would listen on all interfaces and unpickle
    # whatever it receives. Several nodes use the static rendezvous, which stores only addresses and JSON.
    single = settings.nodes == 1
    rendezvous = _single_node_rendezvous(private) if single else _multi_node_rendezvous(config, folder, node)
    argv = [*TORCHRUN, *rendezvous]
    argv += [f"--nnodes={settings.nodes}", f"--nproc-per-node={settings.processes_per_node}"]
    argv.append(f"--log-dir={private / LOG_FOLDER}")
    if settings.device == "cuda" and settings.binding != "none":
        argv.append(f"--numa-binding={settings.binding}")
    return argv


def _single_node_rendezvous(private: Path) -> list[str]:
    return [
        "--rdzv-backend=c10d",
        "--rdzv-conf=store_type=file",
        f"--rdzv-endpoint={private / RENDEZVOUS_FILE}",
        f"--local-addr={LOOPBACK}",  # the machine's name may not resolve
    ]


def _multi_node_rendezvous(config: RunConfig, folder: RunFolder, node: Node) -> list[str]:
    if config.launch.rendezvous is None or node.address is None:
        raise UsageError(
            f"launch.nodes is {config.launch.nodes}, but only `podium run` and `podium doctor` use several nodes, and "
            "they need launch.rendezvous; set launch.nodes=1 to use this machine only"
        )
    return [
        "--rdzv-backend=static",
        f"--rdzv-endpoint={config.launch.rendezvous}",
        f"--rdzv-id={config.system}-{folder.path.parent.name}-{folder.path.name}",
        f"--rdzv-conf=timeout={JOIN_SECONDS}",
        f"--node-rank={node.rank}",
        f"--local-addr={node.address}",
    ]


# Time between SIGTERM and SIGKILL; processes that save a checkpoint get torchrun's shutdown timeout besides.
GRACE_SECONDS = 10.0
# Iterations that an OpenMP thread spins before it sleeps: microseconds instead of libgomp's milliseconds. Without other
# load on the machine this makes no difference. With other load, threads that wait for each other by spinning take ten
# times as long (docs/lab-notebook.md). A value in the environment takes precedence.
SPIN_COUNT = "2000"


def command(
    config: RunConfig, folder: RunFolder, entry: str, options: Sequence[str], node: Node, private: Path
) -> list[str]:
    """Command line of an implementation's entry point for this run folder; UsageError if it cannot start here."""
    module = [f"implementations.{config.implementation}.{entry}", str(folder.config), str(folder.path)]
    if config.launch.binding == "cores":
        module = ["podium.launch.cpu_affinity", *module]
    restarts = [f"--max-restarts={config.launch.max_restarts}"] if entry == "train" else []
    return [sys.executable, *torchrun_arguments(config, folder, node, private), *restarts, "-m", *module, *options]


def environment(config: RunConfig, node: Node, private: Path) -> dict[str, str]:
    """Environment variables of a run's processes, besides those that they inherit from this process."""
    # Podium's own packages first; the rest as this process has it, such as carried packages.
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    search_path = os.pathsep.join(dict.fromkeys([str(CODE_FOLDER), *(entry for entry in given if entry)]))
    variables = child_environment() if INSTALLED else {"PYTHONPATH": search_path}
    variables |= {"OMP_NUM_THREADS": str(config.launch.threads), HEARTBEATS: str(private / HEARTBEAT_FILE)}
    defaults = {"GOMP_SPINCOUNT": SPIN_COUNT}
    if config.launch.nodes == 1:
        variables |= {
            STORE: str(private / RANKS_FILE),
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        }  # a file instead of a port
    for name, cache in CODE_CACHES.items():
        folder = private_folder(Path(os.environ.get(name) or user_cache_folder() / cache))
        variables[name] = str(folder or private / cache)
    # Without this, gloo takes the interface that the host name resolves to, and fails if it resolves to none.
    interface = interface_of(node.address or LOOPBACK)
    if interface is not None:
        defaults["GLOO_SOCKET_IFNAME"] = interface
    if config.launch.device == "cuda":
        # NCCL's watchdog would write a pickle to a predictable name in /tmp; ours writes JSON to the run's folder.
        defaults["TORCH_NCCL_DUMP_ON_TIMEOUT"] = "0"
    return {name: os.environ.get(name, value) for name, value in defaults.items()} | variables


def launch(
    config: RunConfig,
    folder: RunFolder,
    entry: str,
    options: Sequence[str],
    on_tick: Callable[[], None],
    node: Node = SINGLE_NODE,
) -> int:
    """Run an entry point (`train`, `bench`) to its end, calling `on_tick` a few times a second.

    The processes' output is appended to output.txt (on other nodes than the first to output_N.txt). Returns torchrun's
    exit code once all processes have ended and left a summary. Raises Interrupted after one of STOP_SIGNALS,
    StoppedAfterSaving if the run has saved a checkpoint from which it can resume, else the error that the processes
    reported, or WorkError naming the full disk or the rank that failed. No process is left in any case.
    """
    exit_code = run_processes(config, folder, entry, options, on_tick, node)
    if isinstance(saved := folder.read_failure(), StoppedAfterSaving):
        raise saved
    if folder.read_summary() is None:
        raise diagnose_failure(folder, exit_code)
    return exit_code


def run_processes(
    config: RunConfig,
    folder: RunFolder,
    entry: str,
    options: Sequence[str],
    on_tick: Callable[[], None],
    node: Node = SINGLE_NODE,
) -> int:
    """Run an entry point's processes on this node to their end, and return torchrun's exit code.

    Stalled ranks are killed, which torchrun handles like any rank that dies. No process is left when this returns or
    raises. Raises Interrupted, unless the run has then saved a checkpoint; WorkError if the folder is not writable, or
    if torchrun was killed from outside while the run saved one; and what `on_tick` raises.
    """
    saves = entry == "train" and config.checkpoint is not None
    shutdown_variable = shutdown_environment() if saves else {}
    saving_seconds = shutdown_seconds(os.environ | shutdown_variable) if saves else 0
    with (
        tempfile.TemporaryDirectory(prefix="podium_", ignore_cleanup_errors=True) as folder_name,
        shared_lock(folder.lock) as lock,
        _open_output(node.output(folder)) as output,
        sampled_power(config, folder, node.rank) if entry == "train" else nullcontext(),
        _interruptible() as interrupted,
        adopted_orphans(),
    ):
        private = Path(folder_name)
        make_heartbeats(private / HEARTBEAT_FILE, config.launch.processes_per_node)
        argv = command(config, folder, entry, options, node, private)
        print_command(argv)
        process = subprocess.Popen(
            argv,
            stdout=output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env=os.environ | environment(config, node, private) | shutdown_variable,
            cwd=WORKING_FOLDER,
            start_new_session=True,
            preexec_fn=end_with_parent,
            # torchrun inherits the lock of the run's folder: it stays locked while any process lives, even if this one
            # is killed.
            pass_fds=(lock,),
        )
        started = DescendantProcesses(process.pid, (HEARTBEATS, str(private / HEARTBEAT_FILE)))
        watch = ProgressWatch(started, private / HEARTBEAT_FILE, config.launch.timeout_seconds)
        killed_by = 0
        try:
            while process.poll() is None and not interrupted.wait(0.2):
                on_tick()
                if not _check_progress(watch, folder):
                    break
            if not interrupted.is_set():  # read before `_terminate`, which may kill torchrun
                killed_by = max(0, -(process.poll() or 0))
        finally:
            _terminate(process, started, saving_seconds + GRACE_SECONDS, output)
    on_tick()
    if killed_by and isinstance(saved := folder.read_failure(), StoppedAfterSaving):
        # The ranks got SIGTERM from the kernel, because their parent had died, and not from a user or a scheduler.
        raise WorkError(f"torchrun was killed by {_signal_name(killed_by)}, so the run was aborted ({saved})")
    if interrupted.is_set() and not isinstance(folder.read_failure(), StoppedAfterSaving):
        raise Interrupted("interrupted: stopped before the end")
    return process.returncode


def _check_progress(watch: ProgressWatch, folder: RunFolder) -> bool:
    """Report and kill stalled ranks, which torchrun may then restart; return False if torchrun itself has stalled."""
    stall = watch.check()
    if stall is None:
        return True
    if folder.read_failure() is None:  # else the watchdog of another rank has reported them
        error = WorkError(stall.message)
        try:
            folder.write_failure(error, final=False)
        except PodiumError:  # the disk may be full
            raise error from None
    for rank in stall.ranks:
        send_signal(rank, signal.SIGKILL)
    return not stall.torchrun


def _open_output(output: Path) -> IO[bytes]:
    try:
        return output.open("ab")
    except OSError as error:
        raise write_error(output, error) from None


@contextmanager
def _interruptible() -> Iterator[threading.Event]:
    """An event that the stop signals set (Ctrl-C, SIGTERM, …); the previous handlers are restored afterwards."""
    event = threading.Event()

    def interrupt(number: int, _: object) -> None:
        record_stop_signal(number)
        if number == signal.SIGHUP:
            discard_closed_terminal_output()
        event.set()

    before = {number: signal.signal(number, interrupt) for number in stop_signals()}
    try:
        raise_if_stopped()
        yield event
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _terminate(
    process: subprocess.Popen[bytes], started: DescendantProcesses, grace_seconds: float, output: IO[bytes]
) -> None:
    """End torchrun and all its descendants: by SIGTERM, and by SIGKILL after `grace_seconds`."""
    deadline = time.monotonic() + grace_seconds
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGTERM)
        started.resume_stopped()  # a stopped process does not handle SIGTERM
        with suppress(subprocess.TimeoutExpired):
            process.wait(grace_seconds)
    if process.poll() is None:
        started.remaining()  # record the descendants now: after the kill no process tree connects them to torchrun
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    for left in started.end(deadline - time.monotonic()):
        output.write(f"process {left.pid} did not end after SIGKILL (state {left.state})\n".encode())


def diagnose_failure(folder: RunFolder, exit_code: int, node: Node = SINGLE_NODE) -> PodiumError:
    """The error that ended this node's processes: the one that they reported, else from torchrun's output."""
    reported = folder.read_failure()
    if reported is not None:
        return reported
    try:  # before the output is searched: on a full disk the message would be missing there
        require_disk_space(folder.path)
    except WorkError as error:
        return error
    cause = find_root_cause(node.output(folder))
    name, code = ("torchrun", exit_code) if cause.rank is None else (f"rank {cause.rank}", cause.exit_code)
    how = f"was killed by {_signal_name(-code)}" if code < 0 else f"ended with exit code {code}"
    line = f" ({cause.line})" if cause.line else ""
    return WorkError(f"{name} {how}{line}, so the run was aborted; its output is in {node.output(folder)}")


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
