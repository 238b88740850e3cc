"""What all tests share: a copy of the project in which nothing is left to compile or prepare, and warm processes."""

import fcntl
import gc
import importlib.util
import json
import multiprocessing
import multiprocessing.forkserver
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks.bert.preparation.prepare import prepare
from benchmarks.bert.preparation.settings import GenerationSettings
from podium.config.load import load_resolved, load_system, write_resolved
from podium.config.run_folder import RunFolder
from podium.config.schema import TrainingPhase
from podium.planning.costs import with_measured_costs

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("benchmarks", "implementations", "podium")
COMPILED = (
    "implementations/pytorch/kernels/cpu/",
    "benchmarks/bert/preparation/",
    "implementations/pytorch/data/test_batch",
    "podium/planning/",
    "benchmarks/bert/verification/",
    "implementations/pytorch/optim/",
)
# Seconds after which a rank prints its stack and ends: far more than needed on an idle machine.
LONGEST_SECONDS = 240


gc.disable()  # until all tests are imported, which makes no garbage to speak of


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of what is compiled come first, so that no two processes compile the same function.

    Files with slow tests come next, so that no worker is left alone with one of them at the end.
    """
    slow = {item.path for item in items if item.get_closest_marker("slow")}

    def turn(item: pytest.Item) -> int:
        folders = item.path.relative_to(ROOT / "tests").as_posix()
        for number, start in enumerate(COMPILED):
            if folders.startswith(start) and item.path not in slow:
                return number
        return len(COMPILED) + (item.path not in slow)

    items.sort(key=turn)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip tests marked `gpu` where there is none, unless they are rehearsed on the CPU."""
    if item.get_closest_marker("gpu") is None or os.environ.get("PODIUM_GPU_TESTS") == "cpu":
        return
    import torch  # here, since most tests of the harness do without torch

    if not torch.cuda.is_available():
        pytest.skip("needs a GPU: torch.cuda.is_available() is false")


def pytest_collection_finish() -> None:
    """Objects made by imports are never garbage; without freezing them each collection takes half a second."""
    gc.collect()
    gc.freeze()
    gc.enable()


def pytest_sessionfinish() -> None:
    gc.unfreeze()  # or libraries report what they had imported as leaked


