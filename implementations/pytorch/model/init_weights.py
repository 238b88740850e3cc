"""Initial weights for training without a checkpoint."""

import math

import torch
from torch import Tensor, nn

from benchmarks.bert.sizes import Size

SHORTEST_WAVE, LONGEST_WAVE = 4.0, 200.0  # of the position embeddings, in tokens: fine enough to tell neighbours apart
POSITION_AMPLITUDE = 2.5  # amplitude of the position embeddings, in standard deviations of the word embeddings
LOCAL_SHARPNESS = 2.0  # standard deviation of the local heads' key weights, in standard deviations of the others


def initialize(model: nn.Module, size: Size) -> None:
    """BERT's start, and for a size with `local_heads` a first layer that looks at neighbouring tokens.

    BERT's: weights normal with the size's standard deviation, cut off at two of them; biases 0, LayerNorm the identity.
    """
    std = size.initial_std
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.trunc_normal_(module.weight, std=std, a=-2 * std, b=2 * std)
        if isinstance(module, nn.Linear):
            nn.init.zeros_(module.bias)
    if size.local_heads:
        _look_at_neighbours(model, size)


@torch.no_grad()
def _look_at_neighbours(model: nn.Module, size: Size) -> None:
    """Sinusoidal position embeddings, and queries that are the keys moved by each head's offset.

    With positions p(i) as sines and cosines of the angles w·i, a rotation R of each pair by w·offset gives R p(i) =
    p(i + offset). So for random key weights G and query weights G R, query i and key j agree best where j = i +
    offset. All of it is trained on.
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
    """A matrix [2n, 2n] that turns (sin a, cos a) of the i-th pair into (sin, cos) of a + angles[i]."""
    sine, cosine = angles.sin(), angles.cos()
    blocks = torch.stack([torch.stack([cosine, sine], -1), torch.stack([-sine, cosine], -1)], -2)
    rotation: Tensor = torch.block_diag(*blocks)  # type: ignore[no-untyped-call]
    return rotation
