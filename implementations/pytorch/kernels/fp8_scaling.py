"""Scales of fp8 matrices by delayed scaling: from the largest magnitudes of the last steps.

A kernel that writes a matrix in fp8 multiplies it by a scale that is known before, and records the largest magnitude
that it saw. So casting needs no pass over memory to find that magnitude first. At the start of each step the scales
are set so that the largest magnitude of the last `HISTORY` steps becomes `1 / MARGIN` of the format's largest number;
greater values saturate.
Source: Micikevicius et al., "FP8 formats for deep learning", arXiv 2209.05433, and the delayed scaling of NVIDIA's
Transformer Engine.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

HISTORY = 16  # steps
MARGIN = 2.0  # for values that grow from one step to the next
FORWARD_DTYPE, GRADIENT_DTYPE = torch.float8_e4m3fn, torch.float8_e5m2  # gradients need the range of five exponent bits
# Scales of the first step, until magnitudes are known: of activations (LayerNorm's outputs are below 50), of weights
# (initialised below 0.2), and of gradients (of a mean loss: below 1, and mostly above 1e-7).
FIRST_SCALES = {"activation": 8.0, "weight": 256.0, "gradient": 2.0**14}

# The fp8 matrices of an encoder layer and their kinds, in the order of their slots: inputs of products, weights, and
# gradients of products' outputs.
FP8_MATRICES = {
    "input": "activation",
    "context": "activation",
    "middle": "activation",
    "inner": "activation",
    "qkv.weight": "weight",
    "attention_output.weight": "weight",
    "intermediate.weight": "weight",
    "output.weight": "weight",
    "qkv": "gradient",
    "attention_output": "gradient",
    "intermediate": "gradient",
    "output": "gradient",
}
FP8_KINDS = list(FP8_MATRICES.values())


@dataclass(frozen=True)
class Fp8Slot:
    """Scale and largest magnitude of one matrix: views of the tensors of an `Fp8Scaling`, [1] each, on the device."""

    dtype: torch.dtype
    scale: Tensor  # float32: fp8 value = value · scale
    inverse: Tensor  # float32, 1 / scale
    amax: Tensor  # int32: bits of the largest magnitude of this step, as float32

    @property
    def limit(self) -> float:
        """Largest finite number of the format."""
        return float(torch.finfo(self.dtype).max)


class Fp8Scaling(nn.Module):
    """Scales of all fp8 matrices of a model.

    A module, so that its tensors move and are copied with the model. They are not in its state dict, which holds the
    model's weights; a run's checkpoints hold them separately.
    """

    history: Tensor  # [HISTORY, matrices] float32, largest magnitudes of the last steps, the latest first
    scale: Tensor  # [matrices] float32
    inverse: Tensor  # [matrices] float32
    amax: Tensor  # [matrices] int32, bits of float32
    limits: Tensor  # [matrices] float32

    def __init__(self, kinds: list[str], gradient_scale: float = 1.0) -> None:
        """`kinds`: `activation`, `weight` or `gradient` for each matrix. `gradient_scale`: factor of the loss."""
        super().__init__()
        self.kinds = tuple(kinds)
        first = [FIRST_SCALES[kind] / (gradient_scale if kind == "gradient" else 1.0) for kind in kinds]
        tensors = {
            "history": torch.zeros(HISTORY, len(kinds)),
            "scale": torch.tensor(first),
            "inverse": 1 / torch.tensor(first),
            "amax": torch.zeros(len(kinds), dtype=torch.int32),
            "limits": torch.tensor([torch.finfo(_dtype(kind)).max for kind in kinds]),
        }
        for name, tensor in tensors.items():
            self.register_buffer(name, tensor, persistent=False)

    def slot(self, number: int) -> Fp8Slot:
        """Return the slot of a matrix. Its tensors are those of this moment: ask again after a move to a device."""
        at = slice(number, number + 1)
        return Fp8Slot(_dtype(self.kinds[number]), self.scale[at], self.inverse[at], self.amax[at])

    @torch.no_grad()
    def update(self) -> None:
        """Set the scales for the next step from the magnitudes recorded so far. Does not wait for the device."""
        latest = self.amax.view(torch.float32)
        latest = torch.where(torch.isfinite(latest), latest, self.history[0])  # a step that overflowed counts as none
        self.history.copy_(torch.cat([latest[None], self.history[:-1]]))
        largest = self.history.amax(0)
        scale = self.limits / (MARGIN * largest)
        # A matrix of zeros or of tiny values keeps its scale, which must be a finite number.
        known = (largest > 0) & torch.isfinite(scale)
        self.scale.copy_(torch.where(known, scale, self.scale))
        self.inverse.copy_(1 / self.scale)
        self.amax.zero_()

    @torch.no_grad()
    def change_loss_scale(self, ratio: float) -> None:
        """Allow for a loss that is multiplied by `ratio` more than the magnitudes recorded so far."""
        factors = torch.tensor([ratio if kind == "gradient" else 1.0 for kind in self.kinds], device=self.scale.device)
        self.history.mul_(factors)
        self.scale.div_(factors)
        self.inverse.copy_(1 / self.scale)
        self.amax.copy_((self.amax.view(torch.float32) * factors).view(torch.int32))

    def tensors(self) -> dict[str, Tensor]:
        """Return the live tensors that a checkpoint must hold."""
        return {"history": self.history, "scale": self.scale, "inverse": self.inverse, "amax": self.amax}


def _dtype(kind: str) -> torch.dtype:
    return GRADIENT_DTYPE if kind == "gradient" else FORWARD_DTYPE
