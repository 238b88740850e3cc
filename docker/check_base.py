"""docker/check_base.py BASE: check and record what docker/Dockerfile takes from its base image, while it is built.

torch must be there in a supported version. NVIDIA's apex and DALI may be missing: the options that need them are
printed, with a warning where the base is NVIDIA's, which is known to have them. Prints the record, which the image
keeps.
"""

import sys
from collections.abc import Callable
from importlib import import_module, metadata
from typing import Any

import torch

from implementations.pytorch.optim.apex_lamb import fused_lamb
from podium.doctor.versions import NEWEST_TORCH, OLDEST_TORCH

NVIDIA = "nvcr.io/nvidia/pytorch"
OPTIONAL: dict[str, tuple[str, Callable[[], Any], str]] = {
    "apex": ("apex", fused_lamb, "optimizer.backend=apex is not available, Podium's own LAMB is"),
    "nvidia.dali": (
        "nvidia-dali-cuda130",
        lambda: import_module("nvidia.dali"),
        "loader=dali is not available, Podium's own loader is",
    ),
}


def check(base: str) -> list[str]:
    """The record's lines. Raises SystemExit where torch is not of a supported version."""
    version = tuple(int(number) for number in torch.__version__.split(".")[:2])
    allowed = " to ".join(".".join(map(str, end)) for end in (OLDEST_TORCH, NEWEST_TORCH))
    if not OLDEST_TORCH <= version <= NEWEST_TORCH:
        raise SystemExit(f"FROM_IMAGE: {base} has torch {torch.__version__}; {allowed} is needed, take another base")
    built_for = f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPUs"
    lines = [f"base: {base}", f"torch: {torch.__version__}, built for {built_for}"]
    for name, (distribution, load, without) in OPTIONAL.items():
        try:
            load()
        except Exception as error:  # noqa: BLE001 — whatever an extension module's import raises, it cannot be used
            cause = " ".join(str(error.__cause__ or error).split())[:200]
            lines.append(f"{name}: missing ({cause}); {without}")
            if base.startswith(NVIDIA):
                lines.append(f"WARNING: {name} is missing in NVIDIA's base, which is known to have it")
        else:
            lines.append(f"{name}: {_version(name, distribution)}")
    return lines


def _version(name: str, distribution: str) -> str:
    """The module's own version, else that of its distribution, whose name has the CUDA version in it."""
    found = getattr(sys.modules.get(name), "__version__", None)
    try:
        return str(found or metadata.version(distribution))
    except metadata.PackageNotFoundError:
        return "there, of unknown version"


if __name__ == "__main__":
    print(*check(sys.argv[1]), sep="\n")
