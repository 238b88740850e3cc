"""The part of a store that the ranks of one node draw from, where each rank draws from a part of its own."""

import os
from collections.abc import Sequence
from pathlib import Path

from benchmarks.bert.staging import is_evaluation, store_manifest
from podium.config.load import load_system
from podium.config.schema import RunConfig
from podium.core.errors import UsageError
from podium.planning.samplers import part_bounds

SLURM_NODE = "SLURM_NODEID"


def node_ranges(
    store: Path, system: str, recipe: str | None, settings: Sequence[str], node_rank: int | None
) -> list[tuple[int, int]] | None:
    """The samples first … end − 1 of a store that one node of a system needs; None where it needs all.

    The node is `node_rank`, or else that of the Slurm step. UsageError for one that the system does not have.
    """
    config = load_system(system, recipe, settings)
    if config.shards != "per_rank" or is_evaluation(store):
        return None
    nodes = config.launch.nodes
    if node_rank is None:
        given = os.environ.get(SLURM_NODE, "0" if nodes == 1 else "")
        if not given.isdecimal():
            raise UsageError(
                f"--node-rank: {system} has {nodes} nodes, and {SLURM_NODE} is not set; give 0 to {nodes - 1}, or "
                "start it by srun with one task a node"
            )
        node_rank = int(given)
    if node_rank >= nodes:
        raise UsageError(
            f"--node-rank: found {node_rank}, allowed is 0 to {nodes - 1} with the {nodes} nodes of {system}; set "
            "launch.nodes as the run has it"
        )
    return [node_part(config, store_manifest(store).samples, node_rank)]


def node_part(config: RunConfig, samples: int, node: int) -> tuple[int, int]:
    """Of a store of so many samples, the first that a node's ranks draw, and the one after the last."""
    bounds, processes = part_bounds(samples, config.launch.ranks), config.launch.processes_per_node
    return int(bounds[node * processes]), int(bounds[(node + 1) * processes])
