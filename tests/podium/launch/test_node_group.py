"""Runs of two nodes: the first in this process, the worker in another one, with scripts in place of torchrun."""

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.bert.shard import Shard
from benchmarks.bert.store import update_manifest
from podium.config.load import write_resolved
from podium.config.run_data import write_run_data
from podium.config.run_folder import RunFolder
from podium.config.schema import DataSettings, RunConfig
from podium.core.errors import Interrupted, StoppedAfterSaving, UsageError, WorkError
from podium.core.paths import CODE_FOLDER
from podium.launch.node_data import DataChangedError, NodeData
from podium.launch.node_group import NodeGroup, node_group, rendezvous_address, run_worker_node
from podium.launch.page_cache import Cleared
from tests.benchmarks.bert.test_store import make_samples, write

WORKER = """
import sys
from pathlib import Path
import podium.launch.launch as launching
from podium.config.load import load_system
from podium.core.errors import PodiumError
from podium.launch import node_group
from podium.launch.page_cache import Cleared

launching.command = lambda config, folder, entry, options, node, private: [
    sys.executable, sys.argv[1], str(folder.path), str(node.rank), entry, *options
]
node_group.clear_caches = lambda config: Cleared(config.seed == 7, "partly cleared")
try:
    config = load_system("laptop", settings=sys.argv[4:])
    node_group.run_worker_node(config, int(sys.argv[2]), Path(sys.argv[3]), lambda text: None)
except PodiumError as error:
    print(error, file=sys.stderr)
    sys.exit(error.exit_code)
"""
HEAD = "import json, os, signal, sys, time\nfrom pathlib import Path\nfolder, rank = Path(sys.argv[1]), sys.argv[2]\n"


@pytest.fixture
def start_node(tmp_path: Path, settings: list[str]) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start a worker node whose torchrun is a script with the variables `folder` and `rank`."""
    started = []

    def start(script: str, rank: int = 1) -> subprocess.Popen[str]:
        path = tmp_path / f"torchrun_{rank}.py"
        path.write_text(HEAD + script, encoding="utf-8")
        process = subprocess.Popen(
            [sys.executable, "-c", WORKER, str(path), str(rank), str(tmp_path), *settings],
            env=os.environ | {"PYTHONPATH": str(CODE_FOLDER)},
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def first_node(as_implementation: Any, monkeypatch: pytest.MonkeyPatch, summary: dict[str, Any]) -> None:
    """Replace the first node's torchrun: it ends with a summary once the file `end` exists."""
    monkeypatch.setattr("podium.launch.node_group.clear_caches", lambda config: Cleared(True, "all"))
    as_implementation(
        "while not (folder / 'end').exists(): time.sleep(0.02)\n"
        f"(folder / 'summary.json').write_text({json.dumps(summary)!r})"
    )


def make_run(nodes: NodeGroup, config: RunConfig, folder: RunFolder) -> None:
    """Make a run like podium.run.run_set."""
    nodes.launch(config, folder, "train", ["--caches-cleared"], lambda: None)


def quiet(text: str) -> None:
    pass


@pytest.mark.usefixtures("first_node")
def test_two_nodes_make_several_runs(config: RunConfig, run_folder: RunFolder, tmp_path: Path, start_node: Any) -> None:
    script = "print('here', *sys.argv[3:], flush=True); (folder / 'end').touch()"
    node, notes = start_node(script), []
    with node_group(config, tmp_path, notes.append) as nodes:
        for number in range(2):
            folder = RunFolder(tmp_path / f"run_{number}")
            folder.path.mkdir()
            write_resolved(config, folder.config)
            assert nodes.clear_caches(config, folder).samples
            make_run(nodes, config, folder)
            output = (folder.path / "output_1.txt").read_text(encoding="utf-8")
            assert output == "here train --caches-cleared\n"
            assert folder.read_summary() is not None
        assert nodes.node.address == "127.0.0.1"
    assert node.wait(10) == 0
    assert notes == [f"Waiting for 1 other nodes at 127.0.0.1:{rendezvous_address(config)[1]}"]


@pytest.fixture
def stored(config: RunConfig, tmp_path: Path) -> RunConfig:
    """Configuration with stores of one shard each, which both nodes open."""
    stores = {"store": tmp_path / "train", "evaluation_store": tmp_path / "eval"}
    for seed, folder in enumerate(stores.values()):
        folder.mkdir()
        write(folder / "one.h5", make_samples([50], seed=seed))
        update_manifest(folder)
    return config.model_copy(update={"data": DataSettings(**stores, vocabulary=tmp_path / "vocab.txt")})


