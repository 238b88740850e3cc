"""`podium run --dry-run`: the commands of a run, for a shell and as JSON. Nothing is started and nothing is written."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from podium.config.hyperparameters import describe_hyperparameters
from podium.config.load import system_path
from podium.config.run_folder import RunFolder
from podium.config.schema import RunConfig
from podium.core.errors import PodiumError, attempt
from podium.core.paths import WORKING_FOLDER
from podium.core.text import printable
from podium.launch.addresses import address_towards
from podium.launch.container import JOB_SCRIPT, launcher_folders, require_launcher
from podium.launch.gpus import require_gpus
from podium.launch.launch import SINGLE_NODE, Node, command, environment, require_torch
from podium.launch.mounts import container_errors, unmounted_paths_warning
from podium.launch.node_group import rendezvous_address, require_node_rank
from podium.launch.page_cache import Cleared
from podium.run.prepare import PreparedRun
from podium.run.results import results_folder
from podium.run.run_set import RunRequest, new_set_folder
from podium.run.set_record import SET

INDENT = " \\\n    "


@dataclass(frozen=True)
class ShellCommand:
    """A command: its argv, the variables that it gets besides inherited ones, and the folder that it runs in.

    `new_folders` are those in it that are made before, where they are missing.
    """

    argv: Sequence[str]
    folder: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    new_folders: Sequence[str] = ()

    @property
    def line(self) -> str:
        """One line for a shell."""
        return " ".join(self._parts())

    @property
    def text(self) -> str:
        """The same with one variable or option a line, and a backslash at the end of each line but the last."""
        return INDENT.join(self._parts())

    def _parts(self) -> Iterator[str]:
        start = f"cd {shlex.quote(str(self.folder))} &&"
        if self.new_folders:
            yield f"{start} {shlex.join(['mkdir', '-p', *self.new_folders])} &&"
            start = ""
        if self.environment:
            yield f"{start} env"
            yield from (shlex.quote(f"{name}={value}") for name, value in self.environment.items())
            start = ""
        for number, part in enumerate(_by_option(self.argv)):
            yield f"{start} {shlex.join(part)}" if start and not number else shlex.join(part)


@dataclass(frozen=True)
class DryRun:
    """What a run would do."""

    config: RunConfig
    comments: Sequence[str]  # recipe and hyper-parameters, and what this node does
    warnings: Sequence[str]
    commands: Sequence[ShellCommand]
    script: Path | None  # that sbatch is given
    files: Sequence[Path]  # and folders that would be written

    @property
    def text(self) -> str:
        """Commands of a shell after comments. Those of Docker and sbatch can be pasted."""
        warnings = [f"WARNING: {printable(warning)}" for warning in self.warnings]
        comments = [f"# {comment}" for comment in (*self.comments, *warnings)]
        return "\n".join([*comments, *(command.text for command in self.commands)])

    def as_json(self) -> dict[str, Any]:
        """The JSON object of --dry-run --json. `settings` is the whole configuration."""
        config = self.config
        return {
            "system": config.system,
            "recipe": config.recipe,
            "launcher": config.launch.launcher,
            "nodes": config.launch.nodes,
            "processes": config.launch.nodes * config.launch.processes_per_node,
            "hyperparameters": config.hyperparameters,
            "settings": config.model_dump(mode="json"),
            "notes": list(self.comments),
            "warnings": list(self.warnings),
            "commands": [
                {"folder": str(one.folder), "environment": dict(one.environment), "argv": list(one.argv)}
                for one in self.commands
            ],
            "script": None if self.script is None else str(self.script),
            "files": [str(path) for path in self.files],
        }


def dry_run(request: RunRequest) -> DryRun:
    """Return this node's commands in order. Names of new run folders have the current time, as those of a real run."""
    config = request.config
    request.require_rendezvous()
    require_node_rank(config, request.node_rank)
    clipping = "none" if config.clipping is None else f"{config.clipping.when} at {config.clipping.max_norm:g}"
    comments = [
        f"recipe {config.recipe}: attention {config.attention}, balancing {config.balancing}, clipping {clipping}, "
        f"precision {config.precision}, gradients sent as {config.wire}. {describe_hyperparameters(config)}"
    ]
    new = new_set_folder(config)
    if config.launch.launcher != "torchrun":
        config_inside = request.config_inside
        warnings = [f"`podium run` would fail: {fault}" for fault in container_errors(config_inside)]
        warnings += filter(None, [unmounted_paths_warning(config_inside, system_path(request.system))])
        launched = ShellCommand(request.launcher_command(), WORKING_FOLDER, new_folders=launcher_folders(config))
        warnings += _failures_here(
            attempt(require_launcher, config, launched.argv)[1], attempt(require_gpus, config)[1]
        )
        if config.launch.container is None:  # else the mounts are checked, and paths are those in the container
            warnings += missing_paths(config)
        slurm = config.launch.launcher == "slurm"
        files = [request.resumed.path if request.resumed else new.parent, results_folder(config.system)]
        return DryRun(config, comments, warnings, [launched], JOB_SCRIPT if slurm else None, files)
    node = SINGLE_NODE
    if config.launch.nodes > 1:
        node = _node(config, request.node_rank)
        comments.append(
            f"node {node.rank} of {config.launch.nodes}: after the rendezvous each node runs this command with its "
            "--node-rank and --local-addr; node 0 chooses the folder"
        )
    folders = [request.resumed] if request.resumed else [RunFolder(new / f"run_{n}") for n in range(request.runs)]
    commands = []
    for folder in folders:
        private = folder.path / "private"  # stands for the temporary folder that a real run makes
        run = PreparedRun(config, folder, Cleared(request.resumed is None, ""))
        options = [*run.options, *request.observation.train_options]
        argv = command(config, folder, "train", options, node, private)
        commands.append(ShellCommand(argv, WORKING_FOLDER, environment(config, node, private)))
    comments.append(
        f"written by `podium run` before this command: {folders[0].config}, and a private folder; run `podium run "
        f"{request.system} …` instead of pasting"
    )
    return DryRun(
        config,
        comments,
        [*_failures_here(attempt(require_torch)[1], attempt(require_gpus, config)[1]), *missing_paths(config)],
        commands,
        None,
        list(_files(config, folders, request.resumed is not None)),
    )