def copy_project(source: Path, target: Path, *parts: str) -> None:
    for part in (*PACKAGES, "requirements", "systems", *parts):
        shutil.copytree(source / part, target / part, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(source / "pyproject.toml", target)


def load_script(name: str) -> Any:
    """A Python file that is in no package, such as tools/install.py, as a module."""
    specification = importlib.util.spec_from_file_location(Path(name).stem, ROOT / name)
    assert specification and specification.loader
    module = importlib.util.module_from_spec(specification)
    sys.modules[specification.name] = module  # where dataclasses look for it
    specification.loader.exec_module(module)
    return module


def installed_stamp(home: Path) -> str:
    """What setup.sh writes into .venv/podium.installed: the folder, and the files that decide what is installed."""
    names = ("pyproject.toml", "setup.py", *(f"requirements/{name}.txt" for name in ("torch-cpu", "torch-cuda", "run")))
    return f"{home}\n" + "".join((home / name).read_text(encoding="utf-8") for name in names)


@pytest.fixture(scope="session")
def warm_project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the project, one for all workers, with kernels compiled and the embedded text prepared by a short run.

    The run that compiles kernels rounds differently from later ones (docs/lab-notebook.md), so tests that compare runs
    bit for bit need it as well as those that are to be fast.
    """
    base = tmp_path_factory.getbasetemp()
    base = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    project = base / "warm_project"
    with (base / "warm_project.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not list(project.glob("runs/laptop/*/result_0.txt")):
            shutil.rmtree(project, ignore_errors=True)
            project.mkdir()
            copy_project(ROOT, project)
            short = ("target_accuracy=null", "max_samples=32", "evaluation.samples=32", "launch.threads_per_process=1")
            command = [sys.executable, "-m", "podium.cli", "run", "laptop"]
            command += [part for setting in short for part in ("--set", setting)]
            environment = os.environ | {"PYTHONPATH": str(project)}
            subprocess.run(command, cwd=project, env=environment, check=True, capture_output=True)
    return project


@pytest.fixture(scope="session")
def make_home(warm_project: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Path]:
    """Makes copies of the project without results, so that the user's own stay as they are."""

    def make() -> Path:
        home = tmp_path_factory.mktemp("podium")
        copy_project(warm_project, home, "data")
        return home

    return make


@pytest.fixture(scope="module")
def home(make_home: Callable[[], Path]) -> Path:
    """A copy of the project for one module."""
    return make_home()


StartRanks = Callable[..., None]


@pytest.fixture(scope="session")
def start_ranks(tmp_path_factory: pytest.TempPathFactory) -> StartRanks:
    """(script or module, arguments of each rank, environment of each rank, exit code): run one process for each rank.

    They are forked from a process that has imported torch and the implementation, which takes most of a start, and
    have one thread. What a rank has printed is shown if it does not end with this exit code.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.preloaded"])
    with pytest.MonkeyPatch.context() as patch:
        for name in ("OMP_NUM_THREADS", "NUMBA_NUM_THREADS"):
            patch.setenv(name, "1")
        multiprocessing.forkserver.ensure_running()

    def start(
        program: str | Path,
        arguments: Sequence[Sequence[object]],
        environments: Sequence[Mapping[str, str]] = (),
        code: int = 0,
    ) -> None:
        folder = tmp_path_factory.mktemp("ranks")
        printed = [folder / f"{rank}.txt" for rank in range(len(arguments))]
        runs = f"run_path({str(program)!r}" if isinstance(program, Path) else f"run_module({program!r}, alter_sys=True"
        started = []
        for rank, rank_arguments in enumerate(arguments):
            source = f"""
import faulthandler, os, runpy, sys
faulthandler.dump_traceback_later({LONGEST_SECONDS}, exit=True)
for stream in (1, 2):
    os.dup2(os.open({str(printed[rank])!r}, os.O_WRONLY | os.O_CREAT | os.O_APPEND), stream)
sys.path.insert(0, {str(ROOT)!r})
os.environ.update({dict(environments[rank]) if environments else {}!r})
sys.argv[1:] = {[str(argument) for argument in rank_arguments]!r}
runpy.{runs}, run_name="__main__")
"""
            started.append(context.Process(target=exec, args=(source, {})))
            started[-1].start()
        try:
            for rank, process in enumerate(started):
                process.join(2 * LONGEST_SECONDS)
                assert process.exitcode == code, f"rank {rank}: {process.exitcode}\n{printed[rank].read_text()}"
        finally:
            for process in started:
                process.kill()
                process.join()

    return start


@pytest.fixture(scope="session")
def rank_environments() -> Callable[[int], list[dict[str, str]]]:
    """(ranks) → the environment that torchrun gives each of them, with one TCPStore for all of them."""
    import torch.distributed as dist  # here, since most tests of the harness do without torch

    stores = []  # each lives as long as its ranks may need it

    def make(ranks: int) -> list[dict[str, str]]:
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        stores.append(store)
        environment = {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(store.port),
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            "WORLD_SIZE": str(ranks),
            "LOCAL_WORLD_SIZE": str(ranks),
        }
        return [environment | {"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(ranks)]

    return make


@pytest.fixture(scope="session")
def start_training(
    start_ranks: StartRanks, rank_environments: Callable[[int], list[dict[str, str]]]
) -> Callable[..., None]:
    """(folder, ranks, exit code): train in the folder of a run as torchrun would, without it; or do something else."""

    def start(
        folder: RunFolder,
        ranks: int,
        code: int = 0,
        entry: str = "train",
        options: Sequence[str] = ("--caches-cleared",),
    ) -> None:
        arguments = [(folder.config, folder.path, *options)] * ranks
        start_ranks(f"implementations.pytorch.{entry}", arguments, rank_environments(ranks), code)

    return start


@pytest.fixture(scope="session")
def train(
    start_training: Callable[..., None], warm_project: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., RunFolder]:
    """(recipe, ranks, settings of the laptop, exit code) → the folder of a run, as `podium run` would start it."""
    (prepared,) = (warm_project / "runs").rglob("config.yaml")
    data = load_resolved(prepared).data
    stores: dict[GenerationSettings, Path] = {}

    def store_of(phase: TrainingPhase) -> Path:
        """Samples of a part of the embedded text, made for the phase's length."""
        settings = phase.generation
        if settings not in stores:
            stores[settings] = tmp_path_factory.mktemp("phase")
            text = warm_project / "data" / "embedded" / "text" / "part-00000"
            assert data.vocabulary
            prepare([text], data.vocabulary, stores[settings], settings)
        return stores[settings]

    def run(
        recipe: str, ranks: int, *settings: str, code: int = 0, options: Sequence[str] = ("--caches-cleared",)
    ) -> RunFolder:
        config = load_system("laptop", recipe, [*settings, f"launch.processes_per_node={ranks}"])
        phases = tuple(
            phase if phase.generation == GenerationSettings() else phase.model_copy(update={"store": store_of(phase)})
            for phase in config.phases
        )
        folder = RunFolder(tmp_path_factory.mktemp("run"))
        config = config.model_copy(update={"data": data, "phases": phases})
        write_resolved(with_measured_costs(config), folder.config)
        start_training(folder, ranks, code, options=options)
        return folder

    return run


