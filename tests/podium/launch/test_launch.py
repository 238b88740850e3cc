"""Addresses and interfaces of this machine.

torchrun's command line, on one node and on several.
"""

import re
import socket

import pytest

from podium.config.load import load_system
from podium.config.run_folder import RunFolder
from podium.config.schema import RunConfig
from podium.core.errors import UsageError
from podium.launch.launch import ALONE, TORCHRUN, Node, address_towards, command, environment, interface_of, torchrun


def test_the_loopback_and_foreign_addresses_have_no_interface() -> None:
    assert interface_of("127.0.0.1") is None
    assert interface_of("203.0.113.77") is None
    assert interface_of("not an address") is None


def test_an_address_of_this_machine_has_one_that_exists() -> None:
    addresses = {info[4][0] for info in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)}
    found = {interface_of(str(address)) for address in addresses} - {None}
    assert found <= {name for _, name in socket.if_nameindex()}


def test_a_machine_reaches_itself_from_its_own_address() -> None:
    assert address_towards("127.0.0.1", 9) == "127.0.0.1"


def test_what_a_node_prints_is_beside_what_the_first_prints(run_folder: RunFolder) -> None:
    assert Node(0, "h").output(run_folder) == run_folder.output
    assert Node(3, "h").output(run_folder) == run_folder.path / "output_3.txt"


TWO = ("launch.nodes=2", "launch.rendezvous=a1:29500")


def words(folder: RunFolder, node: Node = ALONE, *settings: str) -> list[str]:
    return torchrun(load_system("laptop", settings=settings), folder, node)


def test_one_node_stands_alone(run_folder: RunFolder) -> None:
    found = words(run_folder, ALONE, "launch.processes_per_node=3", "global_batch_size=48")
    assert found == [*TORCHRUN, "--standalone", "--nnodes=1", "--nproc-per-node=3"]


def test_two_nodes_meet_by_the_rendezvous_and_only_the_first_is_its_host(run_folder: RunFolder) -> None:
    first, second = (words(run_folder, Node(rank, f"10.0.0.{rank + 1}"), *TWO) for rank in (0, 1))
    assert "--standalone" not in first
    assert {"--rdzv-backend=c10d", "--rdzv-endpoint=a1:29500", "--nnodes=2", "--local-addr=10.0.0.1"} < set(first)
    differing = [(a, b) for a, b in zip(first, second, strict=True) if a != b]
    assert differing == [
        ("--rdzv-conf=is_host=true,join_timeout=600", "--rdzv-conf=is_host=false,join_timeout=600"),
        ("--local-addr=10.0.0.1", "--local-addr=10.0.0.2"),
    ]


def test_every_run_meets_under_a_name_of_its_own(run_folder: RunFolder) -> None:
    (name,) = (word for word in words(run_folder, Node(0, "h"), *TWO) if word.startswith("--rdzv-id="))
    other = RunFolder(run_folder.path.parent / "run_1")
    assert name not in words(other, Node(0, "h"), *TWO)


def test_gpus_are_bound_by_torchrun_and_cores_by_us(run_folder: RunFolder) -> None:
    gpus = load_system("laptop", settings=["launch.device=cuda", "launch.binding=node"])
    assert "--numa-binding=node" in command(gpus, run_folder, "train")
    assert "podium.launch.cpu_affinity" not in command(gpus, run_folder, "train")
    cores = command(load_system("laptop", settings=["launch.binding=cores"]), run_folder, "train", ["--x"])
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
    assert "GLOO_SOCKET_IFNAME" not in environment(open_config)
    assert environment(open_config)["OMP_NUM_THREADS"] == str(open_config.launch.threads)
    monkeypatch.setattr("podium.launch.launch.interface_of", lambda address: "eth7")
    assert environment(open_config, Node(0, "10.0.0.1"))["GLOO_SOCKET_IFNAME"] == "eth7"
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "ib0")
    assert environment(open_config, Node(0, "10.0.0.1"))["GLOO_SOCKET_IFNAME"] == "ib0"
    assert re.fullmatch(r"\d+", environment(open_config)["GOMP_SPINCOUNT"])