def _failures_here(*errors: PodiumError | None) -> Iterator[str]:
    """Yield a warning for each check of `podium run` that fails on this machine."""
    for error in errors:
        if error is not None:
            yield f"`podium run` would fail here: {error}"


def _files(config: RunConfig, folders: Sequence[RunFolder], resumed: bool) -> Iterator[Path]:
    """The files that runs without a launcher write, and the copies of their logs if the set is a result."""
    for folder in folders:
        yield from (folder.config, folder.data, folder.source, folder.log, folder.metrics, folder.output)
        yield folder.summary
        if config.checkpoint is not None:
            yield folder.checkpoints
    yield folders[0].path.parent / SET
    if not resumed:
        names = [f"result_{number}.txt" for number in range(len(folders))]
        yield from (folders[0].path.parent / name for name in names)
        yield from (results_folder(config.system) / "bert" / name for name in names)


def _by_option(argv: Sequence[str]) -> list[list[str]]:
    """Split an argv before each option and each argument that is not the value of the option before it."""
    parts: list[list[str]] = []
    for number, argument in enumerate(argv):
        previous = parts[-1] if parts else []
        of_program = number == 1 and argument == "-m"
        takes_more = bool(previous) and "=" not in previous[0] and argument != str(JOB_SCRIPT)
        if of_program or (takes_more and not argument.startswith("-")):
            previous.append(argument)
        else:
            parts.append([argument])
    return parts


def missing_paths(config: RunConfig) -> list[str]:
    """Return a warning for each named file or folder that this machine does not have; not for runs in a container."""
    where = "on this node" if config.launch.nodes > 1 else "on this machine"
    consequence = ": `podium run` would fail here"
    if config.launch.launcher == "slurm":  # which may be a login node, without the nodes' own disks
        where, consequence = "on this machine", "; the run fails if it does not exist on the job's nodes either"
    return [
        f"{key}: {path} does not exist {where}{consequence}"
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
