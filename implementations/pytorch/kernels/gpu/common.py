"""Shared parts of the GPU kernels: dropout by position, block sizes and seeds."""

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def keep_mask(seed, row, threshold, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Which of the BLOCK columns of a row a dropout keeps: a function of seed, row and column alone.

    One call of Philox 4x32 with seven rounds (Salmon et al., SC'11) serves eight columns of 16 bits each.
    """
    counters = row * (BLOCK // 8) + tl.arange(0, BLOCK // 8)
    a, b, c, d = tl.randint4x(seed, counters, n_rounds=7)
    quarters = tl.interleave(tl.interleave(a, c), tl.interleave(b, d)).to(tl.uint32, bitcast=True)
    draws = tl.interleave(quarters & 0xFFFF, quarters >> 16)
    return draws >= threshold


def draw_seed(device: torch.device, probability: float) -> Tensor:
    """A seed [1] int64 that stays on the device, from its default generator; in a CUDA graph each replay draws anew.

    Where nothing is dropped nothing is drawn: an evaluation leaves the masks of training as they are.
    """
    if not probability:
        return torch.zeros(1, device=device, dtype=torch.int64)
    return torch.randint(-(2**62), 2**62, (1,), device=device, dtype=torch.int64)


def block_size(columns: int) -> int:
    """The power of two that holds a row: a program takes one at a time."""
    return max(8, int(triton.next_power_of_2(columns)))


def warp_count(block: int) -> int:
    """So many that a thread has eight columns, which it loads 16 bytes at a time."""
    return min(8, max(1, block // 256))


def program_count(device: torch.device, rows: int) -> int:
    """Programs that stay and take row after row, so that sums over rows have few parts: four a multiprocessor."""
    if device.type != "cuda":
        return min(rows, 4)
    return min(rows, 4 * int(torch.cuda.get_device_properties(device).multi_processor_count))
