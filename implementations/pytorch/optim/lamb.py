"""LAMB by the equations of MLPerf Training's reference.

Source: You et al., arXiv 1904.00962, in the reference's variant: moving averages m and v of the gradient and its
square, bias correction, u = m̂ / (√v̂ + eps) + weight_decay · p, and a step of lr · ‖p‖/‖u‖ · u for every tensor,
where the ratio is 1 if either norm is 0. A parameter group with `adapt: False` (biases and LayerNorm) keeps ratio 1.
"""

from typing import Any

import numpy as np
import torch
from numba import prange
from torch import Tensor
from torch.optim import Optimizer

from podium.core.jit import compiled_parallel

BLOCK = 1 << 14  # elements that a thread takes at a time: few enough to stay in its cache between both passes


Kept = tuple[float | Tensor, float | Tensor]


def update_foreach(*tensors: list[Tensor], kept: Kept, numbers: Tensor, group: dict[str, Any]) -> None:
    """Update the parameters of a group by their gradients, moving averages m and squares v: four lists, of which what
    has one place belongs together.

    `kept` is what moving averages are multiplied by: betas, or 1. `numbers` are the bias correction of m, that of v,
    and the rate: float64 [3] on the device.
    """
    parameters, gradients, means, squares = tensors
    correction1, correction2, rate = numbers.to(parameters[0].dtype).unbind()
    torch._foreach_mul_(means, kept[0])
    torch._foreach_add_(means, gradients, alpha=1 - group["betas"][0])
    torch._foreach_mul_(squares, kept[1])
    torch._foreach_addcmul_(squares, gradients, gradients, value=1 - group["betas"][1])

    denominators = torch._foreach_div(squares, correction2)
    torch._foreach_sqrt_(denominators)
    torch._foreach_add_(denominators, group["eps"])
    changes = torch._foreach_div(means, correction1)
    torch._foreach_div_(changes, denominators)
    if group["weight_decay"]:
        torch._foreach_add_(changes, parameters, alpha=group["weight_decay"])
    if group["adapt"]:
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


def update_compiled(*tensors: list[Tensor], kept: Kept, numbers: Tensor, group: dict[str, Any]) -> None:
    """The same with each value read once to find the change and once to make it; norms are summed in float64."""
    constants = np.array([*group["betas"], group["eps"], group["weight_decay"]], dtype=np.float64)
    for p, g, m, v in zip(*tensors, strict=True):
        change = torch.empty_like(p)
        values, *rest = (tensor.view(-1).numpy() for tensor in (p, g.contiguous(), m, v, change))
        norms = np.zeros((-(-p.numel() // BLOCK), 2))
        _find_changes(values, *rest, numbers.numpy(), constants, norms)  # type: ignore[call-arg]
        _apply(values, rest[-1], numbers.numpy(), norms, group["adapt"])


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
    that are not finite, a step changes nothing.
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
        means, squares = ([self.state[p][key] for p in parameters] for key in ("m", "v"))
        tensors = [_split(each, group["parts"]) for each in (parameters, gradients, means, squares)]
        numbers = torch.stack([1 - group["betas"][0] ** steps, 1 - group["betas"][1] ** steps, rate * taken])
        plain = all(p.dtype == torch.float32 and p.is_contiguous() for p in parameters)
        compiles = plain and device.type == "cpu" and found_inf is None
        (update_compiled if compiles else update_foreach)(*tensors, kept=(beta1, beta2), numbers=numbers, group=group)


def _split(tensors: list[Tensor], parts: int) -> list[Tensor]:
    """Views of the tensors' parts along the first dimension."""
    return [part for tensor in tensors for part in tensor.chunk(parts)]