def overwrite_tokens(shard: Path) -> None:
    tokens, content = Shard(shard).read(0).token_ids.tobytes(), shard.read_bytes()
    shard.write_bytes(content.replace(tokens, tokens[:-2] + bytes([tokens[-2] ^ 1, tokens[-1]])))


def write_run(config: RunConfig, folder: Path) -> RunFolder:
    """Write the folder of a run like `podium run` on the first node."""
    run = RunFolder(folder)
    folder.mkdir()
    write_run_data(run.data, NodeData().of(config))
    write_resolved(config, run.config)
    return run


@pytest.mark.usefixtures("first_node")
def test_worker_verifies_its_data_and_compares_it_with_the_first_nodes(
    stored: RunConfig, tmp_path: Path, start_node: Any
) -> None:
    """Every byte once, and again if a file has changed; the manifests must equal those of the first node."""
    start_node("")
    assert stored.data.store
    shard = stored.data.store / "one.h5"
    with node_group(stored, tmp_path, quiet) as nodes:
        run = write_run(stored, tmp_path / "run_0")
        manifest = shard.parent / "manifest.json"
        kept = manifest.read_bytes()
        manifest.write_bytes(b"{")
        with pytest.raises(WorkError, match=r"^node 1 .*manifest\.json: "):
            nodes.verify_data(stored, run)
        manifest.write_bytes(kept)
        nodes.verify_data(stored, run)
        whole = shard.read_bytes()
        overwrite_tokens(shard)  # after the first node has verified it
        with pytest.raises(
            WorkError, match=r"^node 1 .*one\.h5: the shard cannot be used: its content has the SHA-256"
        ):
            nodes.verify_data(stored, run)
        shard.write_bytes(whole)
        nodes.verify_data(stored, run)
        write(shard, make_samples([60], seed=7))
        update_manifest(shard.parent)
        with pytest.raises(WorkError, match=r"^node 1 .*: data\.store: .*its tokens is 60, node 0 has 50; restore the"):
            nodes.verify_data(stored, run)
        run.data.unlink()
        nodes.verify_data(stored, run)  # a resumed run of an older version has no data.json


@pytest.mark.usefixtures("first_node")
def test_data_changed_on_a_worker_during_the_run_is_an_error(
    stored: RunConfig, tmp_path: Path, start_node: Any
) -> None:
    assert stored.data.store
    shard = stored.data.store / "one.h5"
    start_node(f"os.utime({str(shard)!r}); (folder / 'end').touch()")
    with node_group(stored, tmp_path, quiet) as nodes:
        run = write_run(stored, tmp_path / "run_0")
        nodes.verify_data(stored, run)
        with pytest.raises(
            DataChangedError, match=r"^node 1 .*: the data was changed during the run: .*one\.h5 is not"
        ):
            make_run(nodes, stored, run)


@pytest.mark.usefixtures("first_node")
def test_caches_count_as_cleared_only_if_cleared_on_all_nodes(
    config: RunConfig, tmp_path: Path, start_node: Any
) -> None:
    start_node("")
    folder = RunFolder(tmp_path / "run_0")
    folder.path.mkdir()
    write_resolved(config.model_copy(update={"seed": 8}), folder.config)
    with node_group(config, tmp_path, quiet) as nodes:
        cleared = nodes.clear_caches(config, folder)
    assert cleared == Cleared(False, f"node 1 ({socket.gethostname()}): partly cleared")


@pytest.mark.usefixtures("first_node")
def test_killed_worker_ends_the_run(config: RunConfig, run_folder: RunFolder, start_node: Any, tmp_path: Path) -> None:
    write_resolved(config, run_folder.config)
    node = start_node("(folder / 'begun').touch(); time.sleep(60)")

    def kill() -> None:
        while not (run_folder.path / "begun").exists():
            time.sleep(0.02)
        node.kill()

    thread = threading.Thread(target=kill)
    thread.start()
    with (
        pytest.raises(WorkError, match=r"^node 1 \(.*\) was lost \(.*\); see Podium's output there$"),
        node_group(config, tmp_path, quiet) as nodes,
    ):
        make_run(nodes, config, run_folder)
    thread.join()


