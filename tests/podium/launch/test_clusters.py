"""Several nodes for real: two on this machine, two hosts in network namespaces, and a Slurm of our own with two nodes.

Each must make the same run as one machine with two processes: the same losses, and a log that the official checker
takes. Slurm's daemons and network namespaces need root; on Debian `apt-get install slurm-wlm munge iproute2`.
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
    "evaluation.samples=64",
    "evaluation.interval_samples=160",
    "dropout=0",
    "precision=fp32",
    "seed=11",
    "launch.threads_per_process=1",
)
SHORT = (*SETTINGS, "max_samples=160")
STEPS = 20
LONG = (*SETTINGS, f"max_samples={16 * STEPS}", "checkpoint.every_samples=160")
"""Long enough to be stopped on its way, by a Slurm too."""
SECONDS = 400

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def home(make_home: Callable[[], Path]) -> Path:
    """A copy of the project, with results of its own, and what a Slurm starts."""
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
    words = [*within, sys.executable, "-m", "podium.cli", command, "laptop", *arguments]
    for setting in settings:
        words += ["--set", setting]
    environment = os.environ | {"PYTHONPATH": str(home)}
    return subprocess.Popen(words, cwd=home, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finished(process: Any) -> str:
    output, words = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, f"{words}\n{output}"
    return str(output)


def metrics(run_folder: Path) -> list[dict[str, Any]]:
    lines = (run_folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


@pytest.fixture(scope="module")
def one_host(train: Callable[..., RunFolder]) -> list[dict[str, Any]]:
    """Metrics of the long run on one machine with two processes that nobody stops."""
    lines = metrics(train("indexed", 2, *LONG).path)
    assert [line["event"] for line in lines] == (["step"] * 10 + ["evaluation"]) * (STEPS // 10)
    return lines


def assert_same(found: list[dict[str, Any]], expected: list[dict[str, Any]]) -> None:
    """A short run is the beginning of the long one."""
    assert len(found) in (11, len(expected))
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
    """The same command started on each, at a meeting place of their own."""
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


def assert_examined(found: dict[str, Any]) -> None:
    """All ranks of two nodes have met; that both are this machine is told."""
    findings = {finding["check"]: finding for finding in found["findings"]}
    assert found["ready"] is True
    assert findings["ranks"]["verdict"] == "warning"
    assert findings["ranks"]["found"] == f"2 on {socket.gethostname()}"
    assert findings["clocks"]["found"] == "alike"
    assert findings["gloo all-reduce"]["wanted"] == "0.05 GB/s"
    assert "GB/s, all gradients in" in findings["gloo all-reduce"]["found"]


@pytest.mark.exhaustive
def test_two_nodes_are_examined_together(home: Path) -> None:
    """`podium doctor` on both: the first one tells of all, the other says nothing. Two ranks of one node always are."""
    settings = (*SHORT, "launch.nodes=2", "description.number_of_nodes=2")
    with two_nodes(home, "--json", settings=settings, command="doctor") as nodes:
        outputs = [finished(node) for node in nodes]
    assert outputs[1] == ""
    assert_examined(json.loads(outputs[0]))


def in_training(home: Path, samples: int, *processes: subprocess.Popen[str]) -> Path:
    """The folder of a run that has just been trained on so many samples and has not ended."""
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


def assert_went_on(found: dict[str, Any], folder: Path, one_host: list[dict[str, Any]]) -> None:
    assert found["run_folder"] == str(folder)
    assert found["restarts"] == 1
    assert found["result_file"] == str(folder / "result.restarted.txt")
    events = [
        json.loads(line.removeprefix(":::MLLOG ")) for line in Path(found["result_file"]).read_text().splitlines()
    ]
    (samples,) = (event["metadata"]["epoch_num"] for event in events if event["key"] == "podium_restarted")
    assert samples > 0, "it began anew in place of going on"
    assert all(found["compliance"].values()) and found["compliance"]
    lines = metrics(folder)
    assert len(lines) == len(one_host)
    assert_same(lines, one_host)


def test_two_nodes_go_on_by_the_same_command_on_each(home: Path, one_host: list[dict[str, Any]]) -> None:
    """At another meeting place: the first one's is taken by then. Results that were there stay as they are."""
    results = home / "results" / "laptop" / "bert"
    before = {path.name: path.read_bytes() for path in results.glob("*")}
    with two_nodes(home, settings=(*LONG, "launch.nodes=2")) as nodes:
        folder = in_training(home, 48, *nodes)
        nodes[0].send_signal(signal.SIGTERM)
        words = [node.communicate(timeout=SECONDS)[1] for node in nodes]
        assert [node.returncode for node in nodes] == [143, 143], words
    told = " ".join(words[0].split())
    assert "asked to stop, and saved after " in told
    assert f"`podium run laptop --resume {folder.relative_to(home)}` resumes the run after its first " in told
    assert "samples; run it on each node with its --node-rank, unless Slurm starts the nodes" in told
    with two_nodes(home, "--json", "--resume", str(folder.relative_to(home)), settings=()) as nodes:
        found, _ = (finished(node) for node in nodes)
    assert_went_on(json.loads(found), folder, one_host)
    assert {path.name: path.read_bytes() for path in results.glob("*")} == before


