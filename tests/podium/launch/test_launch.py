"""torchrun's command line, on one node and on several."""

import re
from pathlib import Path

import pytest

from podium.config.load import load_system
from podium.config.run_folder import RunFolder
from podium.config.schema import RunConfig
from podium.core.errors import UsageError
from podium.launch.launch import ALONE, TORCHRUN, Node, command, environment, torchrun


def test_what_a_node_prints_is_beside_what_the_first_prints(run_folder: RunFolder) -> None:
    assert Node(0, "h").output(run_folder) == run_folder.output
    assert Node(3, "h").output(run_folder) == run_folder.path / "output_3.txt"


PRIVATE = Path("/private")
TWO = ("launch.nodes=2", "launch.rendezvous=a1:29500")


def words(folder: RunFolder, node: Node = ALONE, *settings: str) -> list[str]:
    return torchrun(load_system("laptop", settings=settings), folder, node, PRIVATE)


def test_one_node_meets_in_a_private_folder(run_folder: RunFolder) -> None:
    found = words(run_folder, ALONE, "launch.processes_per_node=3", "global_batch_size=48")
    meeting = ["--rdzv-backend=c10d", "--rdzv-conf=store_type=file", "--rdzv-endpoint=/private/rendezvous"]
    counts = ["--nnodes=1", "--nproc-per-node=3", "--log-dir=/private/logs"]
    assert found == [*TORCHRUN, *meeting, "--local-addr=127.0.0.1", *counts]


def test_two_nodes_meet_by_the_rendezvous(run_folder: RunFolder) -> None:
    first, second = (words(run_folder, Node(rank, f"10.0.0.{rank + 1}"), *TWO) for rank in (0, 1))
    assert {"--rdzv-backend=static", "--rdzv-endpoint=a1:29500", "--rdzv-conf=timeout=600", "--nnodes=2"} < set(first)
    differing = [(a, b) for a, b in zip(first, second, strict=True) if a != b]
    assert differing == [
        ("--node-rank=0", "--node-rank=1"),
        ("--local-addr=10.0.0.1", "--local-addr=10.0.0.2"),
    ]


def test_every_run_meets_under_a_name_of_its_own(run_folder: RunFolder) -> None:
    (name,) = (word for word in words(run_folder, Node(0, "h"), *TWO) if word.startswith("--rdzv-id="))
    other = RunFolder(run_folder.path.parent / "run_1")
    assert name not in words(other, Node(0, "h"), *TWO)


def test_gpus_are_bound_by_torchrun_and_cores_by_us(run_folder: RunFolder) -> None:
    gpus = load_system("laptop", settings=["launch.device=cuda", "launch.binding=node"])
    assert "--numa-binding=node" in command(gpus, run_folder, "train", [], ALONE, PRIVATE)
    assert "podium.launch.cpu_affinity" not in command(gpus, run_folder, "train", [], ALONE, PRIVATE)
    bound = load_system("laptop", settings=["launch.binding=cores"])
    cores = command(bound, run_folder, "train", ["--x"], ALONE, PRIVATE)
    assert cores[-6:-3] == ["-m", "podium.launch.cpu_affinity", "implementations.pytorch.train"]
    assert not any("numa" in word for word in cores)


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        (TWO, "several nodes work together in `podium run` and `podium doctor` alone"),
        (
            ("launch.launcher=slurm",),
            "launch.launcher is slurm, which only `podium run` and `podium doctor` start; .*launcher=torchrun",
        ),
    ],
)
def test_what_one_machine_cannot_start_is_refused(run_folder: RunFolder, settings: tuple[str, ...], match: str) -> None:
    with pytest.raises(UsageError, match=match):
        words(run_folder, ALONE, *settings)


def test_the_environment_names_threads_and_gloos_interface(
    monkeypatch: pytest.MonkeyPatch, open_config: RunConfig
) -> None:
    for name in ("GOMP_SPINCOUNT", "GLOO_SOCKET_IFNAME"):
        monkeypatch.delenv(name, raising=False)
    found = environment(open_config, ALONE, PRIVATE)
    assert found["GLOO_SOCKET_IFNAME"] == "lo"  # a single node's ranks listen to nobody else
    assert found["PODIUM_STORE"] == "/private/ranks"
    assert found["OMP_NUM_THREADS"] == str(open_config.launch.threads)
    assert re.fullmatch(r"\d+", found["GOMP_SPINCOUNT"])
    two, node = load_system("laptop", settings=TWO), Node(0, "10.0.0.1")
    monkeypatch.setattr("podium.launch.launch.interface_of", lambda address: "eth7")
    assert environment(two, node, PRIVATE)["GLOO_SOCKET_IFNAME"] == "eth7"
    assert "PODIUM_STORE" not in environment(two, node, PRIVATE)
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "ib0")
    assert environment(two, node, PRIVATE)["GLOO_SOCKET_IFNAME"] == "ib0"


def test_machine_code_is_kept_where_only_this_user_writes(
    monkeypatch: pytest.MonkeyPatch, open_config: RunConfig, tmp_path: Path
) -> None:
    own, others = tmp_path / "own", tmp_path / "others"
    others.mkdir()
    others.chmod(0o777)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(own))
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    found = environment(open_config, ALONE, PRIVATE)
    assert (found["TRITON_CACHE_DIR"], found["TORCHINDUCTOR_CACHE_DIR"]) == (
        str(own),
        str(tmp_path / "cache" / "podium" / "inductor"),
    )
    monkeypatch.setenv("TRITON_CACHE_DIR", str(others))
    assert environment(open_config, ALONE, PRIVATE)["TRITON_CACHE_DIR"] == "/private/triton"
