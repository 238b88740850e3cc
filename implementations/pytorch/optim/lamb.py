"""LAMB by the equations of MLPerf Training's reference.

Source: You et al., "Large batch optimization for deep learning: training BERT in 76 minutes", ICLR 2020, arXiv
1904.00962, algorithm 2, in the reference's variant: moving averages m and v of the gradient and its square with bias
correction, update u = m̂ / (√v̂ + eps) + weight_decay · p, and a step of lr · ‖p‖/‖u‖ · u for every tensor. The trust
ratio ‖p‖/‖u‖ is 1 if either norm is 0, and in parameter groups with `adapt: False` (biases and LayerNorm).
"""

from typing import Any

import numpy as np
import torch
from numba import prange
from torch import Tensor
from torch.optim import Optimizer

from podium.core.jit import compiled_parallel

# Elements a thread processes at a time. Blocks, not threads, define the partial sums of the norms, so that the result
# does not depend on the number of threads.
BLOCK = 1 << 14


Decays = tuple[float | Tensor, float | Tensor]  # factors of m and v: the betas, or 1 in a skipped step (0-d tensors)


def update_foreach(*tensors: list[Tensor], decays: Decays, scalars: Tensor, group: dict[str, Any]) -> None:
    """Update a group's parameters in place with multi-tensor (foreach) operations.

    `tensors` are four lists of equal length: parameters, gradients, first moments m and second moments v. `scalars` are
    the bias corrections of m and v and the learning rate: float64 [3] on the device.
    """
    parameters, gradients, means, squares = tensors
    correction1, correction2, rate = scalars.to(parameters[0].dtype).unbind()
    torch._foreach_mul_(means, decays[0])
    torch._foreach_add_(means, gradients, alpha=1 - group["betas"][0])
    torch._foreach_mul_(squares, decays[1])
    torch._foreach_addcmul_(squares, gradients, gradients, value=1 - group["betas"][1])

    denominators = torch._foreach_div(squares, correction2)
    torch._foreach_sqrt_(denominators)
    torch._foreach_add_(denominators, group["eps"])
    updates = torch._foreach_div(means, correction1)
    torch._foreach_div_(updates, denominators)
    if group["weight_decay"]:
        torch._foreach_add_(updates, parameters, alpha=group["weight_decay"])
    if group["adapt"]:
        torch._foreach_mul_(updates, _trust_ratios(parameters, updates, -rate))
    else:
        torch._foreach_mul_(updates, -rate)
    torch._foreach_add_(parameters, updates)


def _trust_ratios(parameters: list[Tensor], updates: tuple[Tensor, ...], rate: Tensor) -> list[Tensor]:
    """Return rate · ‖p‖ / ‖u‖ for each tensor (0-d each), with a ratio of 1 where either norm is 0."""
    p_norms = torch.stack(torch._foreach_norm(parameters))
    u_norms = torch.stack(torch._foreach_norm(updates))
    # The division is masked on both sides, on the device: the host must not read norms inside a CUDA graph.
    defined = (p_norms > 0) & (u_norms > 0)
    ratios = torch.where(defined, p_norms / torch.where(defined, u_norms, 1.0), 1.0)
    return list((ratios * rate).unbind())


