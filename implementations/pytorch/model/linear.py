"""The encoder's linear layers, whose bias the kernel that follows may add."""

import torch.nn.functional as F
from torch import Tensor, nn


class Linear(nn.Linear):
    """nn.Linear with its two parts to be had one by one."""

    def product(self, x: Tensor) -> Tensor:
        """x Wᵀ, to which `bias` is still to be added."""
        return F.linear(x, self.weight)
