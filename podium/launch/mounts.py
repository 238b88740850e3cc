"""Mounts of a container, and checks of the configuration's paths against them before the container or job starts.

Without these checks Docker would make a folder owned by root for a mount whose source is missing, and a Slurm job would
fail after it has waited for its nodes.
"""

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

from podium.config.schema import MOUNT, Container, Launch, RunConfig
from podium.core.errors import UsageError
from podium.core.paths import WORKING_FOLDER

INSIDE = Path("/workspace/podium")  # where docker/Dockerfile puts the repository
SHARED = ("results", "runs", "data")
IMAGE_FILES = (".sqsh", ".sif")


def mount_options(container: Container, system: Path) -> list[str]:
    """List the container's mounts as HOST_PATH:CONTAINER_PATH[:ro]. UsageError for a path with a separator in it.

    A mount of the system file over results/, runs/ or data/ replaces the default one.
    """
    options = {INSIDE / name: f"{WORKING_FOLDER / name}:{INSIDE / name}" for name in SHARED}
    inside = INSIDE / "systems" / f"{system.stem}.yaml"
    options[inside] = f"{system.resolve()}:{inside}:ro"
    for mount in container.mounts:
        source, destination = mount.split(":", 1)
        options[Path(destination.removesuffix(":ro"))] = f"{WORKING_FOLDER / source}:{destination}"
    for option in options.values():
        if not re.fullmatch(MOUNT, option):
            raise UsageError(
                f"{option}: cannot be mounted in a container, because ':' and ',' separate the parts of a mount; move "
                "the repository or the system file to a path without them"
            )
    return list(options.values())


def on_host(path: Path, launch: Launch) -> Path:
    """Convert a path in the container to the host's, relative to the repository; unchanged if it is under no mount."""
    found = _mount_of(path, launch)
    return found[1] / path.relative_to(found[0]) if found else path


def container_errors(config: RunConfig) -> list[str]:
    """Error messages on the container's image, mounts and data paths; any of them prevents a run.

    `config` has its paths as written in the configuration, which is how they are read in the container. For Slurm only
    paths below the repository are checked: others may exist on the nodes only.
    """
    container = config.launch.container
    if container is None:
        return []
    faults = []
    if container.image.endswith(IMAGE_FILES) and _is_missing(Path(container.image), config.launch):
        how = "apptainer build" if container.image.endswith(".sif") else "enroot import"
        faults.append(
            f"launch.container.image: {WORKING_FOLDER / container.image} does not exist; make it by `{how}`, as "
            "described in docker/Dockerfile, or name an existing file"
        )
    destinations = [mount.split(":")[1] for mount in container.mounts]
    faults += [
        f"launch.container.mounts: {destination} is the target of two mounts; remove one"
        for destination in set(destinations)
        if destinations.count(destination) > 1
    ]
    faults += [
        f"launch.container.mounts: {destination} cannot be a mount target; name a folder of the container below /, "
        "without '.' or '..'"
        for destination in destinations
        if destination.strip("/") == "" or os.path.normpath(destination) != destination.rstrip("/")
    ]
    missing = {
        source
        for source in (Path(mount.split(":")[0]) for mount in container.mounts)
        if str(source) not in SHARED and _is_missing(source, config.launch)
    }
    faults += [
        f"launch.container.mounts: {WORKING_FOLDER / source} does not exist; make it, or name an existing folder"
        for source in sorted(missing)
    ]
    for key, path, mount in _container_paths(config):
        if mount is None or mount[1] in missing:
            continue
        source = mount[1] / path.relative_to(mount[0])
        if _is_missing(source, config.launch):
            faults.append(
                f"{key}: {path} in the container is {WORKING_FOLDER / source} on this machine, which does not exist; "
                "put the data there, or set launch.container.mounts to where it is"
            )
    return faults


def unmounted_paths_warning(config: RunConfig, system: Path) -> str:
    """Warning about paths of the configuration that are under no mount of the container; empty if there are none.

    This is no error: the image may contain them, and a cluster's pyxis or Apptainer may mount more, such as /tmp.
    """
    container = config.launch.container
    unmounted: dict[Path, list[str]] = {}
    for key, path, mount in _container_paths(config):
        if mount is None:
            unmounted.setdefault(path, []).append(f"{key}: {path}")
        elif target := _dangling_target(path, mount, config.launch):
            unmounted.setdefault(target, []).append(f"{key}: {path}, which is a link to {target},")
    if container is None or not unmounted:
        return ""
    named = [text for texts in unmounted.values() for text in texts]
    suggested = [_identity_mount(path) for path in unmounted]
    mounts = json.dumps([*container.mounts, *suggested], ensure_ascii=False)
    destinations = ", ".join(str(destination) for destination in _mounts(config.launch))
    return (
        f"{' and '.join(named)} {'are' if len(named) > 1 else 'is'} under no mount of the container "
        f"({destinations}). Unless the image contains the data, or the cluster mounts it in all containers, set "
        f"launch.container.mounts in {system}, or --set 'launch.container.mounts={mounts}'"
    )


def _mounts(launch: Launch) -> dict[Path, Path]:
    """Host path of each mount by its path in the container; relative host paths start at the repository."""
    mounts = {INSIDE / name: Path(name) for name in SHARED}
    for mount in launch.container.mounts if launch.container else ():
        source, destination, *_ = mount.split(":")
        mounts[Path(destination)] = Path(source)
    return mounts


def _mount_of(path: Path, launch: Launch) -> tuple[Path, Path] | None:
    """The innermost mount that contains a path in the container: its path in the container and its host path."""
    under = [
        (destination, source) for destination, source in _mounts(launch).items() if path.is_relative_to(destination)
    ]
    return max(under, key=lambda one: len(one[0].parts), default=None)


def _container_paths(config: RunConfig) -> Iterator[tuple[str, Path, tuple[Path, Path] | None]]:
    """Yield configuration key, path in the container, and mount (None: under none) of every path that a run reads."""
    for key, path in config.named_paths.items():
        inside = Path(os.path.normpath(INSIDE / path))
        yield key, inside, _mount_of(inside, config.launch)


def _dangling_target(path: Path, mount: tuple[Path, Path], launch: Launch) -> Path | None:
    """Target of a symbolic link that leads out of its mount, so that it dangles in the container; else None.

    None too if the host path cannot be checked from here.
    """
    destination, source = mount
    root, outside = WORKING_FOLDER / source, WORKING_FOLDER / source / path.relative_to(destination)
    if not _is_shared(source, launch):
        return None
    try:
        target = outside.resolve()
        leads_out = not target.is_relative_to(root.resolve())
    except (OSError, RuntimeError):  # a loop of symbolic links, which the run reports
        return None
    return target if leads_out and _mount_of(target, launch) is None else None


def _identity_mount(path: Path) -> str:
    """The read-only mount HOST_PATH:CONTAINER_PATH:ro that makes a path available under the same name."""
    source = path.relative_to(INSIDE) if path.is_relative_to(INSIDE) else path
    return f"{source}:{path}:ro"


def _is_shared(source: Path, launch: Launch) -> bool:
    """Whether a host path is the same on this machine as where the container runs."""
    return launch.launcher == "docker" or not source.is_absolute()


def _is_missing(source: Path, launch: Launch) -> bool:
    """Whether a host path, relative to the repository or absolute, is known to be missing where the container runs."""
    if not _is_shared(source, launch):
        return False
    try:
        (WORKING_FOLDER / source).stat()
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:  # such as a folder that only root may enter, which Docker can mount
        return False
    return False
