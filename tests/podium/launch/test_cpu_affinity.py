"""Shares of a machine's cores, and the binding of a real process."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from podium.core.paths import CODE_FOLDER
from podium.launch.cpu_affinity import parse_cpus, read_nodes, read_siblings, share_of_cores

Cores = frozenset[int]


def without_siblings(cpus: Cores) -> dict[int, Cores]:
    return {cpu: frozenset({cpu}) for cpu in cpus}


def test_two_processes_get_a_numa_node_each() -> None:
    nodes = {0: frozenset({0, 1, 4, 5}), 1: frozenset({2, 3, 6, 7})}
    siblings = {cpu: frozenset({cpu % 4, cpu % 4 + 4}) for cpu in range(8)}
    assert [share_of_cores(nodes, siblings, rank, 2) for rank in (0, 1)] == [nodes[0], nodes[1]]
    four = [share_of_cores(nodes, siblings, rank, 4) for rank in range(4)]
    assert four == [{0, 4}, {1, 5}, {2, 6}, {3, 7}]


@pytest.mark.parametrize(("cores", "ranks"), [(7, 2), (8, 3), (64, 8), (5, 5)])
def test_shares_are_disjoint_whole_and_even(cores: int, ranks: int) -> None:
    every = frozenset(range(cores))
    shares = [share_of_cores({0: every}, without_siblings(every), rank, ranks) for rank in range(ranks)]
    assert frozenset().union(*shares) == every
    assert sum(map(len, shares)) == cores
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_more_processes_than_cores_share_all_cores() -> None:
    siblings = {0: frozenset({0, 1}), 1: frozenset({0, 1})}
    assert share_of_cores({0: frozenset({0, 1})}, siblings, 1, 2) == {0, 1}


def test_partly_allowed_core_is_its_allowed_half() -> None:
    siblings = {cpu: frozenset({cpu, cpu + 4}) for cpu in range(4)}
    allowed = frozenset(range(4))
    assert share_of_cores({0: allowed}, siblings, 0, 2) == {0, 1}


def test_topology_is_read_from_sysfs(tmp_path: Path) -> None:
    for node, cpus in ((0, "0-3,8-11"), (1, "4-7,12-15"), (10, "")):
        folder = tmp_path / "node" / f"node{node}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(f"{cpus}\n", encoding="ascii")
    topology = tmp_path / "cpu" / "cpu3" / "topology"
    topology.mkdir(parents=True)
    (topology / "thread_siblings_list").write_text("3,11\n", encoding="ascii")
    assert read_nodes({3, 9, 12}, tmp_path) == {0: {3, 9}, 1: {12}}
    assert read_siblings({3, 9}, tmp_path) == {3: {3, 11}, 9: {9}}
    assert read_nodes({3}, tmp_path / "nothing") == {0: {3}}
    assert parse_cpus("0-2,5") == {0, 1, 2, 5}


def test_process_is_bound_and_runs_the_module(tmp_path: Path) -> None:
    (tmp_path / "bound_module.py").write_text(
        "import os, sys\nassert __name__ == '__main__'\n"
        "print(sorted(os.sched_getaffinity(0)), sys.argv[1:], os.path.basename(sys.argv[0]))\n",
        encoding="utf-8",
    )
    allowed = os.sched_getaffinity(0)
    expected = [share_of_cores(read_nodes(allowed), read_siblings(allowed), rank, 2) for rank in (0, 1)]
    for rank in (0, 1):
        done = subprocess.run(
            [sys.executable, "-m", "podium.launch.cpu_affinity", "bound_module", "a", "--b"],
            env=os.environ
            | {"LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": "2", "PYTHONPATH": f"{CODE_FOLDER}:{tmp_path}"},
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout == f"{sorted(expected[rank])} ['a', '--b'] bound_module.py\n"
