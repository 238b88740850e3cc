"""Runs on several real nodes: two on this machine, two hosts in network namespaces, and a local Slurm with two nodes.

Each must make the same run as one machine with two processes: the same losses, and a log that the official checker
accepts. Slurm's daemons and network namespaces need root; on Debian `apt-get install slurm-wlm munge iproute2`.
"""

import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from benchmarks.bert.preparation.prepare import prepare
from benchmarks.bert.preparation.settings import GenerationSettings
from podium.config.run_folder import RunFolder
from podium.core.paths import CODE_FOLDER
from tests.podium.launch.conftest import free_port

SETTINGS = (
    "target_accuracy=null",
    "evaluation.samples=16",
    "evaluation.interval_samples=112",
    "dropout=0",
    "precision=fp32",
    "seed=11",
    "launch.threads_per_process=1",
)
SHORT = (*SETTINGS, "max_samples=112")
STEPS = 14
# Long enough to be stopped during training, also by Slurm.
LONG = (*SETTINGS, f"max_samples={16 * STEPS}", "checkpoint.every_samples=112")
SECONDS = 400

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def home(make_home: Callable[[], Path]) -> Path:
    """A copy of the project with its job script and with separate results."""
    home = make_home()
    shutil.copytree(CODE_FOLDER / "docker", home / "docker")
    return home


