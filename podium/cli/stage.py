"""`podium data stage`: copies a store to a local disk of this node, completely or only what the node's ranks read."""

import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from podium.cli.options import AsJson, Recipe, Settings, print_output
from podium.core.console import print_note, print_text, progress_bar
from podium.core.errors import UsageError

if TYPE_CHECKING:  # each command imports its libraries itself, so that the other commands start faster
    from benchmarks.bert.manifest import NodePart
    from podium.config.schema import RunConfig

SLURM_NODE = "SLURM_NODEID"


def stage(
    store: Annotated[
        Path, typer.Argument(metavar="STORE", help="A folder of shards, such as one on a shared file system.")
    ],
    target: Annotated[
        Path, typer.Argument(metavar="TARGET", help="The folder to copy to, on a local disk of this node.")
    ],
    system: Annotated[
        str | None,
        typer.Option(
            "--system",
            metavar="SYSTEM",
            help="For a system with `shards: per_rank`: copy only the shards that this node's ranks read.",
        ),
    ] = None,
    recipe: Recipe = None,
    settings: Settings = None,
    node_rank: Annotated[
        int | None,
        typer.Option(
            "--node-rank", min=0, help="With --system: this node's number. Default in a Slurm step: SLURM_NODEID."
        ),
    ] = None,
    files: Annotated[int, typer.Option("--files", min=1, help="Number of files to copy in parallel.")] = 4,
    as_json: AsJson = False,
) -> None:
    """Copy a store to a local disk of this node, read the copy back and compare it with the manifest.

    Run the same command again to resume an interrupted copy. With --system, if each rank reads only its part of the
    store, only the shards with samples of this node's ranks are copied. Evaluation stores are always copied completely.
    """
    from benchmarks.bert.manifest import WHOLE_STORE
    from benchmarks.bert.shard import EVALUATION
    from benchmarks.bert.staging import stage_store, store_manifest
    from podium.config.load import load_system

    if system is None and (recipe is not None or settings or node_rank is not None):
        raise UsageError("--recipe, --set and --node-rank have no effect without --system; give --system too")
    evaluation = store_manifest(store).selection == EVALUATION
    part = WHOLE_STORE
    if system is not None and not evaluation:
        part = node_part(load_system(system, recipe, settings or []), node_rank)
    with progress_bar() as bar:
        task = bar.add_task("Copying files", total=None)
        staged = stage_store(
            store,
            target,
            part,
            files,
            on_start=lambda size: bar.update(task, total=size),
            on_bytes=lambda size: bar.advance(task, size),
        )
    print_note(f"Files copied and verified: {len(staged.copied):,}; kept from before: {len(staged.kept):,}")
    if staged.left_out:
        print_note(f"Shards left out, which node {part.node} of {part.nodes} does not need: {staged.left_out:,}")
    key = "data.evaluation_store" if evaluation else "data.store"
    options = ["--recipe", recipe] if recipe else []
    for setting in (*(settings or []), f"{key}={target.resolve()}"):
        options += ["--set", setting]
    print_note(f"To train with it: {shlex.join(['podium', 'run', system or 'SYSTEM', *options])}")
    print_note("(data.store, data.evaluation_store and data.vocabulary must be set together)")
    document = {
        "store": str(target),
        "copied": len(staged.copied),
        "kept": len(staged.kept),
        "left_out": staged.left_out,
    }
    print_output(as_json, document, lambda _: print_text(target))


def node_part(config: "RunConfig", node_rank: int | None) -> "NodePart":
    """Return the part of the training store that a node reads: node `node_rank`, or by default that of the Slurm step.

    UsageError for a node that the system does not have.
    """
    from benchmarks.bert.manifest import WHOLE_STORE, NodePart

    nodes = config.launch.nodes
    if node_rank is not None and node_rank >= nodes:
        allowed = f"0 to {nodes - 1}" if nodes > 1 else "0"
        raise UsageError(
            f"--node-rank: found {node_rank}, allowed is {allowed} with {config.system}'s launch.nodes {nodes}; set "
            "launch.nodes as for the run"
        )
    if not config.reads_own_part:
        return WHOLE_STORE
    if node_rank is not None:
        return NodePart(node_rank, nodes)
    given = os.environ.get(SLURM_NODE, "0" if nodes == 1 else "")
    if not given.isdecimal() or int(given) >= nodes:
        raise UsageError(
            f"--node-rank: {config.system} has {nodes} nodes, and {SLURM_NODE} is {given or 'not set'}; give 0 to "
            f"{nodes - 1}, or start the command by srun with one task on each of {nodes} nodes"
        )
    return NodePart(int(given), nodes)
