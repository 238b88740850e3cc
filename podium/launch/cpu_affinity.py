"""Bind this process to its share of the machine's cores, then run the given module in it.

`torchrun … -m podium.launch.cpu_affinity MODULE ARGUMENT…`: torchrun binds processes to the cores near their GPU
(--numa-binding); on a machine without a GPU this module does the same by LOCAL_RANK. Memory is not bound: Linux places
a page on the NUMA node of the core that first touches it.
"""

import os
import runpy
import sys
from collections.abc import Collection, Mapping
from pathlib import Path

DEVICES = Path("/sys/devices/system")
Cores = frozenset[int]


def share_of_cores(nodes: Mapping[int, Cores], siblings: Mapping[int, Cores], local_rank: int, ranks: int) -> Cores:
    """Return the logical CPUs of one of `ranks` processes: even shares of whole cores, in the order of the NUMA nodes.

    `nodes` maps a NUMA node to its usable logical CPUs, `siblings` a logical CPU to all those of its physical core.
    With fewer physical cores than processes every process gets all cores.
    """
    cores: list[Cores] = []
    for node in sorted(nodes):
        cores += sorted({siblings[cpu] & nodes[node] for cpu in nodes[node]}, key=min)
    if len(cores) < ranks:  # two processes bound to one core would only slow each other down
        return frozenset().union(*cores)
    first, end = (len(cores) * rank // ranks for rank in (local_rank, local_rank + 1))
    return frozenset().union(*cores[first:end])


def read_nodes(allowed: Collection[int], devices: Path = DEVICES) -> dict[int, Cores]:
    """Read the allowed logical CPUs of each NUMA node; all are on node 0 if the kernel lists no nodes."""
    nodes = {}
    for path in devices.glob("node/node[0-9]*/cpulist"):
        cpus = parse_cpus(path.read_text(encoding="ascii")) & frozenset(allowed)
        if cpus:
            nodes[int(path.parent.name.removeprefix("node"))] = cpus
    return nodes or {0: frozenset(allowed)}


def read_siblings(allowed: Collection[int], devices: Path = DEVICES) -> dict[int, Cores]:
    """Read, for each allowed logical CPU, all logical CPUs of its physical core."""
    siblings = {}
    for cpu in allowed:
        path = devices / f"cpu/cpu{cpu}/topology/thread_siblings_list"
        siblings[cpu] = parse_cpus(path.read_text(encoding="ascii")) if path.exists() else frozenset({cpu})
    return siblings


def parse_cpus(text: str) -> Cores:
    """Parse a CPU list of the kernel, such as 0-3,8."""
    cpus: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        cpus.update(range(int(first), int(last or first) + 1))
    return frozenset(cpus)


def main() -> None:
    allowed = os.sched_getaffinity(0)
    rank, ranks = int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
    os.sched_setaffinity(0, share_of_cores(read_nodes(allowed), read_siblings(allowed), rank, ranks))
    sys.argv = sys.argv[1:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