Hosts = tuple[str, tuple[tuple[str, ...], ...]]


@pytest.fixture
def two_hosts() -> Iterator[Hosts]:
    """Two network namespaces with a cable between them: the first one's address, and how commands are run in each.

    Where they may not be made (that needs root and iproute2) both are this machine.
    """
    names = (f"podium{os.getpid()}a", f"podium{os.getpid()}b")
    cables = (f"pd{os.getpid()}a", f"pd{os.getpid()}b")
    made = ["ip", "netns", "add", names[0]]
    if shutil.which("ip") is None or subprocess.run(made, capture_output=True, check=False).returncode:
        yield "127.0.0.1", ((), ())
        return
    try:
        commands = [f"netns add {names[1]}", f"link add {cables[0]} type veth peer name {cables[1]}"]
        for number, (name, cable) in enumerate(zip(names, cables, strict=True), start=1):
            commands += [f"link set {cable} netns {name}", f"-n {name} addr add 10.77.0.{number}/24 dev {cable}"]
            commands += [f"-n {name} link set lo up", f"-n {name} link set {cable} up"]
        for command in commands:
            subprocess.run(["ip", *command.split()], check=True)
        yield "10.77.0.1", tuple(("ip", "netns", "exec", name) for name in names)
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


@pytest.mark.exhaustive
def test_two_hosts_make_the_same_run_over_the_network(
    home: Path, one_host: list[dict[str, Any]], two_hosts: Hosts
) -> None:
    address, within = two_hosts
    with two_nodes(home, "--json", settings=(*SHORT, "launch.nodes=2"), address=address, within=within) as nodes:
        outputs = [finished(node) for node in nodes]
    assert outputs[1] == ""
    found = json.loads(outputs[0])
    assert all(found["compliance"].values()) and found["compliance"]
    assert found["samples"] == 160
    assert (Path(found["run_folder"]) / "output_1.txt").is_file()
    assert_same(metrics(Path(found["run_folder"])), one_host)


@pytest.fixture
def stores(home: Path, tmp_path: Path) -> dict[str, Path]:
    """Stores of the embedded text by their keys, for 512 and for 128 tokens, with its vocabulary."""
    start_of_run = start(home, settings=("target_accuracy=null", "max_samples=16", "evaluation.samples=16"))
    finished(start_of_run)
    (text,) = home.glob("data/embedded/text")
    (made,) = home.glob("data/embedded/samples-*")
    parts = sorted(path for path in text.glob("part-*"))
    prepare(parts, text / "vocab.txt", tmp_path / "short", GenerationSettings.of_lengths(128, None))
    evaluation = made / "evaluation"
    return {
        "data.store": made / "training",
        "data.evaluation_store": evaluation,
        "data.vocabulary": text / "vocab.txt",
        "phases.0.store": tmp_path / "short",
    }


@pytest.mark.exhaustive
@pytest.mark.parametrize("recipe", ["exchanged", "academic"])
def test_two_hosts_with_file_systems_of_their_own_follow_one_that_has_all_shards(
    home: Path, stores: dict[str, Path], two_hosts: Hosts, tmp_path: Path, recipe: str
) -> None:
    """Each has a file system in memory, staged with its own shards alone, where the other one has its own."""
    address, within = two_hosts
    if not within[0]:
        pytest.skip("network namespaces need root and iproute2")
    trained = [key for key in stores if key.endswith("store") and "evaluation" not in key]
    if recipe == "exchanged":
        trained.remove("phases.0.store")
    settings = (*SHORT, "launch.threads_per_process=1", "loss_scaling.initial=1024")

    def of(places: Mapping[str, Path]) -> tuple[str, ...]:
        named = [f"{key}={path}" for key, path in places.items() if key.startswith("data.")]
        if recipe == "academic":
            named.append(
                f"phases=[{{store: {places['phases.0.store']}, share: 0.5, gradient_accumulation_steps: 1}}, {{}}]"
            )
        return (*settings, *named)

    whole = start(home, "--json", "--recipe", recipe, settings=(*of(stores), "launch.processes_per_node=2"))
    expected = metrics(Path(json.loads(finished(whole))["run_folder"]))

    local = {key: tmp_path / "local" / str(number) for number, key in enumerate(trained)}
    prefixes = []
    for rank in (0, 1):
        made = ["set -e"]
        for key in trained:
            local[key].mkdir(parents=True, exist_ok=True)
            stage = [sys.executable, "-m", "podium.cli", "data", "stage", str(stores[key]), str(local[key])]
            stage += ["--system", "laptop", "--recipe", recipe, "--node-rank", str(rank)]
            stage += [part for setting in (*of(stores), "launch.nodes=2") for part in ("--set", setting)]
            made += [f"mount -t tmpfs none {local[key]}", f"{shlex.join(stage)} >&2"]
            made += [f"ls {local[key]} >{tmp_path}/{recipe}.{rank}.{local[key].name}"]
        prefixes.append((*within[rank], "unshare", "--mount", "sh", "-c", "\n".join([*made, 'exec "$@"']), "sh"))
    nodes_settings = (*of(stores | local), "launch.nodes=2")
    with two_nodes(
        home, "--json", "--recipe", recipe, settings=nodes_settings, address=address, within=tuple(prefixes)
    ) as nodes:
        outputs = [finished(node) for node in nodes]
    found = json.loads(outputs[0])
    for key in trained:
        here = [set((tmp_path / f"{recipe}.{rank}.{local[key].name}").read_text().split()) for rank in (0, 1)]
        assert here[0] - here[1] and here[1] - here[0], "each lacks shards that the other has"
    assert all(found["compliance"].values()) and found["compliance"]
    lines = metrics(Path(found["run_folder"]))
    assert len(lines) == len(expected) >= 10
    assert_same(lines, expected)


