"""One LAMB update of many tensors, by multi-tensor operations or, for float32 on a CPU, by compiled loops."""

from dataclasses import dataclass

import numpy as np
import torch
from numba import prange
from torch import Tensor

from benchmarks.compiled import compiled_parallel

BLOCK = 1 << 14
"""Elements that a thread takes at a time: those of one block stay in its cache from the first pass to the second."""


@dataclass(frozen=True)
class Update:
    """What an update works on; tensors of one place in the lists belong together."""

    parameters: list[Tensor]
    gradients: list[Tensor]
    means: list[Tensor]
    squares: list[Tensor]
    betas: tuple[float, float]
    kept: tuple[float | Tensor, float | Tensor]
    """What the moving averages are multiplied by: the betas, or 1 where nothing is to change."""
    numbers: Tensor
    """Bias correction of m, that of v, and the rate: float64 [3] on the device."""
    eps: float
    weight_decay: float
    adapt: bool


def update_foreach(update: Update) -> None:
    parameters, gradients = update.parameters, update.gradients
    correction1, correction2, rate = update.numbers.to(parameters[0].dtype).unbind()
    torch._foreach_mul_(update.means, update.kept[0])
    torch._foreach_add_(update.means, gradients, alpha=1 - update.betas[0])
    torch._foreach_mul_(update.squares, update.kept[1])
    torch._foreach_addcmul_(update.squares, gradients, gradients, value=1 - update.betas[1])

    denominators = torch._foreach_div(update.squares, correction2)
    torch._foreach_sqrt_(denominators)
    torch._foreach_add_(denominators, update.eps)
    changes = torch._foreach_div(update.means, correction1)
    torch._foreach_div_(changes, denominators)
    if update.weight_decay:
        torch._foreach_add_(changes, parameters, alpha=update.weight_decay)
    if update.adapt:
        torch._foreach_mul_(changes, _trust_ratios(parameters, changes, -rate))
    else:
        torch._foreach_mul_(changes, -rate)
    torch._foreach_add_(parameters, changes)


def _trust_ratios(parameters: list[Tensor], changes: tuple[Tensor, ...], rate: Tensor) -> list[Tensor]:
    """rate · ‖p‖ / ‖u‖ a tensor, the ratio 1 where either norm is 0."""
    p_norms = torch.stack(torch._foreach_norm(parameters))
    u_norms = torch.stack(torch._foreach_norm(changes))
    defined = (p_norms > 0) & (u_norms > 0)
    ratios = torch.where(defined, p_norms / torch.where(defined, u_norms, 1.0), 1.0)
    return list((ratios * rate).unbind())


def update_compiled(update: Update) -> None:
    """The same with each value read once to find the change and once to make it; norms are summed in float64."""
    numbers = update.numbers.numpy()
    constants = np.array([*update.betas, update.eps, update.weight_decay], dtype=np.float64)
    for p, g, m, v in zip(update.parameters, update.gradients, update.means, update.squares, strict=True):
        change = torch.empty_like(p)
        values, *rest = (tensor.view(-1).numpy() for tensor in (p, g.contiguous(), m, v, change))
        norms = np.zeros((-(-p.numel() // BLOCK), 2))
        _find_changes(values, *rest, numbers, constants, norms)  # type: ignore[call-arg]
        _apply(values, rest[-1], numbers, norms, update.adapt)


@compiled_parallel
def _find_changes(
    p: np.ndarray,
    g: np.ndarray,
    m: np.ndarray,
    v: np.ndarray,
    change: np.ndarray,
    numbers: np.ndarray,
    constants: np.ndarray,
    norms: np.ndarray,
) -> None:
    beta1, beta2 = np.float32(constants[0]), np.float32(constants[1])
    new1, new2 = np.float32(1 - constants[0]), np.float32(1 - constants[1])
    eps, decay = np.float32(constants[2]), np.float32(constants[3])
    correction1, correction2 = np.float32(numbers[0]), np.float32(numbers[1])
    for block in prange(len(norms)):
        p_squares, u_squares = 0.0, 0.0
        for i in range(block * BLOCK, min((block + 1) * BLOCK, len(p))):
            m[i] = beta1 * m[i] + new1 * g[i]
            v[i] = beta2 * v[i] + new2 * g[i] * g[i]
            u = (m[i] / correction1) / (np.sqrt(v[i] / correction2) + eps) + decay * p[i]
            change[i] = u
            p_squares += np.float64(p[i]) * np.float64(p[i])
            u_squares += np.float64(u) * np.float64(u)
        norms[block, 0], norms[block, 1] = p_squares, u_squares


@compiled_parallel
def _apply(p: np.ndarray, change: np.ndarray, numbers: np.ndarray, norms: np.ndarray, adapt: bool) -> None:
    p_squares, u_squares = 0.0, 0.0
    for block in range(len(norms)):
        p_squares += norms[block, 0]
        u_squares += norms[block, 1]
    ratio = np.sqrt(p_squares / u_squares) if adapt and p_squares > 0 and u_squares > 0 else 1.0
    factor = np.float32(numbers[2] * ratio)
    for block in prange(len(norms)):
        for i in range(block * BLOCK, min((block + 1) * BLOCK, len(p))):
            p[i] -= factor * change[i]
