"""Weight initialisation for training without a checkpoint."""

import math

import torch
from torch import Tensor, nn

from benchmarks.bert.sizes import Size

# Wavelengths of the position embeddings, in tokens. The shortest is short enough to distinguish neighbouring positions.
SHORTEST_WAVE, LONGEST_WAVE = 4.0, 200.0
POSITION_AMPLITUDE = 2.5  # amplitude of the position embeddings, in standard deviations of the word embeddings
LOCAL_SHARPNESS = 2.0  # standard deviation of the local heads' key weights, in standard deviations of the others


def initialize(model: nn.Module, size: Size) -> None:
    """Initialise weights as BERT does; for a size with `local_heads`, let the first layer attend to neighbours.

    BERT's weights are normal with the size's standard deviation, truncated at two standard deviations; biases are 0 and
    LayerNorm is the identity (Devlin et al., arXiv 1810.04805, and its published code).
    """
    std = size.initial_std
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.trunc_normal_(module.weight, std=std, a=-2 * std, b=2 * std)
        if isinstance(module, nn.Linear):
            nn.init.zeros_(module.bias)
    if size.local_heads:
        _init_local_heads(model, size)


@torch.no_grad()
def _init_local_heads(model: nn.Module, size: Size) -> None:
    """Set sinusoidal position embeddings, and query weights that shift the key weights by each head's offset.

    With positions p(i) as sines and cosines of the angles w·i, a rotation R of each pair by w·offset gives R p(i) =
    p(i + offset). So for random key weights G and query weights G R, the score of query i and key j is greatest at j =
    i + offset. All of these weights remain trainable.
    """
    embeddings, first_layer = model.get_submodule("embeddings"), model.get_submodule("layers.0")
    pairs = torch.arange(size.hidden // 2) / (size.hidden // 2)
    frequencies = 2 * math.pi / (SHORTEST_WAVE * (LONGEST_WAVE / SHORTEST_WAVE) ** pairs)
    angles = torch.arange(size.positions)[:, None] * frequencies
    position: Tensor = embeddings.get_parameter("position.weight")
    position[:, 0::2] = angles.sin() * POSITION_AMPLITUDE * size.initial_std
    position[:, 1::2] = angles.cos() * POSITION_AMPLITUDE * size.initial_std

    queries, keys, _ = first_layer.get_parameter("qkv.weight").view(3, size.heads, size.head_size, size.hidden)
    for head, offset in enumerate(size.local_heads):
        keys[head] *= LOCAL_SHARPNESS
        queries[head] = keys[head] @ _rotation(frequencies * offset)


def _rotation(angles: Tensor) -> Tensor:
    """Return the matrix [2n, 2n] that maps (sin a, cos a) of the i-th pair to (sin, cos) of a + angles[i], i < n."""
    sine, cosine = angles.sin(), angles.cos()
    blocks = torch.stack([torch.stack([cosine, sine], -1), torch.stack([-sine, cosine], -1)], -2)
    rotation: Tensor = torch.block_diag(*blocks)  # type: ignore[no-untyped-call]
    return rotation
