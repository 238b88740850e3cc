"""`podium run --dry-run`: the commands of a run as shell lines. Nothing is started and nothing is written."""

import shlex

from podium.config.hyperparameters import describe_hyperparameters
from podium.config.load import system_path
from podium.config.run_folder import RunFolder
from podium.config.schema import RunConfig
from podium.core.paths import WORKING_FOLDER
from podium.core.text import printable
from podium.launch.addresses import address_towards
from podium.launch.launch import SINGLE_NODE, Node, command, environment
from podium.launch.mounts import container_errors, unmounted_paths_warning
from podium.launch.node_group import rendezvous_address
from podium.launch.page_cache import Cleared
from podium.run.prepare import PreparedRun
from podium.run.run_set import RunRequest, new_set_folder


def commands(request: RunRequest) -> list[str]:
    """Return this node's commands in order, one a line; lines that begin with # are comments.

    Names of new run folders contain the current time, as those of a real run would.
    """
    config = request.config
    clipping = "none" if config.clipping is None else f"{config.clipping.when} at {config.clipping.max_norm:g}"
    lines = [
        f"# recipe {config.recipe}: attention {config.attention}, balancing {config.balancing}, clipping {clipping}, "
        f"precision {config.precision}, gradients sent as {config.wire}. {describe_hyperparameters(config)}"
    ]
    if config.launch.launcher != "torchrun":
        argv, config_inside = request.launcher_command(), request.config_inside
        warnings = [f"`podium run` would fail: {fault}" for fault in container_errors(config_inside)]
        warnings += filter(None, [unmounted_paths_warning(config_inside, system_path(request.system))])
        return [*lines, *(f"# WARNING: {printable(warning)}" for warning in warnings), shlex.join(argv)]
    lines += [f"# WARNING: {printable(warning)}" for warning in missing_paths(config)]
    node = SINGLE_NODE
    if config.launch.nodes > 1:
        node = _node(config, request.node_rank)
        lines.append(
            f"# node {node.rank} of {config.launch.nodes}: after the rendezvous each node runs this command with its "
            "--node-rank and --local-addr; node 0 chooses the folder"
        )
    new = new_set_folder(config)
    folders = [request.resumed] if request.resumed else [RunFolder(new / f"run_{n}") for n in range(request.runs)]
    for folder in folders:
        private = folder.path / "private"  # stands for the temporary folder that a real run makes
        variables = [f"{name}={value}" for name, value in environment(config, node, private).items()]
        run = PreparedRun(config, folder, Cleared(request.resumed is None, ""))
        argv = command(config, folder, "train", run.options, node, private)
        lines.append(f"cd {shlex.quote(str(WORKING_FOLDER))} && {shlex.join(['env', *variables, *argv])}")
    return lines


def missing_paths(config: RunConfig) -> list[str]:
    """Return a warning for each named file or folder that this machine does not have; only with launcher torchrun."""
    where = "on this node" if config.launch.nodes > 1 else "on this machine"
    return [
        f"{key}: {path} does not exist {where}: `podium run` would fail here"
        for key, path in config.named_paths.items()
        if not path.exists()
    ]


def _node(config: RunConfig, rank: int) -> Node:
    """This node with its address, or with the placeholder ADDRESS if the rendezvous host cannot be resolved here."""
    host, port = rendezvous_address(config)
    if rank == 0:
        return Node(0, host)
    try:
        return Node(rank, address_towards(host, port))
    except (OSError, UnicodeError):  # UnicodeError: a label of the host name has more than 63 letters
        return Node(rank, "ADDRESS")