@pytest.mark.usefixtures("first_node")
def test_killed_rank_on_a_worker_ends_the_run_with_its_message(
    config: RunConfig, run_folder: RunFolder, start_node: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("podium.launch.node_group.ENDING_SECONDS", 0.3)
    write_resolved(config, run_folder.config)
    node = start_node("os.kill(os.getpid(), signal.SIGKILL)")
    with (
        pytest.raises(WorkError, match=r"^node 1 \(.*\): torchrun was killed by SIGKILL, so .*output_1\.txt$"),
        node_group(config, tmp_path, quiet) as nodes,
    ):
        make_run(nodes, config, run_folder)
    assert node.wait(10) == 1


def test_failure_on_the_first_node_ends_the_workers_processes(
    config: RunConfig, run_folder: RunFolder, start_node: Any, as_implementation: Any, tmp_path: Path
) -> None:
    as_implementation("while not (folder / 'pid').exists(): time.sleep(0.02)\nsys.exit(5)")
    write_resolved(config, run_folder.config)
    node = start_node(
        "Path(folder / 'p').write_text(str(os.getpid())); (folder / 'p').rename(folder / 'pid')\ntime.sleep(60)"
    )
    with (
        pytest.raises(WorkError, match="torchrun ended with exit code 5"),
        node_group(config, tmp_path, quiet) as nodes,
    ):
        make_run(nodes, config, run_folder)
    assert node.wait(10) == 1
    with pytest.raises(ProcessLookupError):
        os.kill(int((run_folder.path / "pid").read_text(encoding="utf-8")), 0)


@pytest.mark.usefixtures("first_node")
@pytest.mark.parametrize(
    ("error", "exit_code"),
    [
        (WorkError("rank 0 died"), 1),
        (StoppedAfterSaving("asked to stop, and saved"), 143),
        (Interrupted("interrupted: stopped"), 130),
        (UsageError("data.store: missing"), 2),
        (ZeroDivisionError("a defect"), 1),
    ],
)
def test_worker_ends_with_the_first_nodes_error_and_exit_code(
    config: RunConfig, start_node: Any, error: Exception, exit_code: int, tmp_path: Path
) -> None:
    node = start_node("")
    with pytest.raises(type(error)), node_group(config, tmp_path, quiet):
        raise error
    assert node.wait(10) == exit_code
    assert node.stderr.read() == f"node 0 failed: {error}\n"


@pytest.mark.usefixtures("first_node")
def test_worker_ends_with_exit_code_1_after_a_missed_target(config: RunConfig, start_node: Any, tmp_path: Path) -> None:
    node = start_node("")
    with node_group(config, tmp_path, quiet) as nodes:
        nodes.fail("the target was not reached", exit_code=1)
    assert node.wait(10) == 1


def test_missing_nodes_are_named(config: RunConfig, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("podium.launch.node_group.JOIN_SECONDS", 0.1)
    three = config.model_copy(update={"launch": config.launch.model_copy(update={"nodes": 3})})
    with pytest.raises(
        WorkError,
        match=r"^nodes 1, 2 have not connected to 127\.0\.0\.1:\d+ within 0 s; start the same command .* reach 127",
    ):
        node_group(three, tmp_path, quiet).__enter__()


def test_missing_first_node_is_an_error(config: RunConfig, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("podium.launch.node_group.JOIN_SECONDS", 0.1)
    with pytest.raises(WorkError, match=r"^launch\.rendezvous: no process answers at 127\.0\.0\.1:\d+ \("):
        run_worker_node(config, 1, tmp_path, quiet)


@pytest.mark.parametrize("rank", [2, 3])
def test_rank_out_of_range_is_refused(config: RunConfig, rank: int, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=f"^--node-rank: found {rank}, allowed is 0 to 1"):
        run_worker_node(config, rank, tmp_path, quiet)


def test_missing_rendezvous_is_an_error(config: RunConfig, tmp_path: Path) -> None:
    nowhere = config.model_copy(update={"launch": config.launch.model_copy(update={"rendezvous": None})})
    with pytest.raises(UsageError, match=r"launch\.nodes is 2, but launch\.rendezvous is missing; set it to HOST:PORT"):
        node_group(nowhere, tmp_path, quiet).__enter__()
    six = config.model_copy(update={"launch": config.launch.model_copy(update={"rendezvous": "[fd00::2]:29500"})})
    assert rendezvous_address(six) == ("fd00::2", 29501)


def test_single_node_waits_for_no_other(open_config: RunConfig, tmp_path: Path) -> None:
    with node_group(open_config, tmp_path, quiet) as nodes:
        assert nodes.node.address is None
        nodes.watch()
        nodes.finish()
