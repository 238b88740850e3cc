"""Dropout masks of the CPU kernels, computed from the seed."""

import numpy as np
import torch
from torch import Tensor

from implementations.pytorch.kernels.cpu.common import draw_row, draws_per_row
from implementations.pytorch.kernels.interface import dropout_threshold_and_scale
from podium.core.jit import compiled


@compiled
def _numbers(seed: np.ndarray, out: np.ndarray) -> None:
    for row in range(len(out)):
        draw_row(seed[0], row, out[row])


def kept_mask(seed: Tensor, rows: int, columns: int, probability: float) -> Tensor:
    """Return which elements dropout with this seed keeps, bool [rows, columns]."""
    numbers = np.empty((rows, draws_per_row(columns)), dtype=np.uint16)
    _numbers(seed.numpy(), numbers)
    return torch.from_numpy(numbers[:, :columns] >= dropout_threshold_and_scale(probability)[0])
