"""torchrun's command line: on one machine by itself, on several by its rendezvous."""

from benchmarks.errors import UsageError
from podium.config import RunConfig, RunFolder
from podium.launching.node import Node

JOIN_SECONDS = 600


def torchrun(config: RunConfig, folder: RunFolder, node: Node) -> list[str]:
    """The words after `python` up to the module that is run.

    torchrun gives ranks to nodes by the order of their addresses. Whose rank 0 is does not matter, since all nodes
    share the run's folder. Raises UsageError for a launcher that is not torchrun, and for several nodes where this one
    has not met the others.
    """
    wanted = config.launch
    if wanted.launcher != "torchrun":
        raise UsageError(
            f"launch.launcher is {wanted.launcher}, which only `podium run` and `podium doctor` start; on the machine "
            "itself set launch.launcher=torchrun, launch.container=null and launch.slurm_options=[]"
        )
    words = ["-m", "torch.distributed.run", *(["--standalone"] if wanted.nodes == 1 else _met(config, folder, node))]
    words += [f"--nnodes={wanted.nodes}", f"--nproc-per-node={wanted.processes_per_node}"]
    if wanted.device == "cuda" and wanted.binding != "none":
        words.append(f"--numa-binding={wanted.binding}")
    return words


def _met(config: RunConfig, folder: RunFolder, node: Node) -> list[str]:
    if config.launch.rendezvous is None or node.address is None:
        raise UsageError(
            f"launch.nodes is {config.launch.nodes}: several nodes work together in `podium run` and `podium doctor` "
            "alone, and need launch.rendezvous; set launch.nodes=1 for this machine by itself"
        )
    is_host = "true" if node.rank == 0 else "false"
    return [
        "--rdzv-backend=c10d",
        f"--rdzv-endpoint={config.launch.rendezvous}",
        f"--rdzv-id={config.system}-{folder.path.parent.name}-{folder.path.name}",
        f"--rdzv-conf=is_host={is_host},join_timeout={JOIN_SECONDS}",
        f"--local-addr={node.address}",
    ]
