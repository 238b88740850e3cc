"""What the predictor must know of a machine: its GPUs, how many, and what connects them."""

import re
from dataclasses import dataclass
from typing import Literal

from benchmarks.bert.accelerators import accelerator_named


@dataclass(frozen=True)
class Processor:
    """Published figures of one accelerator (or, for `cpu`, of a process of a common machine)."""

    name: str
    peak_flops: float
    """Dense bf16 multiply-adds, counted as two operations, a second."""
    memory_bytes_per_second: float
    link_bytes_per_second: float
    """To the other accelerators of a node, in one direction: NVLink, or PCI Express where there is none."""


def _known(name: str, memory_bytes_per_second: float, link_bytes_per_second: float) -> Processor:
    accelerator = accelerator_named(name)
    assert accelerator is not None and accelerator.peak_flops is not None
    return Processor(accelerator.name, accelerator.peak_flops, memory_bytes_per_second, link_bytes_per_second)


PROCESSORS: dict[str, Processor] = {
    "a100_sxm": _known("NVIDIA A100 SXM", 2.039e12, 300e9),
    "a100_pcie": _known("NVIDIA A100 PCIe", 1.935e12, 32e9),
    "h100_sxm": _known("NVIDIA H100 SXM", 3.35e12, 450e9),
    "h200": _known("NVIDIA H200", 4.8e12, 450e9),
    "cpu": Processor("CPU", 1e12, 20e9, 5e9),
}
"""By the names that published runs are filed under. Sources: NVIDIA's data sheets; `cpu` is an assumption."""

_NAMES: tuple[tuple[str, str], ...] = (
    (r"A100.*PCI", "a100_pcie"),
    (r"A100", "a100_sxm"),
    (r"H200", "h200"),
    (r"H100", "h100_sxm"),
)

Fabric = Literal["switched", "direct"]
"""How a node's GPUs reach the network: a switch near each GPU and adapter (nodes of eight SXM GPUs), or through the
host's processors (nodes of up to four, and PCIe cards)."""


@dataclass(frozen=True)
class Machine:
    """GPUs of one kind in equal nodes."""

    processor: str
    """A key of PROCESSORS."""
    nodes: int
    gpus_per_node: int
    adapters: tuple[int, float] | None = None
    """A node's network adapters for training and the Gb/s of each; None where unknown or not needed."""

    def __post_init__(self) -> None:
        if self.processor not in PROCESSORS:
            raise ValueError(f"there is no processor {self.processor!r}; known are {', '.join(PROCESSORS)}")
        if min(self.nodes, self.gpus_per_node) < 1:
            raise ValueError("a machine has at least one node and one GPU a node")

    @property
    def ranks(self) -> int:
        return self.nodes * self.gpus_per_node

    @property
    def fabric(self) -> Fabric:
        return "switched" if self.gpus_per_node == 8 and not self.processor.endswith("pcie") else "direct"


def processor_named(text: str) -> str | None:
    """The key of a GPU as a system's description names it, such as `NVIDIA A100-SXM4-80GB`; None for others."""
    return next((key for pattern, key in _NAMES if re.search(pattern, text, re.IGNORECASE)), None)


def adapters_named(text: str) -> tuple[int, float] | None:
    """Number and Gb/s of a node's network adapters for training, from `host_networking` of a description.

    Understands `8x ConnectX-6 IB HDR 200Gb/Sec`; where several kinds are named (storage, management, compute), the
    most numerous and fastest counts. None where it tells nothing.
    """
    found = re.findall(r"(\d+)\s*x\s[^,;+]*?(\d+)\s*Gb/s", text, re.IGNORECASE)
    kinds = [(int(count), float(speed)) for count, speed in found]
    return max(kinds, key=lambda kind: kind[0] * kind[1], default=None)
