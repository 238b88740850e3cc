"""What a container is given of this machine, looked at before it starts."""

from collections.abc import Iterable, Iterator
from pathlib import Path

from benchmarks.finding import Finding, check_result
from podium.config import RunConfig
from podium.config.launch import Container
from podium.config.loading import ROOT
from podium.doctor.examination import Examination
from podium.doctor.places import named_paths

IMAGE_FILES = (".sqsh", ".sif")


def check_mounts(examination: Examination) -> Iterable[Finding]:
    """The image's file, what is mounted, and under it what the configuration names by its path in the container.

    Of a Slurm job's nodes only the repository's folder is known to be shared: other places may be theirs alone.
    """
    config, container = examination.config, examination.config.launch.container
    if container is None:
        return
    faults = list(_faults(config, container))
    advice = "make what is missing (docker/ has the image's recipes, README, Data the data's), or mend launch.container"
    found = "; ".join(faults) or f"{len(container.mounts)} named"
    yield check_result("mounts", not faults, found, "image and mounts are there", advice)


def _faults(config: RunConfig, container: Container) -> Iterator[str]:
    if container.image.endswith(IMAGE_FILES) and _is_missing(container.image, config):
        yield f"launch.container.image: {ROOT / container.image} does not exist"
    for mount in container.mounts:
        here, there = mount.split(":")[:2]
        if _is_missing(here, config):
            yield f"launch.container.mounts: {ROOT / here} does not exist"
            continue
        for key, path in named_paths(config).items():
            if path.is_relative_to(there) and _is_missing(str(Path(here) / path.relative_to(there)), config):
                yield f"{key}: {path} is {ROOT / here / path.relative_to(there)} here, which does not exist"


def _is_missing(name: str, config: RunConfig) -> bool:
    """Whether a path, relative to the repository or absolute, is known not to be there."""
    is_seen = config.launch.launcher == "docker" or not Path(name).is_absolute()
    return is_seen and not (ROOT / name).exists()
