"""torchrun's command line, on one node and on several."""

import re
from pathlib import Path

import pytest

from podium.config.load import load_system
from podium.config.run_folder import RunFolder
from podium.config.schema import RunConfig
from podium.core.errors import UsageError
from podium.core.paths import CODE_FOLDER
from podium.launch.launch import SINGLE_NODE, TORCHRUN, Node, command, environment, torchrun_arguments


def test_each_node_has_its_output_file(run_folder: RunFolder) -> None:
    assert Node(0, "h").output(run_folder) == run_folder.output
    assert Node(3, "h").output(run_folder) == run_folder.path / "output_3.txt"


PRIVATE = Path("/private")
TWO = ("launch.nodes=2", "launch.rendezvous=a1:29500")


def arguments(folder: RunFolder, node: Node = SINGLE_NODE, *settings: str) -> list[str]:
    return torchrun_arguments(load_system("laptop", settings=settings), folder, node, PRIVATE)


def test_single_node_uses_a_file_store_in_the_private_folder(run_folder: RunFolder) -> None:
    found = arguments(run_folder, SINGLE_NODE, "launch.processes_per_node=3", "global_batch_size=48")
    rendezvous = ["--rdzv-backend=c10d", "--rdzv-conf=store_type=file", "--rdzv-endpoint=/private/rendezvous"]
    counts = ["--nnodes=1", "--nproc-per-node=3", "--log-dir=/private/logs"]
    assert found == [*TORCHRUN, *rendezvous, "--local-addr=127.0.0.1", *counts]


def test_two_nodes_use_the_static_rendezvous(run_folder: RunFolder) -> None:
    first, second = (arguments(run_folder, Node(rank, f"10.0.0.{rank + 1}"), *TWO) for rank in (0, 1))
    assert {"--rdzv-backend=static", "--rdzv-endpoint=a1:29500", "--rdzv-conf=timeout=600", "--nnodes=2"} < set(first)
    differing = [(a, b) for a, b in zip(first, second, strict=True) if a != b]
    assert differing == [
        ("--node-rank=0", "--node-rank=1"),
        ("--local-addr=10.0.0.1", "--local-addr=10.0.0.2"),
    ]


def test_each_run_has_another_rendezvous_id(run_folder: RunFolder) -> None:
    (name,) = (option for option in arguments(run_folder, Node(0, "h"), *TWO) if option.startswith("--rdzv-id="))
    other = RunFolder(run_folder.path.parent / "run_1")
    assert name not in arguments(other, Node(0, "h"), *TWO)


def test_torchrun_binds_gpu_processes_and_cpu_affinity_binds_cores(run_folder: RunFolder) -> None:
    gpus = load_system("laptop", settings=["launch.device=cuda", "launch.binding=node"])
    assert "--numa-binding=node" in command(gpus, run_folder, "train", [], SINGLE_NODE, PRIVATE)
    assert "podium.launch.cpu_affinity" not in command(gpus, run_folder, "train", [], SINGLE_NODE, PRIVATE)
    bound = load_system("laptop", settings=["launch.binding=cores"])
    cores = command(bound, run_folder, "train", ["--x"], SINGLE_NODE, PRIVATE)
    assert cores[-6:-3] == ["-m", "podium.launch.cpu_affinity", "implementations.pytorch.train"]
    assert not any("numa" in option for option in cores)


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        (TWO, "but only `podium run` and `podium doctor` use several nodes"),
        (
            ("launch.launcher=slurm",),
            "launch.launcher is slurm, which only `podium run` and `podium doctor` start; .*launcher=torchrun",
        ),
    ],
)
def test_unsupported_launch_settings_are_refused(run_folder: RunFolder, settings: tuple[str, ...], match: str) -> None:
    with pytest.raises(UsageError, match=match):
        arguments(run_folder, SINGLE_NODE, *settings)


def test_environment_sets_threads_and_gloos_interface(monkeypatch: pytest.MonkeyPatch, open_config: RunConfig) -> None:
    monkeypatch.setenv("PYTHONPATH", f"/carried::{CODE_FOLDER}")
    for name in ("GOMP_SPINCOUNT", "GLOO_SOCKET_IFNAME"):
        monkeypatch.delenv(name, raising=False)
    found = environment(open_config, SINGLE_NODE, PRIVATE)
    assert found["GLOO_SOCKET_IFNAME"] == "lo"  # a single node's ranks accept no other connections
    assert found["PODIUM_STORE"] == "/private/ranks"
    assert found["PYTHONPATH"] == f"{CODE_FOLDER}:/carried"
    assert found["OMP_NUM_THREADS"] == str(open_config.launch.threads)
    assert re.fullmatch(r"\d+", found["GOMP_SPINCOUNT"])
    two, node = load_system("laptop", settings=TWO), Node(0, "10.0.0.1")
    monkeypatch.setattr("podium.launch.launch.interface_of", lambda address: "eth7")
    assert environment(two, node, PRIVATE)["GLOO_SOCKET_IFNAME"] == "eth7"
    assert "PODIUM_STORE" not in environment(two, node, PRIVATE)
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "ib0")
    assert environment(two, node, PRIVATE)["GLOO_SOCKET_IFNAME"] == "ib0"


def test_nccl_writes_no_pickle_of_its_collectives(monkeypatch: pytest.MonkeyPatch, open_config: RunConfig) -> None:
    monkeypatch.delenv("TORCH_NCCL_DUMP_ON_TIMEOUT", raising=False)
    on_gpu = open_config.model_copy(update={"launch": open_config.launch.model_copy(update={"device": "cuda"})})
    assert environment(on_gpu, SINGLE_NODE, PRIVATE)["TORCH_NCCL_DUMP_ON_TIMEOUT"] == "0"
    assert "TORCH_NCCL_DUMP_ON_TIMEOUT" not in environment(open_config, SINGLE_NODE, PRIVATE)
    monkeypatch.setenv("TORCH_NCCL_DUMP_ON_TIMEOUT", "1")  # the user's own choice
    assert environment(on_gpu, SINGLE_NODE, PRIVATE)["TORCH_NCCL_DUMP_ON_TIMEOUT"] == "1"


def test_code_caches_are_in_folders_that_only_this_user_can_write(
    monkeypatch: pytest.MonkeyPatch, open_config: RunConfig, tmp_path: Path
) -> None:
    private, shared = tmp_path / "own", tmp_path / "others"
    shared.mkdir()
    shared.chmod(0o777)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(private))
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    found = environment(open_config, SINGLE_NODE, PRIVATE)
    assert (found["TRITON_CACHE_DIR"], found["TORCHINDUCTOR_CACHE_DIR"]) == (
        str(private),
        str(tmp_path / "cache" / "podium" / "inductor"),
    )
    monkeypatch.setenv("TRITON_CACHE_DIR", str(shared))
    assert environment(open_config, SINGLE_NODE, PRIVATE)["TRITON_CACHE_DIR"] == "/private/triton"
