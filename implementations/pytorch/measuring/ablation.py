"""Every optimisation turned off, one at a time: what each is worth on this machine.

Source of the idea: the ablation of arXiv 2208.08124, there of the padding, the grouped attention and the fusion.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from podium.config import RunConfig


@dataclass(frozen=True)
class Variant:
    """A configuration without one thing."""

    name: str
    what: str
    """What is done instead."""
    changes: Mapping[str, Any]
    devices: tuple[str, ...] = ("cpu", "cuda")


VARIANTS = (
    Variant("torch.compile", "Triton kernels in its place", {"kernels": "triton"}, ("cuda",)),
    Variant(
        "flash attention",
        "a launch and a stream for each group of lengths",
        {"attention": "grouped", "cuda_graph": "auto"},
        ("cuda",),
    ),
    Variant("grouping", "attention in one rectangle of 512 tokens a sequence", {"attention_widths": (512,)}, ("cpu",)),
    Variant(
        "unpadding",
        "every sequence padded to 512 tokens",
        {"balancing": "padded", "attention": "padded", "attention_widths": None, "cuda_graph": "auto"},
    ),
    Variant("kernels", "plain PyTorch for all element-wise work", {"kernels": "eager"}),
    Variant("last layer", "the last layer computed for all tokens", {"last_layer": "all"}),
    Variant("precision", "matrix products in fp32", {"precision": "fp32"}, ("cpu",)),
    Variant("CUDA graphs", "every kernel launched by the host", {"cuda_graph": "none"}, ("cuda",)),
)
EVERYTHING = "everything"


def variants(config: RunConfig, device: str) -> dict[str, tuple[str, RunConfig]]:
    """Name → what is done instead, and the configuration; last, all of it at once. Those that change nothing are left
    out."""
    found: dict[str, tuple[str, RunConfig]] = {}
    everything: dict[str, Any] = {}
    for variant in VARIANTS:
        if device not in variant.devices:
            continue
        changed = config.model_copy(update=dict(variant.changes))
        if changed != config:
            found[variant.name] = (variant.what, changed)
            everything |= variant.changes
    if len(found) > 1:
        found[EVERYTHING] = ("all of these together", config.model_copy(update=everything))
    return found
