"""Encoder layer of BERT on unpadded [T, D] activations: parameters, and the computation by kernels of any set.

`fused_layer.py` computes the same with hand-written backward passes.

Suffixes of shapes: T token slots, N needed token slots, D hidden width, F feed-forward width, H heads, K head size.
"""

from dataclasses import dataclass

from torch import Tensor, nn

from benchmarks.bert.sizes import Size
from implementations.pytorch.data.batch import RaggedBatch
from implementations.pytorch.kernels.fp8_scaling import Fp8Scaling
from implementations.pytorch.kernels.interface import LAYER_NORM_EPS, Kernels
from implementations.pytorch.model.attention.dispatch import attend
from implementations.pytorch.model.compilation import compile_function
from implementations.pytorch.model.linear import Linear


@dataclass
class Gradients:
    """How backward passes of fused layers write into the gradients of parameters; one for a model."""

    accumulate: bool = True  # add to the gradients; False: replace them, in the first micro-batch of a step


class Layer(nn.Module):
    """Encoder layer: self-attention and feed-forward, each followed by dropout, residual and LayerNorm."""

    def __init__(
        self,
        size: Size,
        number: int,
        *,
        attention: str,
        kernels: Kernels,
        use_torch_compile: bool,
        gradients: Gradients,
        scaling: Fp8Scaling | None,
    ) -> None:
        """`number` counts layers from 0; `gradients` and `scaling` are shared by all layers."""
        super().__init__()
        self.number, self.is_last, self.gradients, self.scaling = number, number == size.layers - 1, gradients, scaling
        self.heads, self.head_size = size.heads, size.head_size
        self.attention, self.kernels = attention, kernels
        self.qkv = Linear(size.hidden, 3 * size.hidden)  # one product instead of three
        self.attention_output = Linear(size.hidden, size.hidden)
        self.attention_norm = nn.LayerNorm(size.hidden, eps=LAYER_NORM_EPS)
        self.intermediate = Linear(size.hidden, size.feed_forward)
        self.output = Linear(size.feed_forward, size.hidden)
        self.output_norm = nn.LayerNorm(size.hidden, eps=LAYER_NORM_EPS)
        self.after_attention = compile_function(_after_attention) if use_torch_compile else _after_attention

    def forward(self, x_TD: Tensor, batch: RaggedBatch, probability: float, needed: Tensor | None) -> Tensor:
        """Return the layer's output [T, D], or [N, D] of the token slots `needed` (int64 [N]) if they are given."""
        qkv_T3HK = self.qkv(x_TD).view(-1, 3, self.heads, self.head_size)
        context_TD = attend(qkv_T3HK, batch, backend=self.attention, kernels=self.kernels, probability=probability)
        if needed is not None:
            x_TD, context_TD = x_TD.index_select(0, needed), context_TD.index_select(0, needed)
        return self.after_attention(self, x_TD, context_TD, probability)


def _after_attention(layer: Layer, x_TD: Tensor, context_TD: Tensor, probability: float) -> Tensor:
    """Compute the layer from the attention context on. It works on each token separately; kernels add the biases.

    A separate function, since it is the part of a layer that torch.compile compiles.
    """
    kernels, first, second = layer.kernels, layer.attention_norm, layer.output_norm
    update_TD = layer.attention_output.product(context_TD)
    x_TD = kernels.residual_norm(x_TD, update_TD, layer.attention_output.bias, first.weight, first.bias, probability)
    inner_TF = kernels.bias_gelu(layer.intermediate.product(x_TD), layer.intermediate.bias)
    update_TD = layer.output.product(inner_TF)
    return kernels.residual_norm(x_TD, update_TD, layer.output.bias, second.weight, second.bias, probability)
