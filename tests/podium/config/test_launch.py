"""The `launch` section: what goes with what, and what is said where it does not."""

import re
from typing import Any

import pytest

from benchmarks.errors import UsageError
from podium.config import Launch, load_system

DOCKER = "launch.container={runtime: docker, image: podium}"


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (["launch.launcher=docker"], "launcher is docker, but there is no container; allowed with it is container.ru"),
        ([DOCKER], "launcher is torchrun, but container.runtime is docker; allowed with it is no container"),
        (
            ["launch.launcher=slurm", DOCKER],
            "launcher is slurm, but container.runtime is docker; allowed with it is no container or "
            "container.runtime pyxis or container.runtime apptainer",
        ),
        (["launch.slurm_options=[--exclusive]"], "launcher is torchrun, which has no use for slurm_options; leave"),
        (["launch.binding=node"], "binding is node, but device is cpu; allowed with it are none, cores"),
        (
            ["launch.binding=cores", "launch.device=cuda"],
            "binding is cores, but device is cuda; allowed with it are none, node, socket, exclusive, core-complex",
        ),
        (["launch.rendezvous=a:65535"], "rendezvous is a:65535; allowed are ports up to 65534"),
    ],
)
def test_what_does_not_go_together_is_told(settings: list[str], words: str) -> None:
    with pytest.raises(UsageError, match=re.escape(f"--set: launch: {words}")):
        load_system("laptop", settings=settings)


@pytest.mark.parametrize("place", ["a", "a:", ":1", "a:0", "a b:1", "::1:3", "a:123456"])
def test_a_rendezvous_is_a_host_and_a_port(place: str) -> None:
    with pytest.raises(UsageError, match=r"^--set: launch\.rendezvous: found "):
        load_system("laptop", settings=[f"launch.rendezvous='{place}'"])


@pytest.mark.parametrize("mount", ["a", "a:b", "a:/b:rw", "a,b:/c", ":/b"])
def test_a_mount_is_here_and_there(mount: str) -> None:
    container = f"launch.container={{runtime: docker, image: x, mounts: ['{mount}']}}"
    with pytest.raises(UsageError, match=r"^--set: launch\.container\.mounts\.0: found "):
        load_system("laptop", settings=["launch.launcher=docker", container])


@pytest.mark.parametrize(
    "given",
    [
        {"launcher": "docker", "container": {"runtime": "docker", "image": "x", "mounts": ["/a b:/c:ro", "d:/e"]}},
        {"launcher": "slurm"},
        {"launcher": "slurm", "container": {"runtime": "apptainer", "image": "x"}, "slurm_options": ["--exclusive"]},
        {"nodes": 3, "rendezvous": "[fd00::2]:29500"},
        {"nodes": 3, "rendezvous": "node-0.cluster:65534", "binding": "cores"},
    ],
)
def test_what_goes_together(given: dict[str, Any]) -> None:
    launch = Launch.model_validate({"processes_per_node": 4, "device": "cpu", **given})
    assert launch.ranks == 4 * launch.nodes
    assert Launch.model_validate(launch.model_dump(mode="json")) == launch
