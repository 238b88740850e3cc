"""What a container sees of this machine, and what the configuration names that is not there or that it does not see.

This is known before a container or a job is started. Later, Docker makes a folder, of root, for a mount whose source is
missing, and a Slurm job fails after it has waited for its nodes.
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
    """HERE:THERE[:ro] of all that the container sees of this machine. UsageError for a path that cannot be so written.

    A mount of the system's in the place of results/, runs/ or data/ takes that place.
    """
    options = {INSIDE / name: f"{WORKING_FOLDER / name}:{INSIDE / name}" for name in SHARED}
    inside = INSIDE / "systems" / f"{system.stem}.yaml"
    options[inside] = f"{system.resolve()}:{inside}:ro"
    for mount in container.mounts:
        here, there = mount.split(":", 1)
        options[Path(there.removesuffix(":ro"))] = f"{WORKING_FOLDER / here}:{there}"
    for option in options.values():
        if not re.fullmatch(MOUNT, option):
            raise UsageError(
                f"{option}: cannot be mounted in a container, since ':' and ',' separate the parts of a mount; move "
                "the repository or the system's file to a path without them"
            )
    return list(options.values())


def on_host(path: Path, launch: Launch) -> Path:
    """Where a path in the container is outside of it, from the repository's folder on; itself if under no mount."""
    found = _mount_of(path, launch)
    return found[1] / path.relative_to(found[0]) if found else path


def known_faults(config: RunConfig) -> list[str]:
    """What the container is given and is known not to be there: a sentence each, of which one ends every run.

    `config` has its paths as they are written, since that is how they are read inside. Of a Slurm job's nodes only the
    repository's folder is known to be shared: other places may be theirs alone.
    """
    container = config.launch.container
    if container is None:
        return []
    faults = []
    if container.image.endswith(IMAGE_FILES) and _is_missing(Path(container.image), config.launch):
        how = "apptainer build" if container.image.endswith(".sif") else "enroot import"
        faults.append(
            f"launch.container.image: {WORKING_FOLDER / container.image} does not exist; make it by `{how}`, as "
            "docker/Dockerfile says, or name the file that you have"
        )
    places = [mount.split(":")[1] for mount in container.mounts]
    faults += [f"launch.container.mounts: {there} is named twice" for there in set(places) if places.count(there) > 1]
    faults += [
        f"launch.container.mounts: {there} cannot be mounted on; name a folder of the container below /, without '..'"
        for there in places
        if there.strip("/") == "" or os.path.normpath(there) != there.rstrip("/")
    ]
    missing = {
        here
        for here in (Path(mount.split(":")[0]) for mount in container.mounts)
        if str(here) not in SHARED and _is_missing(here, config.launch)
    }
    faults += [
        f"launch.container.mounts: {WORKING_FOLDER / here} does not exist; make it, or name the folder that is to be "
        "mounted"
        for here in sorted(missing)
    ]
    for key, path, mount in _named(config):
        if mount is None or mount[1] in missing:
            continue
        here = mount[1] / path.relative_to(mount[0])
        if _is_missing(here, config.launch):
            faults.append(
                f"{key}: {path} in the container is {WORKING_FOLDER / here} here, which does not exist; put it there, "
                "or name in launch.container.mounts where it is"
            )
    return faults


def unseen_paths(config: RunConfig, system: Path) -> str:
    """A warning of the paths that the configuration names, as they are written, and that are under no mount; or "".

    It is no error: an image may hold them, and a cluster's pyxis or Apptainer may mount more (home folders, /tmp).
    """
    container = config.launch.container
    unseen: dict[Path, list[str]] = {}
    for key, path, mount in _named(config):
        if mount is None:
            unseen.setdefault(path, []).append(f"{key}: {path}")
        elif target := _leads_out(path, mount, config.launch):
            unseen.setdefault(target, []).append(f"{key}: {path}, which is a link to {target},")
    if container is None or not unseen:
        return ""
    named = [text for texts in unseen.values() for text in texts]
    added = [_mount_for(path) for path in unseen]
    mounts = json.dumps([*container.mounts, *added], ensure_ascii=False)
    places = ", ".join(str(there) for there in _mounts(config.launch))
    return (
        f"{' and '.join(named)} {'are' if len(named) > 1 else 'is'} under no mount of the container ({places}), which "
        "finds there only what its image has or the cluster mounts in all containers. If that is not so, set "
        f"launch.container.mounts in {system}, or --set 'launch.container.mounts={mounts}'"
    )


def _mounts(launch: Launch) -> dict[Path, Path]:
    """What is mounted, by its place in the container; relative paths are from the repository on."""
    mounts = {INSIDE / name: Path(name) for name in SHARED}
    for mount in launch.container.mounts if launch.container else ():
        here, there, *_ = mount.split(":")
        mounts[Path(there)] = Path(here)
    return mounts


def _mount_of(path: Path, launch: Launch) -> tuple[Path, Path] | None:
    """The place in the container, and the folder here, of the mount that a path in the container is under."""
    under = [(there, here) for there, here in _mounts(launch).items() if path.is_relative_to(there)]
    return max(under, key=lambda one: len(one[0].parts), default=None)


def _named(config: RunConfig) -> Iterator[tuple[str, Path, tuple[Path, Path] | None]]:
    """The key, the path in the container and the mount of everything that is read there."""
    for key, path in config.named_paths.items():
        inside = Path(os.path.normpath(INSIDE / path))
        yield key, inside, _mount_of(inside, config.launch)


def _leads_out(path: Path, mount: tuple[Path, Path], launch: Launch) -> Path | None:
    """Where a path leads by links that are no paths in the container; None where it does not, or cannot be seen."""
    there, here = mount
    root, outside = WORKING_FOLDER / here, WORKING_FOLDER / here / path.relative_to(there)
    if not _is_shared(here, launch):
        return None
    try:
        target = outside.resolve()
        leads_out = not target.is_relative_to(root.resolve())
    except (OSError, RuntimeError):  # links in a circle, which the run itself reports
        return None
    return target if leads_out and _mount_of(target, launch) is None else None


def _mount_for(path: Path) -> str:
    """HERE:THERE:ro by which the container sees a path under its own name."""
    here = path.relative_to(INSIDE) if path.is_relative_to(INSIDE) else path
    return f"{here}:{path}:ro"


def _is_shared(here: Path, launch: Launch) -> bool:
    """Whether what is there on this machine is there where the container runs."""
    return launch.launcher == "docker" or not here.is_absolute()


def _is_missing(here: Path, launch: Launch) -> bool:
    """Whether a path, relative to the repository or absolute, is known not to be there."""
    if not _is_shared(here, launch):
        return False
    try:
        (WORKING_FOLDER / here).stat()
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:  # such as a folder of root, which Docker can mount
        return False
    return False
