"""Gradient of an embedding table, added to the existing one: reads and writes only the rows that were looked up.

Token ids are sorted, so that the gradients of a row of the table are neighbours: a run. A program sums the runs in a
chunk of consecutive ids. Runs that cross chunks are joined by a second kernel from partial sums, so no additions are
atomic, and their order is fixed.

Suffixes of shapes: T tokens, D hidden width, V rows of the table.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from implementations.pytorch.kernels.gpu.ahead import Ahead
from implementations.pytorch.kernels.gpu.common import launch

CHUNK, BLOCK = 32, 1024  # ids and columns of a program: two 16-byte loads of each id for each thread of four warps
JOINED, JOINED_BLOCK = 8, 256  # partial sums that are loaded at once, and their columns
# Tables with fewer rows get a gradient by PyTorch: it is cheap to write whole, and its runs are long.
LARGE_TABLE = 4096


@triton.jit
def _add_runs(  # type: ignore[no-untyped-def]
    ids_ptr, order_ptr, dx_ptr, gradient_ptr, parts_ptr, rows, columns, CHUNK: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    chunk = tl.program_id(0)
    first = chunk * CHUNK
    cols = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = cols < columns
    # Partial sums [chunks, 2, columns]: of a run that began before this chunk, and of one that continues after it.
    part_ptrs = parts_ptr + 2 * chunk * columns + cols
    total = tl.zeros([BLOCK], tl.float32)
    row_id = tl.load(ids_ptr + first)
    from_before = (row_id == tl.load(ids_ptr + first - 1, mask=first > 0, other=-1)).to(tl.int32)
    continues = 1
    for place in range(first, tl.minimum(first + CHUNK, rows)):
        row = tl.load(order_ptr + place)
        total += tl.load(dx_ptr + row * columns + cols, mask=mask, other=0.0)
        next_id = tl.load(ids_ptr + place + 1, mask=place + 1 < rows, other=-1)
        continues = (next_id == row_id).to(tl.int32)
        if continues == 0:
            if from_before != 0:
                tl.store(part_ptrs, total, mask=mask)
            else:
                gradient_ptrs = gradient_ptr + row_id.to(tl.int64) * columns + cols
                tl.store(gradient_ptrs, tl.load(gradient_ptrs, mask=mask, other=0.0) + total, mask=mask)
            total = tl.zeros([BLOCK], tl.float32)
            from_before = 0
        row_id = next_id
    if continues != 0:
        tl.store(part_ptrs + (1 - from_before) * columns, total, mask=mask)


@triton.jit
def _join_runs(  # type: ignore[no-untyped-def]
    ids_ptr, gradient_ptr, parts_ptr, rows, columns, chunks,
    CHUNK: tl.constexpr, JOINED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    chunk = tl.program_id(0)
    first, last = chunk * CHUNK, chunk * CHUNK + CHUNK - 1
    cols = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = cols < columns
    first_id, last_id = tl.load(ids_ptr + first), tl.load(ids_ptr + last, mask=last < rows, other=-1)
    from_before = (first_id == last_id) & (first_id == tl.load(ids_ptr + first - 1, mask=first > 0, other=-1))
    continues = last_id == tl.load(ids_ptr + last + 1, mask=last + 1 < rows, other=-2)
    if continues & (from_before == 0):
        total = tl.load(parts_ptr + (2 * chunk + 1) * columns + cols, mask=mask, other=0.0)
        following, found = chunk + 1, JOINED
        while found == JOINED:
            others = following + tl.arange(0, JOINED)
            is_same = tl.load(ids_ptr + others * CHUNK, mask=others < chunks, other=-1) == last_id
            parts = parts_ptr + 2 * others[:, None] * columns + cols[None, :]
            total += tl.sum(tl.load(parts, mask=is_same[:, None] & mask[None, :], other=0.0), 0)
            found = tl.sum(is_same.to(tl.int32), 0)
            following += JOINED
        gradient_ptrs = gradient_ptr + last_id.to(tl.int64) * columns + cols
        tl.store(gradient_ptrs, tl.load(gradient_ptrs, mask=mask, other=0.0) + total, mask=mask)


def add_rows(gradient_VD: Tensor, ids_T: Tensor, dx_TD: Tensor) -> None:
    """Add row t of dx to row ids[t] of the gradient, for all t, in place; both are float32 and contiguous."""
    rows, columns = dx_TD.shape
    # 32-bit ids are sorted in half as many passes as 64-bit ones. Stable: the order of additions is fixed.
    ids_T, order_T = ids_T.int().sort(stable=True)
    chunks = triton.cdiv(rows, CHUNK)
    parts = torch.empty(chunks, 2, columns, device=dx_TD.device)
    launch(
        _add_runs, (chunks, triton.cdiv(columns, BLOCK)), ids_T, order_T, dx_TD, gradient_VD, parts, rows, columns,
        CHUNK, BLOCK, moved=3 * dx_TD.nbytes + parts.nbytes, num_warps=4,  # at most: every id a different one
    )  # fmt: skip
    launch(
        _join_runs, (chunks, triton.cdiv(columns, JOINED_BLOCK)), ids_T, gradient_VD, parts, rows, columns, chunks,
        CHUNK, JOINED, JOINED_BLOCK, moved=3 * parts.nbytes, num_warps=4,
    )  # fmt: skip


def table_gradient(table_VD: Tensor, ids_T: Tensor, dx_TD: Tensor) -> Tensor | None:
    """Return the gradient [V, D] of a lookup; None if it was added to `table_VD.grad`: if that exists and is large.

    So for `torch.autograd.grad` it must be None.
    """
    if table_VD.grad is not None and len(table_VD) >= LARGE_TABLE:
        add_rows(table_VD.grad, ids_T, dx_TD)
        return None
    # PyTorch's operator sorts the ids and so adds the rows of each id in a fixed order, without atomic additions.
    gradient: Tensor = torch.ops.aten.embedding_dense_backward(dx_TD, ids_T, len(table_VD), -1, False)
    return gradient


AHEAD = (
    Ahead(_add_runs, "*i32 *i64 *fp32 *fp32 *fp32 i32 i32", {"CHUNK": CHUNK, "BLOCK": BLOCK}, 4),
    Ahead(
        _join_runs, "*i32 *fp32 *fp32 i32 i32 i32", {"CHUNK": CHUNK, "JOINED": JOINED, "BLOCK": JOINED_BLOCK}, 4,
        widest_access=8,  # two columns for each of 128 threads
    ),
)  # fmt: skip
