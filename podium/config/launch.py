"""The section `launch`: how the processes of a run are started, and where."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from benchmarks.processes import processors
from podium.config.settings import Settings

MOUNT = r"^[^:,]+:/[^:,]*(:ro)?$"
RENDEZVOUS = r"^(\[[0-9a-fA-F:.]+\]|[^\s:\[\]]+):[1-9]\d{0,4}$"
LARGEST_PORT = 65_535
PLACE = ("launcher", "container", "slurm_options")
"""Keys that say where a run goes on."""
FREE = (*PLACE, "rendezvous", "binding", "caches", "max_restarts", "timeout_seconds")
"""Keys that may be others when a run is gone on with, since they change no number of it. Nodes and processes a node say
who takes which samples and in which order sums add up, and threads on a CPU do the latter."""
FREE_ON_GPU = ("threads_per_process",)
BINDINGS = {"cpu": ("cores",), "cuda": ("node", "socket", "exclusive", "core-complex")}


class Container(Settings):
    """The container that a whole `podium run` goes on in, and what of this machine is seen there."""

    runtime: Literal["docker", "pyxis", "apptainer"]
    image: str = Field(min_length=1)
    """docker: an image's name; pyxis: an image's name or a .sqsh file; apptainer: a .sif file."""
    mounts: tuple[Annotated[str, Field(pattern=MOUNT)], ...] = ()
    """HERE:THERE or HERE:THERE:ro; HERE is relative to the repository, THERE absolute. results/, runs/ and data/ are
    mounted besides."""


class Launch(Settings):
    """How the processes of a run are started."""

    launcher: Literal["torchrun", "docker", "slurm"] = "torchrun"
    """torchrun: here. docker: here, in a container. slurm: on the nodes of a job that is submitted for it."""
    nodes: int = Field(default=1, ge=1)
    processes_per_node: int = Field(ge=1)
    device: Literal["cpu", "cuda"]
    threads_per_process: int | None = Field(default=None, ge=1)
    """CPU threads of each process; without it the machine's cores are shared out evenly."""
    binding: Literal["none", "cores", "node", "socket", "exclusive", "core-complex"] = "none"
    """Which CPUs a process may run on. cores: an even share, of whole NUMA nodes where there are enough. The others are
    torchrun's, which go by the NUMA node of the process's GPU."""
    caches: Literal["all", "samples"] = "all"
    """What is cleared before a run: all of the kernel's caches, where that is allowed, or the samples' pages alone."""
    rendezvous: Annotated[str, Field(pattern=RENDEZVOUS)] | None = None
    """HOST:PORT of the first of several nodes. Port + 1 is used too."""
    container: Container | None = None
    slurm_options: tuple[str, ...] = ()
    """Options of sbatch besides the number of nodes, such as --partition=batch."""

    max_restarts: int = Field(default=0, ge=0)
    """How often all processes are started again after one died; the run goes on from its last checkpoint."""
    timeout_seconds: float = Field(default=600.0, gt=0)
    """For so long all ranks may stand still before the one that holds up the others is named and the run broken off."""

    @property
    def ranks(self) -> int:
        return self.nodes * self.processes_per_node

    @property
    def threads(self) -> int:
        """CPU threads of one process: as set, else an even share of the cores that this process may use."""
        cores = processors()
        return self.threads_per_process or max(1, cores // self.processes_per_node)

    @model_validator(mode="after")
    def _fits(self) -> Self:
        runtimes = {"torchrun": (None,), "docker": ("docker",), "slurm": (None, "pyxis", "apptainer")}[self.launcher]
        runtime = self.container.runtime if self.container else None
        if runtime not in runtimes:
            allowed = " or ".join(f"container.runtime {name}" if name else "no container" for name in runtimes)
            found = f"container.runtime is {runtime}" if runtime else "there is no container"
            raise ValueError(f"launcher is {self.launcher}, but {found}; allowed with it is {allowed}")
        if self.slurm_options and self.launcher != "slurm":
            raise ValueError(f"launcher is {self.launcher}, which has no use for slurm_options; leave them out")
        if self.rendezvous is not None and int(self.rendezvous.rpartition(":")[2]) > LARGEST_PORT - 1:
            raise ValueError(f"rendezvous is {self.rendezvous}; allowed are ports up to {LARGEST_PORT - 1}")
        if self.binding not in ("none", *BINDINGS[self.device]):
            raise ValueError(
                f"binding is {self.binding}, but device is {self.device}; allowed with it are "
                f"{', '.join(('none', *BINDINGS[self.device]))}"
            )
        return self