def start(
    home: Path,
    *arguments: str,
    settings: tuple[str, ...],
    within: tuple[str, ...] = (),
    command: str = "run",
) -> Any:
    argv = [*within, sys.executable, "-m", "podium.cli", command, "laptop", *arguments]
    for setting in settings:
        argv += ["--set", setting]
    environment = os.environ | {"PYTHONPATH": str(home)}
    return subprocess.Popen(argv, cwd=home, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finished(process: Any) -> str:
    output, errors = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, f"{errors}\n{output}"
    return str(output)


def metrics(run_folder: Path) -> list[dict[str, Any]]:
    lines = (run_folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


@pytest.fixture(scope="module")
def one_host(train: Callable[..., RunFolder]) -> list[dict[str, Any]]:
    """Metrics of the long run on one machine with two processes, without an interruption."""
    lines = metrics(train("indexed", 2, *LONG).path)
    assert [line["event"] for line in lines] == (["step"] * 7 + ["evaluation"]) * (STEPS // 7)
    return lines


def assert_same(found: list[dict[str, Any]], expected: list[dict[str, Any]]) -> None:
    """Compare metrics; those of a short run equal the beginning of the long one's."""
    assert len(found) in (8, len(expected))
    for one, other in zip(found, expected, strict=False):
        assert one["event"] == other["event"]
        assert one["samples"] == other["samples"]
        for key in ("loss", "gradient_norm", "accuracy", "masked_lm_loss"):
            if key in one:
                assert one[key] == pytest.approx(other[key], rel=1e-4)


@contextmanager
def two_nodes(
    home: Path,
    *arguments: str,
    settings: tuple[str, ...],
    address: str = "127.0.0.1",
    within: tuple[tuple[str, ...], ...] = ((), ()),
    command: str = "run",
) -> Iterator[list[Any]]:
    """Start the same command on two nodes, with a new rendezvous."""
    settings = (*settings, f"launch.rendezvous={address}:{free_port()}")
    nodes = [
        start(home, *arguments, "--node-rank", str(rank), settings=settings, within=within[rank], command=command)
        for rank in (0, 1)
    ]
    try:
        yield nodes
    finally:
        for node in nodes:
            node.kill()


def assert_diagnosed(found: dict[str, Any]) -> None:
    """The ranks of two nodes were connected, with a warning that both nodes are this machine."""
    findings = {finding["check"]: finding for finding in found["findings"]}
    assert found["ready"] is True
    assert findings["ranks"]["verdict"] == "warning"
    assert findings["ranks"]["found"] == f"2 on {socket.gethostname()}"
    assert findings["clocks"]["found"] == "alike"
    assert findings["gloo all-reduce"]["wanted"] == "0.05 GB/s"
    assert "GB/s, all gradients in" in findings["gloo all-reduce"]["found"]


@pytest.mark.exhaustive
def test_doctor_on_two_nodes(home: Path) -> None:
    """The first node reports on both, the other one prints nothing."""
    settings = (*SHORT, "launch.nodes=2", "description.number_of_nodes=2")
    with two_nodes(home, "--json", settings=settings, command="doctor") as nodes:
        outputs = [finished(node) for node in nodes]
    assert outputs[1] == ""
    assert_diagnosed(json.loads(outputs[0]))


def in_training(home: Path, samples: int, *processes: subprocess.Popen[str]) -> Path:
    """Wait until a new run has trained on `samples` samples; returns its folder."""
    deadline = time.monotonic() + SECONDS
    before = set((home / "runs").rglob("metrics.jsonl"))
    while time.monotonic() < deadline:
        for path in set((home / "runs").rglob("metrics.jsonl")) - before:
            if f'"samples": {samples}' in path.read_text(encoding="utf-8"):
                return path.parent
        ended = [process for process in processes if process.poll() is not None]
        assert not ended, [process.communicate() for process in ended]
        time.sleep(0.005)
    raise AssertionError("the run has not begun")


def assert_resumed(found: dict[str, Any], folder: Path, one_host: list[dict[str, Any]]) -> None:
    assert found["run_folder"] == str(folder)
    assert found["restarts"] == 1
    assert found["result_file"] == str(folder / "result.restarted.txt")
    events = [
        json.loads(line.removeprefix(":::MLLOG ")) for line in Path(found["result_file"]).read_text().splitlines()
    ]
    (samples,) = (event["metadata"]["epoch_num"] for event in events if event["key"] == "podium_restarted")
    assert samples > 0, "it began again instead of resuming"
    assert all(found["compliance"].values()) and found["compliance"]
    lines = metrics(folder)
    assert len(lines) == len(one_host)
    assert_same(lines, one_host)


def test_two_nodes_resume_by_the_same_command_on_each(home: Path, one_host: list[dict[str, Any]]) -> None:
    """With another rendezvous, because the first port is in use then. Earlier results stay unchanged."""
    results = home / "results" / "laptop" / "bert"
    before = {path.name: path.read_bytes() for path in results.glob("*")}
    with two_nodes(home, settings=(*LONG, "launch.nodes=2")) as nodes:
        folder = in_training(home, 32, *nodes)
        nodes[0].send_signal(signal.SIGTERM)
        errors = [node.communicate(timeout=SECONDS)[1] for node in nodes]
        assert [node.returncode for node in nodes] == [143, 143], errors
    message = " ".join(errors[0].split())
    assert "asked to stop, and saved after " in message
    assert f"`podium run laptop --resume {folder.relative_to(home)}` resumes the run after its first " in message
    assert "samples; run it on each node with its --node-rank, unless Slurm starts the nodes" in message
    with two_nodes(home, "--json", "--resume", str(folder.relative_to(home)), settings=()) as nodes:
        found, _ = (finished(node) for node in nodes)
    assert_resumed(json.loads(found), folder, one_host)
    assert {path.name: path.read_bytes() for path in results.glob("*")} == before


Hosts = tuple[str, tuple[tuple[str, ...], ...]]


@pytest.fixture
def two_hosts() -> Iterator[Hosts]:
    """Two connected network namespaces: the first one's address, and a command prefix for each.

    Without permission to make them (root and iproute2) both are this machine.
    """
    names = (f"podium{os.getpid()}a", f"podium{os.getpid()}b")
    cables = (f"pd{os.getpid()}a", f"pd{os.getpid()}b")
    command = ["ip", "netns", "add", names[0]]
    if shutil.which("ip") is None or subprocess.run(command, capture_output=True, check=False).returncode:
        yield "127.0.0.1", ((), ())
        return
    try:
        commands = [f"netns add {names[1]}", f"link add {cables[0]} type veth peer name {cables[1]}"]
        for number, (name, cable) in enumerate(zip(names, cables, strict=True), start=1):
            commands += [f"link set {cable} netns {name}", f"-n {name} addr add 10.77.0.{number}/24 dev {cable}"]
            commands += [f"-n {name} link set lo up", f"-n {name} link set {cable} up"]
        for arguments in commands:
            subprocess.run(["ip", *arguments.split()], check=True)
        yield "10.77.0.1", tuple(("ip", "netns", "exec", name) for name in names)
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


@pytest.mark.exhaustive
def test_two_hosts_make_the_same_run(home: Path, one_host: list[dict[str, Any]], two_hosts: Hosts) -> None:
    address, within = two_hosts
    with two_nodes(home, "--json", settings=(*SHORT, "launch.nodes=2"), address=address, within=within) as nodes:
        outputs = [finished(node) for node in nodes]
    assert outputs[1] == ""
    found = json.loads(outputs[0])
    assert all(found["compliance"].values()) and found["compliance"]
    assert found["samples"] == 112
    assert (Path(found["run_folder"]) / "output_1.txt").is_file()
    assert_same(metrics(Path(found["run_folder"])), one_host)


@pytest.fixture
def stores(home: Path, tmp_path: Path) -> dict[str, Path]:
    """Stores of the embedded text for 512 and 128 tokens, and its vocabulary, by configuration key."""
    start_of_run = start(home, settings=("target_accuracy=null", "max_samples=16", "evaluation.samples=16"))
    finished(start_of_run)
    (text,) = home.glob("data/embedded/text")
    (samples,) = home.glob("data/embedded/samples-*")
    parts = sorted(path for path in text.glob("part-*"))
    prepare(parts, text / "vocab.txt", tmp_path / "short", GenerationSettings.from_lengths(128, None))
    evaluation = samples / "evaluation"
    return {
        "data.store": samples / "training",
        "data.evaluation_store": evaluation,
        "data.vocabulary": text / "vocab.txt",
        "phases.0.store": tmp_path / "short",
    }


@pytest.mark.exhaustive
@pytest.mark.parametrize("recipe", ["exchanged", "academic"])
def test_two_hosts_with_separate_file_systems_make_the_same_run_as_one(
    home: Path, stores: dict[str, Path], two_hosts: Hosts, tmp_path: Path, recipe: str
) -> None:
    """Each host has only its shards, staged in a file system in memory at the same path."""
    address, within = two_hosts
    if not within[0]:
        pytest.skip("network namespaces need root and iproute2")
    trained = [key for key in stores if key.endswith("store") and "evaluation" not in key]
    if recipe == "exchanged":
        trained.remove("phases.0.store")
    settings = (*SHORT, "launch.threads_per_process=1", "loss_scaling.initial=1024")

    def settings_for(paths: Mapping[str, Path]) -> tuple[str, ...]:
        named = [f"{key}={path}" for key, path in paths.items() if key.startswith("data.")]
        if recipe == "academic":
            named.append(
                f"phases=[{{store: {paths['phases.0.store']}, share: 0.5, gradient_accumulation_steps: 1}}, {{}}]"
            )
        return (*settings, *named)

    whole = start(home, "--json", "--recipe", recipe, settings=(*settings_for(stores), "launch.processes_per_node=2"))
    expected = metrics(Path(json.loads(finished(whole))["run_folder"]))

    local = {key: tmp_path / "local" / str(number) for number, key in enumerate(trained)}
    prefixes = []
    for rank in (0, 1):
        script = ["set -e"]
        for key in trained:
            local[key].mkdir(parents=True, exist_ok=True)
            stage = [sys.executable, "-m", "podium.cli", "data", "stage", str(stores[key]), str(local[key])]
            stage += ["--system", "laptop", "--recipe", recipe, "--node-rank", str(rank)]
            stage += [part for setting in (*settings_for(stores), "launch.nodes=2") for part in ("--set", setting)]
            script += [f"mount -t tmpfs none {local[key]}", f"{shlex.join(stage)} >&2"]
            script += [f"ls {local[key]} >{tmp_path}/{recipe}.{rank}.{local[key].name}"]
        prefixes.append((*within[rank], "unshare", "--mount", "sh", "-c", "\n".join([*script, 'exec "$@"']), "sh"))
    nodes_settings = (*settings_for(stores | local), "launch.nodes=2")
    with two_nodes(
        home, "--json", "--recipe", recipe, settings=nodes_settings, address=address, within=tuple(prefixes)
    ) as nodes:
        outputs = [finished(node) for node in nodes]
    found = json.loads(outputs[0])
    for key in trained:
        here = [set((tmp_path / f"{recipe}.{rank}.{local[key].name}").read_text().split()) for rank in (0, 1)]
        assert here[0] - here[1] and here[1] - here[0], "each host has shards that the other has not"
    assert all(found["compliance"].values()) and found["compliance"]
    lines = metrics(Path(found["run_folder"]))
    assert len(lines) == len(expected) >= 8
    assert_same(lines, expected)


SLURM = ("launch.launcher=slurm", "launch.nodes=2")


@pytest.mark.usefixtures("slurm")
def test_slurm_job_makes_the_same_run(home: Path, one_host: list[dict[str, Any]]) -> None:
    """`podium run` submits docker/slurm.sub, waits for the job and prints its output: a compliant result."""
    found = json.loads(finished(start(home, "--json", settings=(*SHORT, *SLURM))))
    assert all(found["compliance"].values()) and found["compliance"]
    assert Path(found["result_file"]) == Path(found["run_folder"]).parent / "result_0.txt"
    assert_same(metrics(Path(found["run_folder"])), one_host)


@pytest.mark.usefixtures("slurm")
def test_doctor_in_a_slurm_job(home: Path) -> None:
    """`podium doctor` submits the same job, which checks its nodes instead."""
    settings = (*SHORT, *SLURM, "description.number_of_nodes=2")
    assert_diagnosed(json.loads(finished(start(home, "--json", settings=settings, command="doctor"))))


@pytest.mark.usefixtures("slurm")
@pytest.mark.exhaustive  # 90 s; test_slurm_job_makes_the_same_run runs the same job
def test_run_of_a_cancelled_job_resumes_in_another_job(home: Path, one_host: list[dict[str, Any]]) -> None:
    waiting = start(home, settings=(*LONG, *SLURM))
    try:
        folder = in_training(home, 32, waiting)
        subprocess.run(["scancel", "--name=podium-laptop"], check=True)
        _, errors = waiting.communicate(timeout=SECONDS)
        assert waiting.returncode
        assert f"--resume {folder.relative_to(home)}` resumes the run after its first " in " ".join(errors.split())
        again = start(home, "--json", "--resume", str(folder.relative_to(home)), settings=SLURM[:1])
        found = json.loads(finished(again))
    finally:
        waiting.kill()
    assert_resumed(found, folder, one_host)


def jobs() -> list[str]:
    """Numbers of the pending and running jobs."""
    result = subprocess.run(["squeue", "--noheader", "--format=%i"], capture_output=True, text=True, check=True)
    return result.stdout.split()


NEAR_ITS_LIMIT = ("scancel", "--batch", "--signal=USR1")  # Slurm's signal at that time
# The same on a cluster whose configuration refuses requeueing.
REFUSED = ("bash", "-c", 'scontrol update JobId="$0" Requeue=0 && scancel --batch --signal=USR1 "$0"')


@pytest.mark.exhaustive
@pytest.mark.usefixtures("slurm")
@pytest.mark.parametrize(
    ("command", "job_files"),
    [
        pytest.param(NEAR_ITS_LIMIT, 1, id="time limit"),
        pytest.param(REFUSED, 2, id="requeueing refused"),
        pytest.param(("scontrol", "requeue"), 1, id="requeued from outside"),
    ],
)
def test_requeued_job_resumes_its_run(
    home: Path, one_host: list[dict[str, Any]], command: tuple[str, ...], job_files: int
) -> None:
    """The same `podium run` waits for the run's end. If requeueing is refused, another job resumes the run."""
    before = set((home / "runs" / "laptop").glob("slurm-*.txt"))
    waiting = start(home, "--json", settings=(*LONG, *SLURM, "launch.requeue={}"))
    try:
        folder = in_training(home, 32, waiting)
        subprocess.run([*command, *jobs()], check=True)
        found = json.loads(finished(waiting))
    finally:
        waiting.kill()
    assert_resumed(found, folder, one_host)
    assert len(set((home / "runs" / "laptop").glob("slurm-*.txt")) - before) == job_files
    assert jobs() == []


@pytest.mark.exhaustive
@pytest.mark.usefixtures("slurm")
def test_job_cancelled_by_its_user_is_not_requeued(home: Path) -> None:
    waiting = start(home, settings=(*LONG, *SLURM, "launch.requeue={}"))
    try:
        in_training(home, 32)
        subprocess.run(["scancel", *jobs()], check=True)
        _, errors = waiting.communicate(timeout=SECONDS)
    finally:
        waiting.kill()
    assert waiting.returncode == 143
    assert "was ended from outside (its state is " in errors
    assert jobs() == []
