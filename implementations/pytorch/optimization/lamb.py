"""LAMB by the equations of MLPerf Training's reference.

Source: You et al., arXiv 1904.00962, in the reference's variant: moving averages m and v of the gradient and its
square, bias correction, u = m̂ / (√v̂ + eps) + weight_decay · p, and a step of lr · ‖p‖/‖u‖ · u for every tensor,
where the ratio is 1 if either norm is 0. A parameter group with `adapt: False` (biases and LayerNorm) keeps ratio 1.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer


class Lamb(Optimizer):
    """LAMB over parameter groups, each step computed with multi-tensor (foreach) operations.

    Group keys: lr, betas, eps, weight_decay, adapt, and parts: into how many tensors along the first dimension a
    parameter is split for the trust ratio, for matrices that the reference keeps apart. Raises ValueError for a value
    outside its range.
    """

    def __init__(
        self,
        params: Any,
        lr: float,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
        adapt: bool = True,
        parts: int = 1,
    ) -> None:
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "adapt": adapt,
            "parts": parts,
        }
        super().__init__(params, defaults)
        for group in self.param_groups:
            _check(group)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            self._update(group)
        return loss

    def _update(self, group: dict[str, Any]) -> None:
        parameters = [p for p in group["params"] if p.grad is not None]
        if not parameters:
            return
        for p in parameters:
            if not self.state[p]:
                self.state[p]["m"] = torch.zeros_like(p)
                self.state[p]["v"] = torch.zeros_like(p)
        gradients = _split((p.grad for p in parameters), group["parts"])
        means = _split((self.state[p]["m"] for p in parameters), group["parts"])
        squares = _split((self.state[p]["v"] for p in parameters), group["parts"])
        parameters = _split(parameters, group["parts"])
        beta1, beta2 = group["betas"]
        group["step"] = group.get("step", 0) + 1

        torch._foreach_mul_(means, beta1)
        torch._foreach_add_(means, gradients, alpha=1 - beta1)
        torch._foreach_mul_(squares, beta2)
        torch._foreach_addcmul_(squares, gradients, gradients, value=1 - beta2)

        denominators = torch._foreach_div(squares, 1 - beta2 ** group["step"])
        torch._foreach_sqrt_(denominators)
        torch._foreach_add_(denominators, group["eps"])
        updates = torch._foreach_div(means, 1 - beta1 ** group["step"])
        torch._foreach_div_(updates, denominators)
        if group["weight_decay"]:
            torch._foreach_add_(updates, parameters, alpha=group["weight_decay"])
        if group["adapt"]:
            torch._foreach_mul_(updates, _trust_ratios(parameters, updates))
        torch._foreach_add_(parameters, updates, alpha=-group["lr"])


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


def _trust_ratios(parameters: list[Tensor], updates: tuple[Tensor, ...]) -> list[Tensor]:
    """‖p‖ / ‖u‖ a tensor, 1 where either norm is 0; no host synchronisation."""
    p_norms = torch.stack(torch._foreach_norm(parameters))
    u_norms = torch.stack(torch._foreach_norm(updates))
    defined = (p_norms > 0) & (u_norms > 0)
    ratios = torch.where(defined, p_norms / torch.where(defined, u_norms, 1.0), 1.0)
    return list(ratios.unbind())
