"""The learning-rate schedule: a linear warm-up, then polynomial decay along a line that does not know of the warm-up.

In the reference the decay's line begins at step 0, so the rate falls at the end of the warm-up. In Samsung's published
runs it begins at a later step (`decay_from`) than the one where the warm-up ends, so the rate jumps above the base
there. Published hyper-parameters depend on both.
"""

import torch
from torch import Tensor

from podium.config.schema import OptimizerSettings


def learning_rate(settings: OptimizerSettings, step: int) -> float:
    """The rate of a step, counted from 0; a negative `start_warmup_step` begins the warm-up part of the way up.

    After the warm-up it is end + (base − end) · (1 − x)^power, where x goes from 0 at `decay_from` to 1 at
    `decay_steps`, is below 0 before and stays 1 after. With `decay_from` 0 that is the reference's formula.
    """
    since_start = step - settings.start_warmup_step
    if settings.warmup_steps > 0 and since_start < settings.warmup_steps:
        return settings.learning_rate * since_start / settings.warmup_steps
    first, last = settings.decay_from, settings.decay_steps
    remaining = 1.0 - (min(step, last) - first) / (last - first)
    end = settings.end_learning_rate
    return float(end + (settings.learning_rate - end) * remaining**settings.decay_power)


def rate_table(settings: OptimizerSettings, steps: int, device: torch.device) -> Tensor:
    """The rates of the first `steps` steps, float32 [steps] on the device, so that a step can look its own up there."""
    return torch.tensor([learning_rate(settings, step) for step in range(steps)], dtype=torch.float32).to(device)
