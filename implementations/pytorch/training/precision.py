"""In which number format the matrix products are computed, and how fast the machine can multiply in it."""

import time
from contextlib import AbstractContextManager, nullcontext

import torch


def resolve_precision(setting: str, device: torch.device) -> str:
    """`auto` becomes bf16 where the processor multiplies bf16 in hardware, else fp32."""
    if setting != "auto":
        return setting
    if device.type == "cuda":
        return "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp32"
    return "bf16" if torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported() else "fp32"


def autocast(precision: str, device: torch.device) -> AbstractContextManager[object]:
    if precision == "fp32":
        return nullcontext()
    return torch.autocast(device.type, dtype=torch.bfloat16)


def matmul_peak(precision: str, device: torch.device, width: int = 1024, seconds: float = 0.3) -> float:
    """FLOP/s of the fastest of repeated square matrix products, measured for about `seconds`."""
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    width = width * 8 if device.type == "cuda" else width
    a, b = (torch.ones(width, width, dtype=dtype, device=device) for _ in range(2))
    best, end = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < end:
        started = time.perf_counter()
        torch.matmul(a, b)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        best = min(best, time.perf_counter() - started)
    return 2 * width**3 / best
