"""The reference's learning-rate schedule: polynomial decay counted from step 0, under a linear warm-up.

The decay does not begin where the warm-up ends but runs from the first step, so the rate jumps at the end of the
warm-up. That is the reference's behaviour, and published hyper-parameters depend on it.
"""

import torch
from torch import Tensor

from podium.config.schema import OptimizerSettings


def learning_rate(settings: OptimizerSettings, step: int) -> float:
    """The rate of a step, counted from 0; a negative `start_warmup_step` begins the warm-up part of the way up."""
    since_start = step - settings.start_warmup_step
    if settings.warmup_steps > 0 and since_start < settings.warmup_steps:
        return settings.learning_rate * since_start / settings.warmup_steps
    remaining = 1.0 - min(step, settings.decay_steps) / settings.decay_steps
    end = settings.end_learning_rate
    return float(end + (settings.learning_rate - end) * remaining**settings.decay_power)


def rate_table(settings: OptimizerSettings, steps: int, device: torch.device) -> Tensor:
    """The rates of the first `steps` steps, float32 [steps] on the device, so that a step can look its own up there."""
    return torch.tensor([learning_rate(settings, step) for step in range(steps)], dtype=torch.float32).to(device)
