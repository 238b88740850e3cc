"""LAMB by the equations of MLPerf Training's reference.

Source: You et al., arXiv 1904.00962, in the reference's variant: moving averages m and v of the gradient and its
square, bias correction, u = m̂ / (√v̂ + eps) + weight_decay · p, and a step of lr · ‖p‖/‖u‖ · u for every tensor,
where the ratio is 1 if either norm is 0. A parameter group with `adapt: False` (biases and LayerNorm) keeps ratio 1.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer


class Lamb(Optimizer):
    """LAMB over parameter groups, each step computed with multi-tensor (foreach) operations.

    Group keys: lr, betas, eps, weight_decay, adapt. Raises ValueError for a value outside its range.
    """

    def __init__(
        self,
        params: Any,
        lr: float,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
        adapt: bool = True,
    ) -> None:
        if lr < 0 or eps <= 0 or weight_decay < 0 or not all(0 <= beta < 1 for beta in betas):
            raise ValueError(f"LAMB cannot use lr {lr}, betas {betas}, eps {eps}, weight decay {weight_decay}")
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "adapt": adapt}
        super().__init__(params, defaults)

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
        gradients: list[Tensor] = [p.grad for p in parameters]
        for p in parameters:
            if not self.state[p]:
                self.state[p]["m"] = torch.zeros_like(p)
                self.state[p]["v"] = torch.zeros_like(p)
        means = [self.state[p]["m"] for p in parameters]
        squares = [self.state[p]["v"] for p in parameters]
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


def _trust_ratios(parameters: list[Tensor], updates: tuple[Tensor, ...]) -> list[Tensor]:
    """‖p‖ / ‖u‖ a tensor, 1 where either norm is 0; no host synchronisation."""
    p_norms = torch.stack(torch._foreach_norm(parameters))
    u_norms = torch.stack(torch._foreach_norm(updates))
    defined = (p_norms > 0) & (u_norms > 0)
    ratios = torch.where(defined, p_norms / torch.where(defined, u_norms, 1.0), 1.0)
    return list(ratios.unbind())
