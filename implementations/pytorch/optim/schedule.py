"""The reference's learning-rate schedule: polynomial decay counted from step 0, under a linear warm-up.

The decay does not begin where the warm-up ends but runs from the first step, so the rate jumps at the end of the
warm-up. That is the reference's behaviour, and published hyper-parameters depend on it.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Schedule:
    """Learning rate by step, counted from 0.

    `start_warmup_step` may be negative: the warm-up then begins part of the way up. `end` is the rate at and after
    `decay_steps`.
    """

    base: float
    decay_steps: int
    decay_power: float = 1.0
    end: float = 0.0
    warmup_steps: int = 0
    start_warmup_step: int = 0

    def rate(self, step: int) -> float:
        since_start = step - self.start_warmup_step
        if self.warmup_steps > 0 and since_start < self.warmup_steps:
            return self.base * since_start / self.warmup_steps
        remaining = 1.0 - min(step, self.decay_steps) / self.decay_steps
        return float(self.end + (self.base - self.end) * remaining**self.decay_power)


def rate_table(schedule: Schedule, steps: int, device: torch.device) -> Tensor:
    """The rates of the first `steps` steps, float32 [steps] on the device, so that a step can look its own up there."""
    return torch.tensor([schedule.rate(step) for step in range(steps)], dtype=torch.float32).to(device)
