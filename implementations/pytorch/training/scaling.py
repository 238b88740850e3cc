"""Dynamic loss scaling for fp16, whose gradients would else vanish; of no effect in other precisions.

A step whose gradients are not all finite changes nothing, halves the scale and counts neither as a step nor as samples.
Whether it did is known on the device alone and told to the host one step late, as all metrics are.
Source: Micikevicius et al., arXiv 1710.03740, by torch.amp.GradScaler, which asks the host nothing when the optimizer
supports that.
"""

from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from podium.config import LossScaling


class LossScaler:
    def __init__(self, settings: LossScaling, device: torch.device, enabled: bool) -> None:
        self.enabled = enabled
        self._scaler = torch.amp.GradScaler(
            device.type, init_scale=settings.initial, growth_interval=settings.growth_interval, enabled=enabled
        )
        self._one = torch.ones((), device=device)

    @property
    def factor(self) -> Tensor | None:
        """What gradients are multiplied by until they are unscaled (0-d, on the device), once a loss was scaled."""
        return self._scaler._get_scale_async() if self.enabled else None

    def scale(self, loss: Tensor) -> Tensor:
        scaled: Tensor = self._scaler.scale(loss)
        return scaled

    def unscale(self, optimizer: Optimizer) -> None:
        """Bring gradients back to their own size, and find out whether all are finite. Before clipping."""
        self._scaler.unscale_(optimizer)

    def step(self, optimizer: Optimizer) -> Tensor:
        """Take the optimizer's step unless a gradient is not finite. 1 where it was taken, else 0 (0-d, float32).

        Gradients are unscaled before: only that finds out which it is.
        """
        if not self.enabled:
            optimizer.step()
            return self._one
        found = self._scaler._found_inf_per_device(optimizer)
        assert found, "gradients are unscaled before the step"
        found_inf = sum(found.values(), start=torch.zeros_like(self._one))
        self._scaler.step(optimizer)
        self._scaler.update()
        return self._one - found_inf

    def tensors(self) -> dict[str, Tensor]:
        """The scale and how long it has been held, where they live; none where losses are not scaled."""
        if not self.enabled:
            return {}
        assert self._scaler._scale is not None and self._scaler._growth_tracker is not None, "a step was taken"
        return {"scale": self._scaler._scale, "growth_tracker": self._scaler._growth_tracker}

    def state_dict(self) -> dict[str, Any]:
        state: dict[str, Any] = self._scaler.state_dict()
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._scaler.load_state_dict(state)
