"""Number formats of the matrix products, and the peak rate of the machine in each."""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch

from podium.core.errors import UsageError
from podium.planning.hardware import FP8_CAPABILITY

# The type of activations by precision. fp8 is that of the operands of the encoder's matrix products alone.
COMPUTE_TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16, "fp8": torch.bfloat16}


def resolve_precision(setting: str, device: torch.device) -> str:
    """`auto` becomes bf16 where the processor multiplies it in hardware, else fp16 on a GPU and fp32 on a CPU.

    Raises UsageError for fp8 on a device that cannot multiply in it, and for bf16 on a GPU that only emulates it.
    """
    if setting == "fp8" and (device.type != "cuda" or torch.cuda.get_device_capability(device) < FP8_CAPABILITY):
        raise UsageError(
            f"precision: found fp8, which the {device.type} here cannot multiply; allowed are bf16, fp16, fp32"
        )
    if setting == "bf16" and device.type == "cuda" and not torch.cuda.is_bf16_supported(including_emulation=False):
        raise UsageError("precision: found bf16, which the GPU here only emulates; allowed are auto, fp16, fp32")
    if setting != "auto":
        return setting
    if device.type == "cuda":
        return "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp16"
    return "bf16" if torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported() else "fp32"


def autocast(precision: str, device: torch.device) -> AbstractContextManager[object]:
    if precision == "fp32":
        return nullcontext()
    return torch.autocast(device.type, dtype=COMPUTE_TYPES[precision])


def timed(work: Callable[[], object], device: torch.device) -> float:
    """Seconds that it takes; a GPU is waited for before and after it."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    started = time.perf_counter()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - started


def matmul_peak(precision: str, device: torch.device, width: int = 1024, seconds: float = 0.3) -> float:
    """FLOP/s of the fastest of repeated square matrix products, measured for about `seconds`.

    Of numbers drawn at random, since zeros and ones cost a GPU less power, and in bf16 for fp8, whose products are
    only a part of a step.
    """
    width = width * 8 if device.type == "cuda" else width
    random = torch.Generator().manual_seed(0)
    a, b = (torch.randn(width, width, generator=random).to(device, COMPUTE_TYPES[precision]) for _ in range(2))
    best, end = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < end:
        best = min(best, timed(lambda: torch.matmul(a, b), device))
    return 2 * width**3 / best
