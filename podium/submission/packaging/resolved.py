"""The configuration of a package: that of its runs, resolved, so that it can be run again from the package alone."""

from pathlib import Path
from typing import Any

from podium.config import DataSettings, Launch, RunConfig
from podium.config.loading import ROOT
from podium.config.yaml_files import dump_yaml
from podium.launching.elsewhere import INSIDE

EMBEDDED = "embedded"
"""The folder under data/ in which samples of the embedded text are."""
PLACES = {
    "store": "data/training",
    "evaluation_store": "data/evaluation",
    "vocabulary": "data/vocab.txt",
    "initial_checkpoint": "data/initial.safetensors",
}
"""Where the package looks for what the runs read from elsewhere than the repository or a mount of their container."""


def submitted(config: RunConfig, now: RunConfig) -> RunConfig:
    """The runs' configuration without what belongs to one run or to one machine.

    The seed is left out, since every run draws its own. Paths are seen from the package's code folder. A run in a
    container or a Slurm job records how its processes were started there; how that is entered is taken from `now`, what
    the system's file says at present, where it starts as many processes.
    """
    same = (now.launch.nodes, now.launch.processes_per_node) == (config.launch.nodes, config.launch.processes_per_node)
    launch = now.launch if same and now.launch.launcher != config.launch.launcher else config.launch
    paths = {key: _place(key, path, launch) for key, path in config.data if key in PLACES and path is not None}
    data = DataSettings() if _is_embedded(config) else config.data.model_copy(update=paths)
    checkpoint = config.initial_checkpoint and _place("initial_checkpoint", config.initial_checkpoint, launch)
    update = {"seed": None, "launch": launch, "initial_checkpoint": checkpoint, "data": data}
    return config.model_copy(update=update)


def system_file(config: RunConfig) -> str:
    """A submitted configuration as YAML with the sections of a system file, as `podium run FILE` takes it."""
    values: dict[str, Any] = config.model_dump(mode="json", by_alias=True, exclude={"system", "seed"})
    document = {key: values.pop(key) for key in ("description", "launch")} | {"bert": values}
    return dump_yaml(document)


def on_host(path: Path, launch: Launch) -> Path:
    """A submitted path as a person has it in the code folder, outside of any container."""
    for mount in launch.container.mounts if launch.container else ():
        here, there, *_ = mount.split(":")
        if path.is_relative_to(there):
            return Path(here) / path.relative_to(there)
    return path


def _is_embedded(config: RunConfig) -> bool:
    """Whether the samples are of the embedded text, which every run finds or makes."""
    store = config.data.store
    if store is None:
        return config.data.kind == "embedded"
    return store.parent.parent.name == EMBEDDED and store.parent.name.startswith("samples-")


def _place(key: str, path: Path, launch: Launch) -> Path:
    for root in (ROOT, INSIDE):
        if path.is_relative_to(root):
            return path.relative_to(root)
    return path if on_host(path, launch) != path else Path(PLACES[key])
