"""BERT for pre-training on unpadded (ragged) batches: activations are [T, D] from the embeddings to the heads.

Source: Devlin et al., arXiv 1810.04805, with the details of MLPerf Training's reference: post-LayerNorm,
tanh-approximated GELU, LayerNorm eps 1e-12, dropout on embeddings, attention probabilities and sub-layer outputs, and a
masked-LM decoder that shares the word embeddings. Unpadding (Zeng et al., arXiv 2208.08124): sequences are concatenated
without padding, so that all layers but attention work on tokens regardless of their sequence.

Suffixes of shapes: T token slots, S sequences, M masked positions, N = M + S, D hidden width, F feed-forward width,
H heads, K head size, V vocabulary size.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.bert.sizes import Size
from implementations.pytorch.data.batch import RaggedBatch
from implementations.pytorch.kernels.eager import EAGER
from implementations.pytorch.kernels.interface import LAYER_NORM_EPS, Kernels
from implementations.pytorch.model.attention.dispatch import attend
from implementations.pytorch.model.compilation import compile_function
from implementations.pytorch.model.init_weights import initialize
from implementations.pytorch.model.linear import Linear


@dataclass(frozen=True)
class ModelOptions:
    """Options for how the model is computed; results differ only by rounding and by dropout's masks."""

    attention: str = "grouped"  # name of the attention backend
    kernels: Kernels = EAGER
    use_torch_compile: bool = False  # whether torch.compile fuses the element-wise operations of each layer
    # `needed`: after its attention the last layer computes only masked and [CLS] tokens, the only ones that the heads
    # read. `all`: it computes every token.
    last_layer: str = "needed"
    linear: type[Linear] = Linear  # class of the encoder's linear layers


@dataclass(frozen=True)
class Scores:
    """The model's outputs for a batch: masked-LM logits [M, V] and next-sentence logits [S, 2]."""

    masked_lm: Tensor
    next_sentence: Tensor


class Embeddings(nn.Module):
    """LayerNorm and dropout of the sum of word, position and segment embeddings."""

    def __init__(self, size: Size, vocabulary: int, kernels: Kernels) -> None:
        super().__init__()
        self.word = nn.Embedding(vocabulary, size.hidden)
        self.position = nn.Embedding(size.positions, size.hidden)
        self.segment = nn.Embedding(size.segments, size.hidden)
        self.norm = nn.LayerNorm(size.hidden, eps=LAYER_NORM_EPS)
        self.kernels = kernels

    def forward(self, batch: RaggedBatch, probability: float) -> Tensor:
        ids = (batch.token_ids, batch.position_ids, batch.segment_ids)
        tables = (self.word.weight, self.position.weight, self.segment.weight)
        # The kernel is not an autocast operation, so it is given the dtype that autocast would choose for its output.
        device = batch.token_ids.device.type
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else self.word.weight.dtype
        return self.kernels.embedding_norm(ids, tables, self.norm.weight, self.norm.bias, probability, dtype)


class Layer(nn.Module):
    """Encoder layer: self-attention and feed-forward, each followed by dropout, residual and LayerNorm."""

    def __init__(self, size: Size, model_options: ModelOptions) -> None:
        super().__init__()
        self.heads, self.head_size = size.heads, size.head_size
        self.attention, self.kernels = model_options.attention, model_options.kernels
        self.qkv = model_options.linear(size.hidden, 3 * size.hidden)  # one product instead of three
        self.attention_output = model_options.linear(size.hidden, size.hidden)
        self.attention_norm = nn.LayerNorm(size.hidden, eps=LAYER_NORM_EPS)
        self.intermediate = model_options.linear(size.hidden, size.feed_forward)
        self.output = model_options.linear(size.feed_forward, size.hidden)
        self.output_norm = nn.LayerNorm(size.hidden, eps=LAYER_NORM_EPS)
        self.after_attention = (
            compile_function(_after_attention) if model_options.use_torch_compile else _after_attention
        )

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


class MaskedLMHead(nn.Module):
    """Masked-LM head on the masked tokens: linear, GELU, LayerNorm, then the word embeddings as decoder, and a bias."""

    def __init__(self, size: Size, vocabulary: int, kernels: Kernels) -> None:
        super().__init__()
        self.transform = Linear(size.hidden, size.hidden)
        self.norm = nn.LayerNorm(size.hidden, eps=LAYER_NORM_EPS)
        self.bias = nn.Parameter(torch.zeros(vocabulary))
        self.kernels = kernels

    def forward(self, x_MD: Tensor, word_embeddings_VD: Tensor) -> Tensor:
        inner_MD = self.kernels.bias_gelu(self.transform.product(x_MD), self.transform.bias)
        # LayerNorm in float32: in float16 eps 1e-12 is 0, and in half precision the mean and variance lose digits.
        return F.linear(self.norm(inner_MD.float()).to(x_MD.dtype), word_embeddings_VD, self.bias)


class BertForPreTraining(nn.Module):
    """BERT encoder with masked-LM and next-sentence heads; `vocabulary` is the vocabulary size V."""

    def __init__(
        self, size: Size, vocabulary: int, *, dropout_probability: float, model_options: ModelOptions = ModelOptions()
    ) -> None:
        super().__init__()
        self.size, self.vocabulary, self.model_options = size, vocabulary, model_options
        self.dropout_probability = dropout_probability
        self.embeddings = Embeddings(size, vocabulary, model_options.kernels)
        self.layers = nn.ModuleList(Layer(size, model_options) for _ in range(size.layers))
        self.masked_lm = MaskedLMHead(size, vocabulary, model_options.kernels)
        self.pooler = nn.Linear(size.hidden, size.hidden)
        self.next_sentence = nn.Linear(size.hidden, 2)
        initialize(self, size)

    def forward(self, batch: RaggedBatch) -> Scores:
        """Return the logits of both heads for a batch on the model's device."""
        probability = self.dropout_probability if self.training else 0.0
        masked, first = batch.masked_positions, batch.sequence_starts[:-1]
        x_TD = self.embeddings(batch, probability)
        for layer in self.layers[:-1]:
            x_TD = layer(x_TD, batch, probability, None)
        if self.model_options.last_layer == "needed":
            x_ND = self.layers[-1](x_TD, batch, probability, torch.cat([masked, first]))
            x_MD, first_SD = x_ND.split([len(masked), len(first)])
        else:
            x_TD = self.layers[-1](x_TD, batch, probability, None)
            x_MD, first_SD = x_TD.index_select(0, masked), x_TD.index_select(0, first)
        masked_lm_MV = self.masked_lm(x_MD, self.embeddings.word.weight)
        return Scores(masked_lm_MV, self.next_sentence(torch.tanh(self.pooler(first_SD))))
