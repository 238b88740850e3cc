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
    """Folders in which a run reads and writes on this machine."""

    runs: Path
    results: Path
    data: Path
    project: Path = SHIPPED_FOLDER / "pyproject.toml"  # beside requirements/, whose versions were tested


@dataclass(frozen=True)
class Lookup:
    """Result of resolving a host name on this node: its addresses, or why it has none."""

    name: str
    addresses: str
    fault: str = ""


@dataclass(frozen=True)
class DiagnosticContext:
    """Input of the checks. Everything that takes long is collected before they begin."""

    config: RunConfig  # the run's configuration
    places: Places
    prepared: RunConfig | None  # with its data prepared and every byte verified; None if that failed or was not done
    data_fault: PodiumError | None  # why it failed; None also for a text that the run would prepare at its start
    device: Mapping[str, Any] | None  # from one process of the implementation: versions, GPUs, capabilities
    device_fault: str  # why `device` is None
    ranks: Mapping[str, Any] | None  # measured by all ranks together: bandwidth, clocks, hosts, versions
    ranks_fault: str  # why `ranks` is None
    # `busy`: share of this process's processors that other processes used; `processors`: their number; `memory`: bytes
    # available; `limit`: open files. Empty if this machine would not take part in the run.
    machine: Mapping[str, float] = field(default_factory=dict)
    other_accelerators: tuple[str, ...] = ()  # of this machine, of kinds that Podium does not support: `2× AMD GPU`
    host: Lookup | None = None  # this machine's name; None if this machine would not take part in the run
    rendezvous: Lookup | None = None  # None for a single node

    @cached_property
    def store(self) -> SampleStore | None:
        """The training samples; None unless they were verified."""
        if self.prepared is None or self.prepared.data.store is None:
            return None
        parts = self.prepared.store_parts(0)
        return join_stores([SampleStore(folder, parts[key]) for key, folder in self.prepared.training_stores.items()])

    @property
    def cuda(self) -> bool:
        return self.config.launch.device == "cuda"
