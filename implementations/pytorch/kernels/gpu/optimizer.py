"""LAMB and AdamW over all tensors of a model with one launch per pass, by a table of chunks in device memory.

A chunk is at most `CHUNK` elements of one tensor, and one program processes it. The table has the addresses of its
parameters, gradients and moments m and v. Bytes moved for each element, all float32:

- `measure`: 4, reads gradients, only where their norm or their finiteness is needed before the update
- `update_lamb`: 24 for moments and norms (p, g, m, v → m, v), then 16 for parameters (p, m, v → p) and 4 to clear g
- `update_adamw`: 28 (p, g, m, v → p, m, v) and 4 to clear g

Loss unscaling, clipping and the skipping of an overflowing step are scalars in device memory that the update reads.
Sums over a tensor are partial sums of its chunks, added in a fixed order: results do not vary between runs.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from implementations.pytorch.kernels.gpu.ahead import Ahead
from implementations.pytorch.kernels.gpu.common import launch

CHUNK = 1 << 14  # elements of a program
# Elements of an iteration: a 16-byte access to each tensor by each thread of 8 warps.
BLOCK = 1 << 10
WARPS = 8
SUM_BLOCK = 256  # partial sums that are added at a time

# Columns of the table: four addresses; elements; first chunk and number of chunks of the same tensor; row of its
# hyper-parameters; flags.
P, G, M, V, SIZE, FIRST, COUNT, ROW, FLAGS = (tl.constexpr(column) for column in range(9))
COLUMNS = tl.constexpr(9)
ALIGNED = tl.constexpr(1)  # flag: all four addresses and the size are multiples of 16 bytes
CLEAR = tl.constexpr(2)  # flag: the gradient is set to 0 after it was read

# Columns of the hyper-parameters: constants, and values of this step.
BETA1, ONE_MINUS_BETA1, BETA2, ONE_MINUS_BETA2, EPS, DECAY, ADAPT = (tl.constexpr(column) for column in range(7))
CONSTANTS = tl.constexpr(7)
CORRECTION1, CORRECTION2, RATE = (tl.constexpr(column) for column in range(3))  # in AdamW √ of the second
STEP_VALUES = tl.constexpr(3)
# Scalars of all gradients: two factors, and whether the step is skipped.
UNSCALE, CLIP, SKIP = (tl.constexpr(column) for column in range(3))


@triton.jit
def _pointer(chunk_ptr, column: tl.constexpr, IS_ALIGNED: tl.constexpr):  # type: ignore[no-untyped-def]
    pointer = tl.load(chunk_ptr + column).to(tl.pointer_type(tl.float32))
    # The compiler cannot know the alignment of an address in a table, and uses 4-byte accesses without this hint.
    return tl.multiple_of(pointer, 16) if IS_ALIGNED else pointer


@triton.jit
def _size(chunk_ptr, IS_ALIGNED: tl.constexpr):  # type: ignore[no-untyped-def]
    size = tl.load(chunk_ptr + SIZE).to(tl.int32)
    # The product states that four elements, one 16-byte access, are all inside the chunk or all outside.
    return (size // 4) * 4 if IS_ALIGNED else size


@triton.jit
def _moments(g, m, v, unscale, clip, beta1, one_minus_beta1, beta2, one_minus_beta2):  # type: ignore[no-untyped-def]
    g = g * unscale * clip  # two products, rounded as where unscaling and clipping are separate passes
    return beta1 * m + one_minus_beta1 * g, beta2 * v + one_minus_beta2 * g * g


@triton.jit
def _lamb_direction(p, m, v, correction1, correction2, eps, decay):  # type: ignore[no-untyped-def]
    # Division and root are rounded to nearest, as PyTorch's; a GPU's approximations would save no time, since the
    # kernels wait for memory.
    return tl.div_rn(tl.div_rn(m, correction1), tl.sqrt_rn(tl.div_rn(v, correction2)) + eps) + decay * p


@triton.jit
def _measure_chunk(chunk_ptr, unscale, BLOCK: tl.constexpr, IS_ALIGNED: tl.constexpr):  # type: ignore[no-untyped-def]
    g_ptr, size = _pointer(chunk_ptr, G, IS_ALIGNED), _size(chunk_ptr, IS_ALIGNED)
    squares, overflows = tl.zeros([BLOCK], tl.float32), tl.zeros([BLOCK], tl.float32)
    for start in range(0, size, BLOCK):
        offsets = start + tl.arange(0, BLOCK)
        g = tl.load(g_ptr + offsets, mask=offsets < size, other=0.0)
        overflows = tl.where(tl.abs(g) < float("inf"), overflows, 1.0)  # the comparison is false for NaN too
        g *= unscale
        squares += g * g
    return tl.sum(squares, 0), tl.max(overflows, 0)


@triton.jit
def _measure(  # type: ignore[no-untyped-def]
    table_ptr, unscale_ptr, parts_ptr, chunks, BLOCK: tl.constexpr
):  # fmt: skip
    chunk = tl.program_id(0)
    chunk_ptr, unscale = table_ptr + chunk * COLUMNS, tl.load(unscale_ptr)
    if tl.load(chunk_ptr + FLAGS) & ALIGNED:
        squares, overflows = _measure_chunk(chunk_ptr, unscale, BLOCK, True)
    else:
        squares, overflows = _measure_chunk(chunk_ptr, unscale, BLOCK, False)
    tl.store(parts_ptr + chunk, squares)
    tl.store(parts_ptr + chunks + chunk, overflows)


@triton.jit
def _lamb_moments_chunk(  # type: ignore[no-untyped-def]
    chunk_ptr, constants_ptr, values_ptr, scalars_ptr, BLOCK: tl.constexpr, IS_ALIGNED: tl.constexpr
):  # fmt: skip
    p_ptr, g_ptr = _pointer(chunk_ptr, P, IS_ALIGNED), _pointer(chunk_ptr, G, IS_ALIGNED)
    m_ptr, v_ptr = _pointer(chunk_ptr, M, IS_ALIGNED), _pointer(chunk_ptr, V, IS_ALIGNED)
    size, skip = _size(chunk_ptr, IS_ALIGNED), tl.load(scalars_ptr + SKIP) > 0
    unscale, clip = tl.load(scalars_ptr + UNSCALE), tl.load(scalars_ptr + CLIP)
    beta1, one_minus_beta1 = tl.load(constants_ptr + BETA1), tl.load(constants_ptr + ONE_MINUS_BETA1)
    beta2, one_minus_beta2 = tl.load(constants_ptr + BETA2), tl.load(constants_ptr + ONE_MINUS_BETA2)
    correction1, correction2 = tl.load(values_ptr + CORRECTION1), tl.load(values_ptr + CORRECTION2)
    eps, decay = tl.load(constants_ptr + EPS), tl.load(constants_ptr + DECAY)
    p_squares, u_squares = tl.zeros([BLOCK], tl.float32), tl.zeros([BLOCK], tl.float32)
    for start in range(0, size, BLOCK):
        offsets = start + tl.arange(0, BLOCK)
        mask = offsets < size
        p, g = tl.load(p_ptr + offsets, mask=mask, other=0.0), tl.load(g_ptr + offsets, mask=mask, other=0.0)
        old_m, old_v = tl.load(m_ptr + offsets, mask=mask, other=0.0), tl.load(v_ptr + offsets, mask=mask, other=0.0)
        m, v = _moments(g, old_m, old_v, unscale, clip, beta1, one_minus_beta1, beta2, one_minus_beta2)
        m, v = tl.where(skip, old_m, m), tl.where(skip, old_v, v)
        tl.store(m_ptr + offsets, m, mask=mask)
        tl.store(v_ptr + offsets, v, mask=mask)
        u = _lamb_direction(p, m, v, correction1, correction2, eps, decay)
        u = tl.where(mask, u, 0.0)  # behind the end it is 0 / eps, which is NaN if eps is 0
        p_squares += p * p
        u_squares += u * u
    return tl.sum(p_squares, 0), tl.sum(u_squares, 0)


@triton.jit
def _lamb_moments(  # type: ignore[no-untyped-def]
    table_ptr, constants_ptr, values_ptr, scalars_ptr, parts_ptr, BLOCK: tl.constexpr
):  # fmt: skip
    chunk = tl.program_id(0)
    chunk_ptr = table_ptr + chunk * COLUMNS
    row = tl.load(chunk_ptr + ROW)
    constants_ptr, values_ptr = constants_ptr + row * CONSTANTS, values_ptr + row * STEP_VALUES
    if tl.load(chunk_ptr + FLAGS) & ALIGNED:
        p_squares, u_squares = _lamb_moments_chunk(chunk_ptr, constants_ptr, values_ptr, scalars_ptr, BLOCK, True)
    else:
        p_squares, u_squares = _lamb_moments_chunk(chunk_ptr, constants_ptr, values_ptr, scalars_ptr, BLOCK, False)
    tl.store(parts_ptr + 2 * chunk, p_squares)
    tl.store(parts_ptr + 2 * chunk + 1, u_squares)


@triton.jit
def _lamb_parameters_chunk(  # type: ignore[no-untyped-def]
    chunk_ptr, constants_ptr, values_ptr, skip, factor, BLOCK: tl.constexpr, IS_ALIGNED: tl.constexpr
):  # fmt: skip
    p_ptr, g_ptr = _pointer(chunk_ptr, P, IS_ALIGNED), _pointer(chunk_ptr, G, IS_ALIGNED)
    m_ptr, v_ptr = _pointer(chunk_ptr, M, IS_ALIGNED), _pointer(chunk_ptr, V, IS_ALIGNED)
    size, clears = _size(chunk_ptr, IS_ALIGNED), tl.load(chunk_ptr + FLAGS) & CLEAR
    correction1, correction2 = tl.load(values_ptr + CORRECTION1), tl.load(values_ptr + CORRECTION2)
    eps, decay = tl.load(constants_ptr + EPS), tl.load(constants_ptr + DECAY)
    for start in range(0, size, BLOCK):
        offsets = start + tl.arange(0, BLOCK)
        mask = offsets < size
        p = tl.load(p_ptr + offsets, mask=mask, other=0.0)
        m, v = tl.load(m_ptr + offsets, mask=mask, other=0.0), tl.load(v_ptr + offsets, mask=mask, other=0.0)
        new_p = p - factor * _lamb_direction(p, m, v, correction1, correction2, eps, decay)
        tl.store(p_ptr + offsets, tl.where(skip, p, new_p), mask=mask)
        if clears:
            tl.store(g_ptr + offsets, tl.zeros([BLOCK], tl.float32), mask=mask)


@triton.jit
def _lamb_parameters(  # type: ignore[no-untyped-def]
    table_ptr, constants_ptr, values_ptr, scalars_ptr, parts_ptr, BLOCK: tl.constexpr, SUM_BLOCK: tl.constexpr
):  # fmt: skip
    chunk_ptr = table_ptr + tl.program_id(0) * COLUMNS
    row, first = tl.load(chunk_ptr + ROW), tl.load(chunk_ptr + FIRST).to(tl.int32)
    constants_ptr, values_ptr = constants_ptr + row * CONSTANTS, values_ptr + row * STEP_VALUES
    # Every chunk of a tensor adds up the tensor's partial sums, in the same order: a few kilobytes of cache are read,
    # and no launch lies between the passes. In float64, since the word embedding has 31 million elements.
    count = tl.load(chunk_ptr + COUNT).to(tl.int32)
    p_squares, u_squares = tl.zeros([SUM_BLOCK], tl.float64), tl.zeros([SUM_BLOCK], tl.float64)
    for start in range(0, count, SUM_BLOCK):
        others = start + tl.arange(0, SUM_BLOCK)
        sums_ptr = parts_ptr + 2 * (first + others)
        p_squares += tl.load(sums_ptr, mask=others < count, other=0.0).to(tl.float64)
        u_squares += tl.load(sums_ptr + 1, mask=others < count, other=0.0).to(tl.float64)
    p_square, u_square = tl.sum(p_squares, 0), tl.sum(u_squares, 0)
    has_ratio = (tl.load(constants_ptr + ADAPT) > 0) & (p_square > 0) & (u_square > 0)
    ratio = tl.sqrt(tl.where(has_ratio, p_square, 1.0) / tl.where(has_ratio, u_square, 1.0))
    factor = (tl.load(values_ptr + RATE).to(tl.float64) * ratio).to(tl.float32)
    skip = tl.load(scalars_ptr + SKIP) > 0
    if tl.load(chunk_ptr + FLAGS) & ALIGNED:
        _lamb_parameters_chunk(chunk_ptr, constants_ptr, values_ptr, skip, factor, BLOCK, True)
    else:
        _lamb_parameters_chunk(chunk_ptr, constants_ptr, values_ptr, skip, factor, BLOCK, False)


@triton.jit
def _adamw_chunk(  # type: ignore[no-untyped-def]
    chunk_ptr, constants_ptr, values_ptr, scalars_ptr, BLOCK: tl.constexpr, IS_ALIGNED: tl.constexpr
):  # fmt: skip
    p_ptr, g_ptr = _pointer(chunk_ptr, P, IS_ALIGNED), _pointer(chunk_ptr, G, IS_ALIGNED)
    m_ptr, v_ptr = _pointer(chunk_ptr, M, IS_ALIGNED), _pointer(chunk_ptr, V, IS_ALIGNED)
    size, skip = _size(chunk_ptr, IS_ALIGNED), tl.load(scalars_ptr + SKIP) > 0
    clears = tl.load(chunk_ptr + FLAGS) & CLEAR
    unscale, clip = tl.load(scalars_ptr + UNSCALE), tl.load(scalars_ptr + CLIP)
    beta1, one_minus_beta1 = tl.load(constants_ptr + BETA1), tl.load(constants_ptr + ONE_MINUS_BETA1)
    beta2, one_minus_beta2 = tl.load(constants_ptr + BETA2), tl.load(constants_ptr + ONE_MINUS_BETA2)
    eps, rate = tl.load(constants_ptr + EPS), tl.load(values_ptr + RATE)
    correction1, root_correction2 = tl.load(values_ptr + CORRECTION1), tl.load(values_ptr + CORRECTION2)
    step_size, decay = tl.div_rn(rate, correction1), rate * tl.load(constants_ptr + DECAY)
    for start in range(0, size, BLOCK):
        offsets = start + tl.arange(0, BLOCK)
        mask = offsets < size
        p, g = tl.load(p_ptr + offsets, mask=mask, other=0.0), tl.load(g_ptr + offsets, mask=mask, other=0.0)
        old_m, old_v = tl.load(m_ptr + offsets, mask=mask, other=0.0), tl.load(v_ptr + offsets, mask=mask, other=0.0)
        m, v = _moments(g, old_m, old_v, unscale, clip, beta1, one_minus_beta1, beta2, one_minus_beta2)
        new_p = p - decay * p - tl.div_rn(step_size * m, tl.div_rn(tl.sqrt_rn(v), root_correction2) + eps)
        tl.store(p_ptr + offsets, tl.where(skip, p, new_p), mask=mask)
        tl.store(m_ptr + offsets, tl.where(skip, old_m, m), mask=mask)
        tl.store(v_ptr + offsets, tl.where(skip, old_v, v), mask=mask)
        if clears:
            # A barrier, since the thread that stores an element need not be the one that loads it: the stores above
            # wait for the loads of their values, and this one stores a constant.
            tl.debug_barrier()
            tl.store(g_ptr + offsets, tl.zeros([BLOCK], tl.float32), mask=mask)


@triton.jit
def _adamw(  # type: ignore[no-untyped-def]
    table_ptr, constants_ptr, values_ptr, scalars_ptr, BLOCK: tl.constexpr
):  # fmt: skip
    chunk_ptr = table_ptr + tl.program_id(0) * COLUMNS
    row = tl.load(chunk_ptr + ROW)
    constants_ptr, values_ptr = constants_ptr + row * CONSTANTS, values_ptr + row * STEP_VALUES
    if tl.load(chunk_ptr + FLAGS) & ALIGNED:
        _adamw_chunk(chunk_ptr, constants_ptr, values_ptr, scalars_ptr, BLOCK, True)
    else:
        _adamw_chunk(chunk_ptr, constants_ptr, values_ptr, scalars_ptr, BLOCK, False)


@dataclass(frozen=True)
class Piece:
    """A tensor with one trust ratio: contiguous float32 tensors of equal size."""

    parameter: Tensor
    gradient: Tensor
    moments: tuple[Tensor, ...]  # m and v; none if another process updates the parameter
    row: int  # row of its hyper-parameters
    clears: bool  # whether the gradient is set to 0


class TensorTable:
    """Chunks of the tensors of all parameters, by their addresses, and the launches over them."""

    def __init__(self, pieces: Sequence[Piece], constants: Sequence[Sequence[float]]) -> None:
        """`constants`: for each row of hyper-parameters beta1, beta2, eps, weight decay and whether LAMB adapts."""
        device = pieces[0].parameter.device
        self._chunks: list[list[int]] = []
        # Those that are updated come first, so that an update is a launch over the first chunks.
        for piece in sorted(pieces, key=lambda piece: not piece.moments):
            self._add(piece)
        updated = [piece for piece in pieces if piece.moments]
        self._updated_chunks = sum(-(-piece.parameter.numel() // CHUNK) for piece in updated)
        self._gradient_bytes = sum(piece.gradient.nbytes for piece in pieces)
        self._updated_bytes = sum(piece.gradient.nbytes for piece in updated)
        self._cleared_bytes = sum(piece.gradient.nbytes for piece in updated if piece.clears)
        self._other_gradients = [piece.gradient for piece in pieces if piece.clears and not piece.moments]
        self._table = _to_device(torch.tensor(self._chunks, dtype=torch.int64), device)
        # 1 - beta is computed in float64, since it would lose digits of beta2 in float32.
        values = [
            [beta1, 1 - beta1, beta2, 1 - beta2, eps, decay, adapt] for beta1, beta2, eps, decay, adapt in constants
        ]
        self._constants = _to_device(torch.tensor(values, dtype=torch.float32), device)
        self._betas = _to_device(torch.tensor([row[:2] for row in constants], dtype=torch.float64), device)
        self._gradient_sums = torch.empty(2, len(self._chunks), device=device)
        self._norm_sums = torch.empty(self._updated_chunks, 2, device=device)

    def _add(self, piece: Piece) -> None:
        tensors = (piece.parameter, piece.gradient, *piece.moments)
        size = piece.parameter.numel()
        for tensor in tensors:
            assert tensor.dtype == torch.float32 and tensor.is_contiguous() and tensor.numel() == size
        first, count = len(self._chunks), -(-size // CHUNK)
        starts = [_address(tensor) for tensor in tensors] + [0, 0]
        for start in range(0, size, CHUNK):
            length = min(CHUNK, size - start)
            # Gradients are views of DDP's buckets, where a tensor of odd size shifts all that follow it.
            is_aligned = all(address % 16 == 0 for address in starts) and length % 4 == 0
            flags = ALIGNED.value * is_aligned + CLEAR.value * piece.clears
            addresses = [address + start * 4 for address in starts[:4]]
            self._chunks.append([*addresses, length, first, count, piece.row, flags])

    def measure(self, unscale: Tensor) -> tuple[Tensor, Tensor]:
        """Return the norm of all gradients times `unscale` (0-d), and whether any is not finite: 1 or 0 (0-d each)."""
        chunks = len(self._chunks)
        # Two accesses at a time by each thread, since only one tensor is read.
        arguments = self._table, unscale, self._gradient_sums, chunks, 2 * BLOCK
        launch(_measure, (chunks,), *arguments, moved=self._gradient_bytes, num_warps=WARPS)
        squares, overflows = self._gradient_sums.unbind()
        return squares.sum(dtype=torch.float64).sqrt().float(), overflows.amax()

    def corrections(self, steps: Tensor) -> Tensor:
        """Return the bias corrections of m and v [rows, 2], float64, of the step counts [rows], float64."""
        return 1 - self._betas ** steps[:, None]

    def update_lamb(self, values: Tensor, scalars: Tensor) -> None:
        """Update parameters and moments, and clear gradients.

        `values`: for each row of hyper-parameters both bias corrections and the learning rate [rows, 3]. `scalars`:
        two factors of all gradients, and 1 if the step is skipped, else 0 [3]. All float32.
        """
        grid, known = (self._updated_chunks,), (self._table, self._constants, values.contiguous(), scalars)
        if self._updated_chunks:
            moved = 6 * self._updated_bytes
            launch(_lamb_moments, grid, *known, self._norm_sums, BLOCK, moved=moved, num_warps=WARPS)
            moved = 4 * self._updated_bytes + self._cleared_bytes
            launch(_lamb_parameters, grid, *known, self._norm_sums, BLOCK, SUM_BLOCK, moved=moved, num_warps=WARPS)
        self._clear_others()

    def update_adamw(self, values: Tensor, scalars: Tensor) -> None:
        """As `update_lamb`; `values` have the root of the second bias correction in its place."""
        grid, known = (self._updated_chunks,), (self._table, self._constants, values.contiguous(), scalars)
        if self._updated_chunks:
            moved = 7 * self._updated_bytes + self._cleared_bytes
            launch(_adamw, grid, *known, BLOCK, moved=moved, num_warps=WARPS)
        self._clear_others()

    def _clear_others(self) -> None:
        if self._other_gradients:
            torch._foreach_zero_(self._other_gradients)


def _to_device(host: Tensor, device: torch.device) -> Tensor:
    """Copy to the device without waiting for it."""
    if device.type == "cuda" and not isinstance(host, FakeTensor):
        host = host.pin_memory()
    return host.to(device, non_blocking=True)


def _address(tensor: Tensor) -> int:
    """Return the address of a tensor's data; 0 for one without data, on which a step is only counted."""
    return 0 if isinstance(tensor, FakeTensor) else tensor.data_ptr()


def addresses(tensors: Sequence[Tensor]) -> tuple[int, ...]:
    """Return the addresses of tensors: a table is valid as long as they are the same."""
    return tuple(_address(tensor) for tensor in tensors)


AHEAD = (
    Ahead(_measure, "*i64 *fp32 *fp32 i32", {"BLOCK": 2 * BLOCK}, WARPS),
    Ahead(_lamb_moments, "*i64 *fp32 *fp32 *fp32 *fp32", {"BLOCK": BLOCK}, WARPS),
    Ahead(_lamb_parameters, "*i64 *fp32 *fp32 *fp32 *fp32", {"BLOCK": BLOCK, "SUM_BLOCK": SUM_BLOCK}, WARPS),
    # Four loads of 16 bytes for a thread: a quarter of the warps has 32 KiB in flight on a multiprocessor.
    Ahead(_adamw, "*i64 *fp32 *fp32 *fp32", {"BLOCK": BLOCK}, WARPS, occupancy=0.25),
)
