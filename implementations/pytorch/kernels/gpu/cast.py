"""Casts of matrices for products: to fp8 with the transpose, and the three parts of a gradient of qkv as one matrix.

fp8 tensor cores of Hopper read both operands with the summed dimension last, so weight gradients need the transposes of
activations and gradients. A program processes one tile, which it reads once and writes in both orders.

Suffixes of shapes: R rows, C columns, P columns of the source that are parts of the result.
"""

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from implementations.pytorch.kernels.fp8_scaling import Fp8Slot
from implementations.pytorch.kernels.gpu.ahead import Ahead
from implementations.pytorch.kernels.gpu.common import launch, record_amax, to_fp8
from podium.planning.batch_plan import round_up

TILE_ROWS, TILE_COLUMNS = 64, 64
FP8_MULTIPLE = 16  # both dimensions of an operand of an fp8 product are multiples of this


@triton.jit
def _cast(  # type: ignore[no-untyped-def]
    first_ptr, second_ptr, third_ptr, rows_ptr, columns_ptr, parts_ptr, scale_ptr, amax_ptr,
    rows, padded_rows, columns, stride,
    PARTS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, SUMS: tl.constexpr, FP8: tl.constexpr,
    LIMIT: tl.constexpr, TILE_ROWS: tl.constexpr, TILE_COLUMNS: tl.constexpr,
):  # fmt: skip
    part = tl.program_id(2)
    row = tl.program_id(0) * TILE_ROWS + tl.arange(0, TILE_ROWS)
    col = tl.program_id(1) * TILE_COLUMNS + tl.arange(0, TILE_COLUMNS)
    source_ptr = first_ptr
    if part == 1:
        source_ptr = second_ptr
    if part == 2:
        source_ptr = third_ptr
    inside = (row[:, None] < rows) & (col[None, :] < columns)
    x = tl.load(source_ptr + row.to(tl.int64)[:, None] * stride + col[None, :], mask=inside, other=0)
    if SUMS:
        sums = tl.sum(x.to(tl.float32), 0)
        tl.store(parts_ptr + (tl.program_id(0) * PARTS + part) * columns + col, sums, mask=col < columns)
    if FP8:
        x = x.to(tl.float32)
        record_amax(amax_ptr, tl.abs(x))
        x = to_fp8(x, tl.load(scale_ptr), LIMIT, columns_ptr.dtype.element_ty)
    if ROWS:
        out = row.to(tl.int64)[:, None] * (PARTS * columns) + part * columns + col[None, :]
        tl.store(rows_ptr + out, x, mask=inside)
    if COLUMNS:
        # Rows beyond the last are zeros: they round the summed dimension of a weight gradient up.
        inside = (col[:, None] < columns) & (row[None, :] < padded_rows)
        out = (part * columns + col).to(tl.int64)[:, None] * padded_rows + row[None, :]
        tl.store(columns_ptr + out, tl.trans(x), mask=inside)


def _launch(
    sources: Sequence[Tensor], by_rows: Tensor | None, by_columns: Tensor | None, sums: Tensor | None,
    fp8: Fp8Slot | None,
) -> None:  # fmt: skip
    first = sources[0]
    (rows, columns), count = first.shape, len(sources)
    assert all(source.shape == first.shape and source.stride() == (first.stride(0), 1) for source in sources)
    padded_rows = rows if by_columns is None else by_columns.shape[1]
    unused: Any = first
    outputs = [output for output in (by_rows, by_columns, sums) if output is not None]
    launch(
        _cast, (triton.cdiv(padded_rows, TILE_ROWS), triton.cdiv(columns, TILE_COLUMNS), count),
        *sources, *[first] * (3 - count), *(unused if t is None else t for t in (by_rows, by_columns, sums)),
        *((fp8.scale, fp8.amax) if fp8 else (unused, unused)),
        rows, padded_rows, columns, first.stride(0),
        count, by_rows is not None, by_columns is not None, sums is not None, fp8 is not None,
        fp8.limit if fp8 else 0.0, TILE_ROWS, TILE_COLUMNS,
        moved=count * first.nbytes + sum(output.nbytes for output in outputs), num_warps=4,
    )  # fmt: skip


