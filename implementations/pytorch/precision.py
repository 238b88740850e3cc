"""Number formats of matrix products, and the measured peak FLOP/s of a device in each."""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch

from podium.core.errors import UsageError
from podium.planning.hardware import FP8_CAPABILITY

# dtype of activations by precision. With fp8, only the operands of the encoder's matrix products are fp8.
COMPUTE_TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16, "fp8": torch.bfloat16}


def resolve_precision(setting: str, device: torch.device) -> str:
    """Return the precision of a `precision` setting: fp32, bf16, fp16 or fp8.

    `auto` is bf16 where the processor multiplies it in hardware, else fp16 on a GPU and fp32 on a CPU.
    Raises UsageError for fp8 on a device that cannot multiply in it, and for bf16 on a GPU that only emulates it.
    """
    if setting == "fp8" and (device.type != "cuda" or torch.cuda.get_device_capability(device) < FP8_CAPABILITY):
        raise UsageError(
            f"precision: found fp8, which this {device.type} device does not support; allowed are bf16, fp16, fp32"
        )
    if setting == "bf16" and device.type == "cuda" and not torch.cuda.is_bf16_supported(including_emulation=False):
        raise UsageError("precision: found bf16, which this GPU only emulates; allowed are auto, fp16, fp32")
    if setting != "auto":
        return setting
    if device.type == "cuda":
        return "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp16"
    return "bf16" if torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported() else "fp32"


def autocast(precision: str, device: torch.device) -> AbstractContextManager[object]:
    """Return torch.autocast in a resolved precision; no autocast in fp32."""
    if precision == "fp32":
        return nullcontext()
    return torch.autocast(device.type, dtype=COMPUTE_TYPES[precision])


def measure_seconds(function: Callable[[], object], device: torch.device) -> float:
    """Return the seconds that a call takes. A GPU is synchronised before and after it."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    started = time.perf_counter()
    function()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - started


def matmul_peak(precision: str, device: torch.device, width: int = 1024, seconds: float = 0.3) -> float:
    """FLOP/s of the fastest of repeated square matrix products, measured for about `seconds`.

    For fp8 the products are bf16, since fp8 products are only a part of a step.
    """
    # A GPU needs larger matrices to be busy. Random operands: zeros and ones cost less power, so a GPU would multiply
    # them at higher clock rates than real data.
    width = width * 8 if device.type == "cuda" else width
    random = torch.Generator().manual_seed(0)
    a, b = (torch.randn(width, width, generator=random).to(device, COMPUTE_TYPES[precision]) for _ in range(2))
    best, end = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < end:
        best = min(best, measure_seconds(lambda: torch.matmul(a, b), device))
    return 2 * width**3 / best
