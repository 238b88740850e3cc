"""Shared parts of the GPU kernels: launches, dropout masks, seeds, fp8 casts, sums of parts, block and grid sizes."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from implementations.pytorch.kernels.gpu.ahead import Ahead

# A function that launches are passed to instead of the device: kernel name, bytes moved, floating-point operations.
Recorder = Callable[[str, int, float], None]
_recorders: list[Recorder] = []


@contextmanager
def record_launches(recorder: Recorder) -> Iterator[None]:
    """Pass every launch to `recorder` instead of running it; for counting a step on tensors without data."""
    _recorders.append(recorder)
    try:
        yield
    finally:
        _recorders.remove(recorder)


def launch(
    kernel: Any, grid: tuple[int, ...], *arguments: Any, moved: int | None = None, flops: float = 0.0, **options: Any
) -> None:
    """Launch a Triton kernel on a grid of programs.

    `moved` is the number of bytes that it reads and writes, for the counter; None: each tensor argument once. `flops`
    counts its matrix products only. `options` are Triton's, such as num_warps.
    """
    if not _recorders:
        kernel[grid](*arguments, **options)
        return
    if moved is None:
        moved = sum(argument.nbytes for argument in arguments if isinstance(argument, Tensor))
    for recorder in _recorders:
        recorder(f"{kernel.__module__.rpartition('.')[2]}.{kernel.__name__.strip('_')}", moved, flops)


@triton.jit
def keep_mask(seed, row, threshold, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return which of a row's BLOCK columns dropout keeps: a function of seed, row and column only.

    One call of Philox 4x32 with seven rounds (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC'11)
    yields 16 bits for each of eight columns.
    """
    # Masks are never stored; backward recomputes them. The interleaving puts the eight numbers of one call into
    # consecutive columns.
    counters = row * (BLOCK // 8) + tl.arange(0, BLOCK // 8)
    a, b, c, d = tl.randint4x(seed, counters, n_rounds=7)
    quarters = tl.interleave(tl.interleave(a, c), tl.interleave(b, d)).to(tl.uint32, bitcast=True)
    draws = tl.interleave(quarters & 0xFFFF, quarters >> 16)
    return draws >= threshold


@triton.jit
def to_fp8(x, scale, LIMIT: tl.constexpr, element: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return x · scale in fp8, saturated at ±LIMIT; values that are not finite become NaN.

    An infinite gradient must not become a finite one: the loss scaler and the metrics have to detect it.
    """
    # x - x is 0, or NaN if x is not finite.
    return (tl.clamp(x * scale, -LIMIT, LIMIT) + (x - x)).to(element)


@triton.jit
def record_amax(amax_ptr, magnitudes):  # type: ignore[no-untyped-def]
    """Raise `amax_ptr` to the largest of the magnitudes, which are not negative.

    The maximum is kept as the bits of a float32 in an int32, which have the order of the numbers: the result does not
    depend on the order of programs.
    """
    tl.atomic_max(amax_ptr, tl.max(tl.ravel(magnitudes), 0).to(tl.int32, bitcast=True), sem="relaxed")


def recording() -> bool:
    """Return whether launches are recorded, on tensors without data, instead of run."""
    return bool(_recorders)


def draw_seeds(device: torch.device, probability: float, count: int = 1) -> Tensor:
    """Draw dropout seeds, int64 [count] on the device, from its default generator; replays of a CUDA graph redraw them.

    With a probability of 0 nothing is drawn, so that an evaluation does not change the masks of later training steps.
    """
    if not probability:
        return torch.zeros(count, device=device, dtype=torch.int64)
    return torch.randint(-(2**62), 2**62, (count,), device=device, dtype=torch.int64)


@triton.jit
def _sum_parts(  # type: ignore[no-untyped-def]
    parts_ptr, first_ptr, second_ptr, third_ptr, parts, columns, add, COUNT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    number = tl.program_id(1)
    cols = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = cols < columns
    rows = tl.arange(0, 16)
    total = tl.zeros([16, BLOCK], tl.float32)
    for start in range(0, parts, 16):
        part = start + rows[:, None]
        offsets = (part * COUNT + number) * columns + cols[None, :]
        total += tl.load(parts_ptr + offsets, mask=(part < parts) & mask[None, :], other=0.0)
    total = tl.sum(total, 0)
    target_ptr = first_ptr
    if number == 1:
        target_ptr = second_ptr
    if number == 2:
        target_ptr = third_ptr
    if add != 0:
        total += tl.load(target_ptr + cols, mask=mask, other=0.0)
    tl.store(target_ptr + cols, total, mask=mask)


def sum_parts(parts: Tensor, targets: tuple[Tensor, ...], accumulate: bool = False) -> None:
    """Sum the programs' partial sums [programs, targets, columns] into up to three float32 targets [columns].

    With `accumulate` the sums are added to the targets. The order of additions is fixed.
    """
    programs, count, columns = parts.shape
    block = 32
    launch(
        _sum_parts, (triton.cdiv(columns, block), count), parts, *targets, *[targets[0]] * (3 - len(targets)),
        programs, columns, int(accumulate), count, block,
        moved=parts.nbytes + (1 + accumulate) * sum(target.nbytes for target in targets), num_warps=4,
    )  # fmt: skip


def block_size(columns: int) -> int:
    """Return the smallest power of two, at least 8, that holds a row: a program processes one row at a time."""
    # A whole row per program keeps reductions in registers. At least 8, since masks are drawn eight columns at a time.
    return max(8, int(triton.next_power_of_2(columns)))


def warp_count(block: int) -> int:
    """Return the number of warps, one to eight, that gives each thread eight columns: one 16-byte load in bfloat16."""
    return min(8, max(1, block // 256))


def program_count(device: torch.device, rows: int) -> int:
    """Return the number of persistent programs that loop over rows: four per multiprocessor.

    Each program keeps its sums over rows (gradients of parameters) in registers and writes one partial sum. So there
    are few partial sums, and no atomic additions, whose order would vary.
    """
    if device.type != "cuda":  # Triton's interpreter, in tests
        return min(rows, 4)
    return min(rows, 4 * int(torch.cuda.get_device_properties(device).multi_processor_count))


AHEAD = (Ahead(_sum_parts, "*fp32 *fp32 *fp32 *fp32 i32 i32 i32", {"COUNT": 3, "BLOCK": 32}, 4),)
