"""The input of the checks: a system's configuration, its data, and the output of the implementation's processes."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from benchmarks.bert.store import SampleStore, join_stores
from podium.config.schema import RunConfig
from podium.core.errors import PodiumError
from podium.core.paths import SHIPPED_FOLDER


@dataclass(frozen=True)
class Places:
    """Where a run reads and writes on this machine."""

    runs: Path
    results: Path
    data: Path
    project: Path = SHIPPED_FOLDER / "pyproject.toml"  # beside requirements/, whose versions were tested


@dataclass(frozen=True)
class Lookup:
    """A host name, and the addresses that it has here or why it has none."""

    name: str
    addresses: str
    fault: str = ""


@dataclass(frozen=True)
class Examination:
    """Everything that takes long to find out was found out before the checks begin."""

    config: RunConfig  # as the run would be given it
    places: Places
    prepared: RunConfig | None  # with its data prepared and every byte verified; None where they are not
    data_fault: PodiumError | None  # why not; None too where text is only to be prepared at the start of the run
    # What one process of the implementation sees: versions, GPUs, what is possible here.
    device: Mapping[str, Any] | None
    device_fault: str  # why there is nothing of that
    ranks: Mapping[str, Any] | None  # what all ranks of the system found together: bandwidth, clocks, who they are
    ranks_fault: str
    # `busy`: share of this process's processors that others used; `memory`: bytes available; `limit`: open files. Empty
    # where this machine is none of those that would make the run.
    machine: Mapping[str, float] = field(default_factory=dict)
    host: Lookup | None = None  # this machine's name; None where it is none of those that would make the run
    rendezvous: Lookup | None = None  # of several nodes

    @cached_property
    def store(self) -> SampleStore | None:
        """The training samples, where they are sound."""
        if self.prepared is None or self.prepared.data.store is None:
            return None
        parts = self.prepared.store_parts(0)
        return join_stores([SampleStore(folder, parts[key]) for key, folder in self.prepared.named_stores.items()])

    @property
    def cuda(self) -> bool:
        return self.config.launch.device == "cuda"
