"""What PyTorch sees of this machine: its own versions and the GPUs."""

from typing import Any

import torch


def visible_device() -> dict[str, Any]:
    """Versions as text, None where there is none of the kind; of each GPU its name and bytes, free and in all."""
    gpus = []
    for number in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        free, total = torch.cuda.mem_get_info(number)
        gpus.append({"name": torch.cuda.get_device_name(number), "free_bytes": free, "total_bytes": total})
    return {
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "cudnn": _cudnn(torch.backends.cudnn.version()),  # type: ignore[no-untyped-call]
        "nccl": ".".join(map(str, torch.cuda.nccl.version())) if gpus else None,  # type: ignore[no-untyped-call]
        "gpus": gpus,
    }


def _cudnn(number: int | None) -> str | None:
    """91002 is 9.10.2; before version 9 a digit less was kept for the major version: 8907 is 8.9.7."""
    if number is None:
        return None
    major, rest = divmod(number, 10_000 if number >= 90_000 else 1000)
    return f"{major}.{rest // 100}.{rest % 100}"