def cast_fp8(
    sources: Sequence[Tensor], fp8: Fp8Slot, sums: bool = False, by_rows: bool = True
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return one to three matrices [R, P] side by side, [R, C], and its transpose [C, R rounded up], both fp8.

    Rows of a source may be strided. With `sums` also return partial column sums [tiles, 1, C], float32. Without
    `by_rows` the first result is empty.
    """
    rows, columns, device = len(sources[0]), len(sources) * sources[0].shape[1], sources[0].device
    straight = torch.empty(rows if by_rows else 0, columns, dtype=fp8.dtype, device=device)
    transposed = torch.empty(columns, round_up(rows, FP8_MULTIPLE), dtype=fp8.dtype, device=device)
    parts = torch.empty(triton.cdiv(transposed.shape[1], TILE_ROWS), 1, columns, device=device) if sums else None
    _launch(sources, straight if by_rows else None, transposed, parts, fp8)
    return straight, transposed, parts


def transpose_fp8(matrix_RC: Tensor) -> Tensor:
    """Return the transpose [C, R rounded up] of an fp8 matrix."""
    rows, columns = matrix_RC.shape
    transposed = torch.empty(columns, round_up(rows, FP8_MULTIPLE), dtype=matrix_RC.dtype, device=matrix_RC.device)
    # As bytes: a zero byte is a zero in fp8, and nothing is computed.
    _launch([matrix_RC.view(torch.uint8)], None, transposed.view(torch.uint8), None, None)
    return transposed


def join(sources: Sequence[Tensor], copy: bool = True) -> tuple[Tensor, Tensor]:
    """Return three matrices [R, P] side by side, [R, C], and partial column sums [tiles, 1, C], float32.

    Without `copy` only the sums are computed, and the first result is empty.
    """
    rows, columns, device = len(sources[0]), len(sources) * sources[0].shape[1], sources[0].device
    joined = torch.empty(rows if copy else 0, columns, dtype=sources[0].dtype, device=device)
    parts = torch.empty(triton.cdiv(rows, TILE_ROWS), 1, columns, device=device)
    _launch(sources, joined if copy else None, None, parts, None)
    return joined, parts


_TILE = {"TILE_ROWS": TILE_ROWS, "TILE_COLUMNS": TILE_COLUMNS}
_TYPES = "*{0} *{0} *{0} *{1} *{1} *fp32 *fp32 *i32 i32 i32 i32 i32"
_ALIGNED = ("padded_rows", "columns", "stride")
AHEAD = (
    Ahead(
        _cast, _TYPES.format("bf16", "fp8e5"),
        {"PARTS": 3, "ROWS": True, "COLUMNS": True, "SUMS": True, "FP8": True, "LIMIT": 57344.0, **_TILE}, 4,
        variant="gradient of qkv", aligned=_ALIGNED, capability=89, occupancy=0.4,  # 32 elements for a thread
    ),
    Ahead(
        _cast, _TYPES.format("fp32", "fp8e4nv"),
        {"PARTS": 1, "ROWS": True, "COLUMNS": True, "SUMS": False, "FP8": True, "LIMIT": 448.0, **_TILE}, 4,
        variant="weight", aligned=_ALIGNED, capability=89,
    ),
    Ahead(
        _cast, _TYPES.format("u8", "u8"),
        {"PARTS": 1, "ROWS": False, "COLUMNS": True, "SUMS": False, "FP8": False, "LIMIT": 0.0, **_TILE}, 4,
        variant="transpose", aligned=_ALIGNED,
    ),
    Ahead(
        _cast, _TYPES.format("bf16", "bf16"),
        {"PARTS": 3, "ROWS": True, "COLUMNS": False, "SUMS": True, "FP8": False, "LIMIT": 0.0, **_TILE}, 4,
        variant="join", aligned=_ALIGNED,
    ),
)  # fmt: skip