CONFIGURATION = """\
ClusterName=podium
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
FirstJobId={ports[0]}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=10
CredType=cred/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
MpiDefault=none
ReturnToService=2
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmdPidFile={folder}/%n.pid
SlurmctldPidFile={folder}/slurmctld.pid
NodeName=pn1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs={cpus} State=UNKNOWN
NodeName=pn2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs={cpus} State=UNKNOWN
PartitionName=batch Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


@pytest.fixture
def slurm(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A Slurm with two nodes on this machine: munged, slurmctld and two slurmd. Gives the daemons' folder."""
    missing = [name for name in ("munged", "slurmctld", "slurmd", "sbatch", "srun") if shutil.which(name) is None]
    if missing:
        pytest.skip(f"there is no {', '.join(missing)} here; install slurm-wlm and munge")
    if os.geteuid():
        pytest.skip("Slurm's daemons need root here")
    folder = tmp_path_factory.mktemp("slurm")
    for above in (folder, folder.parent, folder.parent.parent):
        above.chmod(0o755)  # munged takes no folder that others may not pass through
    for name in ("state", "spool.pn1", "spool.pn2"):
        (folder / name).mkdir()
    (folder / "munge.key").write_bytes(os.urandom(1024))
    (folder / "munge.key").chmod(0o600)
    servers = [socket.create_server(("127.0.0.1", 0)) for _ in range(3)]
    ports = [server.getsockname()[1] for server in servers]
    for server in servers:
        server.close()
    text = CONFIGURATION.format(host=socket.gethostname(), folder=folder, ports=ports, cpus=os.cpu_count())
    (folder / "slurm.conf").write_text(text, encoding="utf-8")
    monkeypatch.setenv("SLURM_CONF", str(folder / "slurm.conf"))
    munge = [f"--{name}={folder}/munge.{end}" for name, end in (("socket", "socket"), ("key-file", "key"))]
    munge += [f"--{name}-file={folder}/munge.{name}" for name in ("pid", "log", "seed")]
    daemons = [["munged", "--foreground", "--force", *munge], ["slurmctld", "-D", "-f", f"{folder}/slurm.conf"]]
    daemons += [["slurmd", "-D", "-N", name, "-f", f"{folder}/slurm.conf"] for name in ("pn1", "pn2")]
    started = []
    try:
        for command in daemons:
            with (folder / f"{command[0]}.{len(started)}.txt").open("wb") as output:
                started.append(subprocess.Popen(command, stdout=output, stderr=output))
            time.sleep(1)
        deadline = time.monotonic() + 60
        query = ["sinfo", "--noheader", "--format=%D %t"]
        while subprocess.run(query, capture_output=True, text=True, check=False).stdout.strip() != "2 idle":
            output = "\n".join(path.read_text(encoding="utf-8")[-500:] for path in sorted(folder.glob("*.txt")))
            assert time.monotonic() < deadline, output
            time.sleep(0.5)
        yield folder
    finally:
        for process in reversed(started):
            process.send_signal(signal.SIGTERM)
        for process in started:
            process.wait(30)


def without_times(metrics: Path) -> list[dict[str, Any]]:
    """The lines of a metrics file without the measured times of ranks; floats are equal only if all bits are."""
    lines = (json.loads(line) for line in metrics.read_text(encoding="utf-8").splitlines())
    return [{key: value for key, value in line.items() if key != "rank_work_ms"} for line in lines]
