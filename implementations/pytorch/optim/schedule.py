"""Learning-rate schedule: linear warm-up, then polynomial decay that is computed independently of the warm-up.

In MLPerf's reference the decay is counted from step 0, so the rate drops at the end of the warm-up. In Samsung's
published runs it is counted from a step (`decay_from`) after the end of the warm-up, so the rate jumps above the base
rate there. The published hyper-parameters rely on both conventions.
"""

import torch
from torch import Tensor

from podium.config.schema import OptimizerSettings


def learning_rate(settings: OptimizerSettings, step: int) -> float:
    """Return the learning rate of `step`, counted from 0.

    A negative `start_warmup_step` starts the warm-up above a rate of 0. After the warm-up the rate is
    end + (base − end) · (1 − x)^power, where x grows from 0 at `decay_from` to 1 at `decay_steps`, is negative before
    and stays 1 after. With `decay_from` 0 that is the reference's formula.
    """
    since_start = step - settings.start_warmup_step
    if settings.warmup_steps > 0 and since_start < settings.warmup_steps:
        return settings.learning_rate * since_start / settings.warmup_steps
    first, last = settings.decay_from, settings.decay_steps
    remaining = 1.0 - (min(step, last) - first) / (last - first)
    end = settings.end_learning_rate
    return float(end + (settings.learning_rate - end) * remaining**settings.decay_power)


def rate_table(settings: OptimizerSettings, steps: int, device: torch.device) -> Tensor:
    """Return the rates of the first `steps` steps, float32 [steps] on the device.

    A step indexes the table on the device, so that a captured CUDA graph can change its rate between replays.
    """
    return torch.tensor([learning_rate(settings, step) for step in range(steps)], dtype=torch.float32).to(device)
