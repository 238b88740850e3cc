"""LAMB by the equations of MLPerf Training's reference.

Source: You et al., arXiv 1904.00962, in the reference's variant: moving averages m and v of the gradient and its
square, bias correction, u = m̂ / (√v̂ + eps) + weight_decay · p, and a step of lr · ‖p‖/‖u‖ · u for every tensor,
where the ratio is 1 if either norm is 0. A parameter group with `adapt: False` (biases and LayerNorm) keeps ratio 1.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numba import prange
from torch import Tensor
from torch.optim import Optimizer

from podium.core.jit import compiled_parallel

BLOCK = 1 << 14  # elements that a thread takes at a time: few enough to stay in its cache between both passes


@dataclass(frozen=True)
class Update:
    """What an update works on; tensors of one place in the lists belong together."""

    parameters: list[Tensor]
    gradients: list[Tensor]
    means: list[Tensor]
    squares: list[Tensor]
    betas: tuple[float, float]
    kept: tuple[float | Tensor, float | Tensor]  # what moving averages are multiplied by: betas, or 1
    numbers: Tensor  # bias correction of m, that of v, and the rate: float64 [3] on the device
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


class Lamb(Optimizer):
    """LAMB over parameter groups without a word to the host, so that a step can be part of a CUDA graph.

    Group keys: lr (a number or a 0-d tensor on the parameters' device), betas, eps, weight_decay, adapt, and parts:
    into how many tensors along the first dimension a parameter is split for the trust ratio, for matrices that the
    reference keeps apart. Steps are computed with multi-tensor (foreach) operations, and on a CPU for float32 with
    compiled loops that read each value twice instead of ten times. Where `torch.amp.GradScaler` has found gradients
    that are not finite, a step changes nothing. Raises ValueError for a value outside its range.
    """

    _step_supports_amp_scaling = True  # torch.amp.GradScaler then sets `grad_scale` and `found_inf` and asks nothing

    def __init__(
        self,
        params: Any,
        lr: float | Tensor,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
        adapt: bool = True,
        parts: int = 1,
    ) -> None:
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "adapt": adapt, "parts": parts}
        super().__init__(params, defaults)
        for group in self.param_groups:
            _check(group)

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        for group in self.param_groups:
            self._update(group)
        self._exchange()

    def _updates(self, parameter: Tensor) -> bool:
        """Whether this process updates the parameter."""
        return True

    def _exchange(self) -> None:
        """Get what other processes have updated."""

    def _update(self, group: dict[str, Any]) -> None:
        parameters = [p for p in group["params"] if p.grad is not None]
        if not parameters:
            return
        device = parameters[0].device
        group.setdefault("step", torch.zeros((), dtype=torch.float64, device=device))
        found_inf, grad_scale = getattr(self, "found_inf", None), getattr(self, "grad_scale", None)
        taken = 1.0 if found_inf is None else 1.0 - found_inf
        group["step"] += taken
        parameters = [p for p in parameters if self._updates(p)]
        if not parameters:
            return
        for p in parameters:
            if not self.state[p]:
                self.state[p]["m"] = torch.zeros_like(p)
                self.state[p]["v"] = torch.zeros_like(p)
        beta1, beta2 = group["betas"]
        steps, rate = group["step"].clamp(min=1), torch.as_tensor(group["lr"], dtype=torch.float64, device=device)
        gradients = [p.grad for p in parameters]
        if grad_scale is not None:
            torch._foreach_div_(gradients, grad_scale)
        if found_inf is not None:  # a step of nothing: gradients of zero, moving averages that stay, a rate of zero
            gradients = [torch.where(found_inf > 0, 0.0, gradient) for gradient in gradients]
            beta1, beta2 = (torch.where(found_inf > 0, 1.0, beta) for beta in (beta1, beta2))
        update = Update(
            parameters=_split(parameters, group["parts"]),
            gradients=_split(gradients, group["parts"]),
            means=_split((self.state[p]["m"] for p in parameters), group["parts"]),
            squares=_split((self.state[p]["v"] for p in parameters), group["parts"]),
            betas=group["betas"],
            kept=(beta1, beta2),
            numbers=torch.stack([1 - group["betas"][0] ** steps, 1 - group["betas"][1] ** steps, rate * taken]),
            eps=group["eps"],
            weight_decay=group["weight_decay"],
            adapt=group["adapt"],
        )
        plain = all(p.dtype == torch.float32 and p.is_contiguous() for p in parameters)
        compiles = plain and device.type == "cpu" and found_inf is None
        (update_compiled if compiles else update_foreach)(update)


def _check(group: dict[str, Any]) -> None:
    allowed = (
        group["lr"] >= 0
        and all(0 <= beta < 1 for beta in group["betas"])
        and group["eps"] > 0
        and group["weight_decay"] >= 0
        and group["parts"] >= 1
    )
    if not allowed:
        values = ", ".join(f"{key} {group[key]}" for key in ("lr", "betas", "eps", "weight_decay", "parts"))
        raise ValueError(f"LAMB cannot use {values}")


def _split(tensors: Iterable[Tensor], parts: int) -> list[Tensor]:
    """Views of the tensors' parts along the first dimension."""
    return [part for tensor in tensors for part in tensor.chunk(parts)]