SLURM = ("launch.launcher=slurm", "launch.nodes=2")


@pytest.mark.usefixtures("slurm")
def test_a_slurm_job_makes_the_same_run(home: Path, one_host: list[dict[str, Any]]) -> None:
    """`podium run` submits docker/slurm.sub, waits for the job and prints what it printed: a compliant result."""
    found = json.loads(finished(start(home, "--json", settings=(*SHORT, *SLURM))))
    assert all(found["compliance"].values()) and found["compliance"]
    assert Path(found["result_file"]) == Path(found["run_folder"]).parent / "result_0.txt"
    assert_same(metrics(Path(found["run_folder"])), one_host)


@pytest.mark.usefixtures("slurm")
def test_a_slurm_jobs_nodes_are_examined(home: Path) -> None:
    """`podium doctor` submits the same job, which examines its nodes instead."""
    settings = (*SHORT, *SLURM, "description.number_of_nodes=2")
    assert_examined(json.loads(finished(start(home, "--json", settings=settings, command="doctor"))))


@pytest.mark.usefixtures("slurm")
@pytest.mark.exhaustive  # 90 s; test_a_slurm_job_makes_the_same_run goes through the same job
def test_a_job_that_was_cancelled_goes_on_in_another(home: Path, one_host: list[dict[str, Any]]) -> None:
    waiting = start(home, settings=(*LONG, *SLURM))
    try:
        folder = in_training(home, 48, waiting)
        subprocess.run(["scancel", "--name=podium-laptop"], check=True)
        _, words = waiting.communicate(timeout=SECONDS)
        assert waiting.returncode
        assert f"--resume {folder.relative_to(home)}` resumes the run after its first " in " ".join(words.split())
        again = start(home, "--json", "--resume", str(folder.relative_to(home)), settings=SLURM[:1])
        found = json.loads(finished(again))
    finally:
        waiting.kill()
    assert_went_on(found, folder, one_host)


def jobs() -> list[str]:
    """Numbers of the jobs that wait or run."""
    asked = subprocess.run(["squeue", "--noheader", "--format=%i"], capture_output=True, text=True, check=True)
    return asked.stdout.split()


NEAR_ITS_LIMIT = ("scancel", "--batch", "--signal=USR1")  # what Slurm sends then
# The same where requeueing is refused, as an administrator has it.
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
def test_a_job_that_requeues_itself_resumes_its_run_until_it_ends(
    home: Path, one_host: list[dict[str, Any]], command: tuple[str, ...], job_files: int
) -> None:
    """The same `podium run` waits for it all the while; requeueing that is refused takes another job."""
    before = set((home / "runs" / "laptop").glob("slurm-*.txt"))
    waiting = start(home, "--json", settings=(*LONG, *SLURM, "launch.requeue={}"))
    try:
        folder = in_training(home, 48, waiting)
        subprocess.run([*command, *jobs()], check=True)
        found = json.loads(finished(waiting))
    finally:
        waiting.kill()
    assert_went_on(found, folder, one_host)
    assert len(set((home / "runs" / "laptop").glob("slurm-*.txt")) - before) == job_files
    assert jobs() == []


@pytest.mark.exhaustive
@pytest.mark.usefixtures("slurm")
def test_a_job_that_its_user_cancels_is_not_requeued(home: Path) -> None:
    waiting = start(home, settings=(*LONG, *SLURM, "launch.requeue={}"))
    try:
        in_training(home, 48)
        subprocess.run(["scancel", *jobs()], check=True)
        _, words = waiting.communicate(timeout=SECONDS)
    finally:
        waiting.kill()
    assert waiting.returncode == 143
    assert "was ended from outside (its state is " in words
    assert jobs() == []
