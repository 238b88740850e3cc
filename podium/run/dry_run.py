"""`podium run --dry-run`: prints the commands of a run as shell lines; nothing is started and nothing is written."""

import shlex
from collections.abc import Sequence

from podium.config.run_folder import RunFolder
from podium.config.schema import RunConfig
from podium.core.paths import WORKING_FOLDER
from podium.launch.container import wrapped
from podium.launch.launch import ALONE, Node, address_towards, command, environment
from podium.launch.node_group import meeting_place
from podium.run.run_set import entry_options, new_set_folder


def commands(
    config: RunConfig,
    system: str,
    options: Sequence[str],
    runs: int,
    node_rank: int,
    resumed: RunFolder | None = None,
) -> list[str]:
    """One line a command, in the order in which they would be run; a line that begins with # says what is beside it.

    Folders are named for the time, so that a run a moment later has another; `resumed` is that of a run that is gone
    on with. Several nodes: this node's commands.
    """
    if config.launch.launcher != "torchrun":
        return [shlex.join(wrapped(config, system, options, node_rank))]
    node, lines = ALONE, []
    if config.launch.nodes > 1:
        node = _node(config, node_rank)
        lines.append(
            f"# node {node_rank} of {config.launch.nodes}: once all have met, each runs this with a --local-addr of "
            "its own, and node 0 alone with is_host=true; node 0 names the folder"
        )
    new = new_set_folder(config)
    folders = [resumed] if resumed else [RunFolder(new / f"run_{number}") for number in range(runs)]
    variables = [f"{name}={value}" for name, value in environment(config, node).items()]
    for folder in folders:
        words = command(config, folder, "train", entry_options(resumed is None), node)
        lines.append(f"cd {shlex.quote(str(WORKING_FOLDER))} && {shlex.join(['env', *variables, *words])}")
    return lines


def _node(config: RunConfig, rank: int) -> Node:
    host, port = meeting_place(config)
    if rank == 0:
        return Node(0, host)
    try:
        return Node(rank, address_towards(host, port))
    except OSError:
        return Node(rank, "ADDRESS")