def update_compiled(*tensors: list[Tensor], decays: Decays, scalars: Tensor, group: dict[str, Any]) -> None:
    """`update_foreach` for contiguous float32 on a CPU: two passes over memory, norms summed in float64."""
    constants = np.array([*group["betas"], group["eps"], group["weight_decay"]], dtype=np.float64)
    for p, g, m, v in zip(*tensors, strict=True):
        update = torch.empty_like(p)
        values, *rest = (tensor.view(-1).numpy() for tensor in (p, g.contiguous(), m, v, update))
        norms = np.zeros((-(-p.numel() // BLOCK), 2))
        _compute_updates(values, *rest, scalars.numpy(), constants, norms)  # type: ignore[call-arg]
        _apply_updates(values, rest[-1], scalars.numpy(), norms, group["adapt"])


# First pass: moving averages, update and the squared norms of parameter and update. The trust ratio needs both norms of
# the whole tensor, so the update itself is a second pass.
@compiled_parallel
def _compute_updates(
    p: np.ndarray,
    g: np.ndarray,
    m: np.ndarray,
    v: np.ndarray,
    update: np.ndarray,
    scalars: np.ndarray,
    constants: np.ndarray,
    norms: np.ndarray,
) -> None:
    beta1, beta2 = np.float32(constants[0]), np.float32(constants[1])
    one_minus_beta1, one_minus_beta2 = np.float32(1 - constants[0]), np.float32(1 - constants[1])
    eps, decay = np.float32(constants[2]), np.float32(constants[3])
    correction1, correction2 = np.float32(scalars[0]), np.float32(scalars[1])
    for block in prange(len(norms)):
        p_squares, u_squares = 0.0, 0.0
        for i in range(block * BLOCK, min((block + 1) * BLOCK, len(p))):
            m[i] = beta1 * m[i] + one_minus_beta1 * g[i]
            v[i] = beta2 * v[i] + one_minus_beta2 * g[i] * g[i]
            u = (m[i] / correction1) / (np.sqrt(v[i] / correction2) + eps) + decay * p[i]
            update[i] = u
            # Squares are summed in float64: the word embedding of BERT-large has 31 million elements.
            p_squares += np.float64(p[i]) * np.float64(p[i])
            u_squares += np.float64(u) * np.float64(u)
        norms[block, 0], norms[block, 1] = p_squares, u_squares


@compiled_parallel
def _apply_updates(p: np.ndarray, update: np.ndarray, scalars: np.ndarray, norms: np.ndarray, adapt: bool) -> None:
    p_squares, u_squares = 0.0, 0.0
    for block in range(len(norms)):  # serially, in block order: the same sum with any number of threads
        p_squares += norms[block, 0]
        u_squares += norms[block, 1]
    ratio = np.sqrt(p_squares / u_squares) if adapt and p_squares > 0 and u_squares > 0 else 1.0
    factor = np.float32(scalars[2] * ratio)
    for block in prange(len(norms)):
        for i in range(block * BLOCK, min((block + 1) * BLOCK, len(p))):
            p[i] -= factor * update[i]


class Lamb(Optimizer):
    """LAMB over parameter groups without host synchronisation, so that a step can be captured in a CUDA graph.

    Group keys: lr (a number or a 0-d tensor on the parameters' device), betas, eps, weight_decay, adapt (whether to use
    the trust ratio) and parts (number of tensors along the first dimension that a parameter is split into for the trust
    ratio, for matrices that the reference keeps separate). Uses multi-tensor (foreach) operations, or for float32 on a
    CPU compiled loops that read each value twice instead of ten times. A step leaves parameters and state unchanged
    if `torch.amp.GradScaler` has found non-finite gradients.
    """

    # With this flag torch.amp.GradScaler sets `grad_scale` and `found_inf` (tensors) on the optimizer and always calls
    # `step`, instead of reading the overflow flag on the host to decide whether to call it.
    _step_supports_amp_scaling = True

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
            self._update_group(group)
        self._exchange_parameters()

    def _is_updated_here(self, parameter: Tensor) -> bool:
        """Return whether this process updates the parameter."""
        return True

    def _exchange_parameters(self) -> None:
        """Receive the parameters that other processes have updated."""

    def _update_group(self, group: dict[str, Any]) -> None:
        parameters = [p for p in group["params"] if p.grad is not None]
        if not parameters:
            return
        device = parameters[0].device
        # The step count lives on the device, since a skipped step must not be counted and only the device knows that.
        # float64, since the bias correction 1 - beta**step cancels in the first steps and would lose digits in float32.
        group.setdefault("step", torch.zeros((), dtype=torch.float64, device=device))
        found_inf, grad_scale = getattr(self, "found_inf", None), getattr(self, "grad_scale", None)
        applied = 1.0 if found_inf is None else 1.0 - found_inf
        group["step"] += applied
        parameters = [p for p in parameters if self._is_updated_here(p)]
        if not parameters:
            return
        for p in parameters:
            if not self.state[p]:
                self.state[p]["m"] = torch.zeros_like(p)
                self.state[p]["v"] = torch.zeros_like(p)
        beta1, beta2 = group["betas"]
        # At least 1: if the very first step overflows, the count is 0 and the bias correction would be a division by 0.
        steps, rate = group["step"].clamp(min=1), torch.as_tensor(group["lr"], dtype=torch.float64, device=device)
        gradients = [p.grad for p in parameters]
        if grad_scale is not None:
            torch._foreach_div_(gradients, grad_scale)
        if found_inf is not None:
            # An overflowing step is not skipped by control flow, which would need the host, but made a no-op by values:
            # gradients 0, decays 1 and rate 0. `where` rather than a product, since inf · 0 is NaN.
            gradients = [torch.where(found_inf > 0, 0.0, gradient) for gradient in gradients]
            beta1, beta2 = (torch.where(found_inf > 0, 1.0, beta) for beta in (beta1, beta2))
        means, squares = ([self.state[p][key] for p in parameters] for key in ("m", "v"))
        tensors = [_split(each, group["parts"]) for each in (parameters, gradients, means, squares)]
        scalars = torch.stack([1 - group["betas"][0] ** steps, 1 - group["betas"][1] ** steps, rate * applied])
        is_plain = all(p.dtype == torch.float32 and p.is_contiguous() for p in parameters)
        use_compiled = is_plain and device.type == "cpu" and found_inf is None
        (update_compiled if use_compiled else update_foreach)(
            *tensors, decays=(beta1, beta2), scalars=scalars, group=group
        )


def _split(tensors: list[Tensor], parts: int) -> list[Tensor]:
    """Return views of each tensor's `parts` parts along the first dimension, in order."""
    return [part for tensor in tensors for part in tensor.chunk(parts)]
