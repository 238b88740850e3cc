"""LAMB with the fused CUDA kernels of NVIDIA's apex, where apex is installed.

It wraps apex.optimizers.FusedMixedPrecisionLamb, which unlike FusedLAMB reads learning rate, step and overflow flag on
the device. apex's own gradient clipping is disabled. apex computes a trust ratio per tensor, and only for tensors with
weight decay; matrices that the reference keeps separate are therefore passed as views of the fused matrix.
"""

import importlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from podium.core.errors import UsageError


def fused_lamb() -> Callable[..., Any]:
    """Return apex's FusedMixedPrecisionLamb class. Raises UsageError if apex is not installed."""
    try:
        fused_class: Callable[..., Any] = importlib.import_module("apex.optimizers").FusedMixedPrecisionLamb
    except (ImportError, AttributeError) as error:
        raise UsageError(
            f"optimizer.backend: found apex, but NVIDIA's apex is not installed here ({error}); allowed is podium. "
            "apex comes with NVIDIA's PyTorch container; the apex of PyPI is another project"
        ) from error
    return fused_class


@dataclass(frozen=True)
class _ScalerState:
    """The part of torch.amp.GradScaler's private interface that apex reads: overflow flag and scale (0-d or [1])."""

    found_inf: Tensor
    scale: Tensor

    def _check_inf_per_device(self, optimizer: torch.optim.Optimizer) -> dict[torch.device, Tensor]:
        return {self.found_inf.device: self.found_inf}

    def _get_scale_async(self) -> Tensor:
        return self.scale


class ApexLamb(Optimizer):
    """LAMB with the parameter groups and the state of `Lamb`, so that each can resume the other's checkpoints.

    `adapt` must be True for groups with weight decay and False for the others. Raises ValueError otherwise, and
    UsageError if apex is not installed or was installed without its CUDA extensions.
    """

    _step_supports_amp_scaling = True  # see Lamb

    def __init__(self, params: Any, lr: Tensor, betas: tuple[float, float], eps: float) -> None:
        """`lr` is a 0-d float32 tensor on the parameters' device."""
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": 0.01, "adapt": True, "parts": 1}
        super().__init__(params, defaults)
        for group in self.param_groups:
            if group["adapt"] != (group["weight_decay"] > 0):
                raise ValueError("apex takes trust ratios of tensors with weight decay, and of no others")
        self._parameter_parts = {
            p: _parameter_parts(p, group["parts"]) for group in self.param_groups for p in group["params"]
        }
        groups = [
            {"params": [piece for p in group["params"] for piece in self._parameter_parts[p]]}
            for group in self.param_groups
        ]
        fused = fused_lamb()
        try:
            self._fused = fused(groups, lr=1.0, betas=betas, eps=eps, max_grad_norm=math.inf)
        except RuntimeError as error:
            raise UsageError(
                f"optimizer.backend: found apex, but the installed apex cannot be used ({error}); allowed is podium"
            ) from error

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        found_inf, grad_scale = getattr(self, "found_inf", None), getattr(self, "grad_scale", None)
        for group, fused in zip(self.param_groups, self._fused.param_groups, strict=True):
            device = group["params"][0].device
            steps = group.setdefault("step", torch.zeros((), dtype=torch.float64, device=device))
            fused.update({key: group[key] for key in ("lr", "betas", "eps", "weight_decay")})
            # apex increments `step` itself, and only if there was no overflow. It is given the number of steps taken so
            # far; the float64 count in our state is the one that checkpoints keep.
            fused["step"] = steps.to(torch.int32).view(1)
            steps += 1.0 if found_inf is None else 1.0 - found_inf
            for parameter in group["params"]:
                self._bind_state(parameter)
        scaler = None
        if found_inf is not None:
            scaler = _ScalerState(found_inf, torch.ones_like(found_inf) if grad_scale is None else grad_scale)
        self._fused.step(grad_scaler=scaler)

    def _bind_state(self, parameter: Tensor) -> None:
        """Point apex at views of this parameter's current gradient and moving averages.

        Repeated in every step, since `zero_grad` and `load_state_dict` replace these tensors.
        """
        pieces, gradient, state = self._parameter_parts[parameter], parameter.grad, self.state[parameter]
        if gradient is not None and not state:
            state["m"], state["v"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
        for number, piece in enumerate(pieces):
            if gradient is None:
                piece.grad = None
                continue
            piece.grad, mean, square = (t.chunk(len(pieces))[number] for t in (gradient, state["m"], state["v"]))
            self._fused.state[piece] = {"exp_avg": mean, "exp_avg_sq": square}


def _parameter_parts(parameter: Tensor, parts: int) -> list[Tensor]:
    """Return the parameter, or `parts` parameters along its first dimension that share its memory."""
    return [parameter] if parts == 1 else [nn.Parameter(part) for part in parameter.detach().chunk(parts)]
