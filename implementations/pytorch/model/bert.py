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
from implementations.pytorch.kernels.fp8_scaling import FP8_KINDS, Fp8Scaling
from implementations.pytorch.kernels.interface import LAYER_NORM_EPS, Kernels
from implementations.pytorch.model.decoder import decode_padded
from implementations.pytorch.model.init_weights import initialize
from implementations.pytorch.model.layer import Gradients, Layer
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
    # Whether the encoder layers are the hand-written functions of fused_layer.py; kernels must be Triton's.
    fused_layers: bool = False
    fp8: bool = False  # whether the products of the encoder layers are fp8 in training; needs fused layers
    loss_scale: float = 1.0  # initial scale of the loss, which the first fp8 scales of gradients allow for
    vocabulary_multiple: int = 1  # the logits' last dimension is rounded up to a multiple of this (decoder.py)


@dataclass(frozen=True)
class Scores:
    """The model's outputs for a batch: masked-LM logits [M, V] and next-sentence logits [S, 2].

    With `ModelOptions.vocabulary_multiple`, masked-LM logits have more columns, which are -inf.
    """

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


class MaskedLMHead(nn.Module):
    """Masked-LM head on the masked tokens: linear, GELU, LayerNorm, then the word embeddings as decoder, and a bias."""

    def __init__(self, size: Size, vocabulary: int, model_options: ModelOptions) -> None:
        super().__init__()
        self.transform = Linear(size.hidden, size.hidden)
        self.norm = nn.LayerNorm(size.hidden, eps=LAYER_NORM_EPS)
        self.bias = nn.Parameter(torch.zeros(vocabulary))
        self.kernels, self.multiple = model_options.kernels, model_options.vocabulary_multiple

    def forward(self, x_MD: Tensor, word_embeddings_VD: Tensor) -> Tensor:
        inner_MD = self.kernels.bias_gelu(self.transform.product(x_MD), self.transform.bias)
        # LayerNorm in float32: in float16 eps 1e-12 is 0, and in half precision the mean and variance lose digits.
        inner_MD = self.norm(inner_MD.float()).to(x_MD.dtype)
        if self.multiple > 1:
            return decode_padded(inner_MD, word_embeddings_VD, self.bias, self.multiple)
        return F.linear(inner_MD, word_embeddings_VD, self.bias)


class BertForPreTraining(nn.Module):
    """BERT encoder with masked-LM and next-sentence heads; `vocabulary` is the vocabulary size V."""

    def __init__(
        self, size: Size, vocabulary: int, *, dropout_probability: float, model_options: ModelOptions = ModelOptions()
    ) -> None:
        super().__init__()
        self.size, self.vocabulary, self.model_options = size, vocabulary, model_options
        self.dropout_probability = dropout_probability
        self.embeddings = Embeddings(size, vocabulary, model_options.kernels)
        self.gradients = Gradients()
        loss_scale = model_options.loss_scale
        self.scaling = Fp8Scaling(FP8_KINDS * size.layers, loss_scale) if model_options.fp8 else None
        self.layers = nn.ModuleList(
            Layer(
                size,
                number,
                attention=model_options.attention,
                kernels=model_options.kernels,
                use_torch_compile=model_options.use_torch_compile,
                gradients=self.gradients,
                scaling=self.scaling,
            )
            for number in range(size.layers)
        )
        for parameter in self.layers.parameters() if model_options.fused_layers else ():
            parameter.overwritten_gradient = True  # type: ignore[attr-defined]  # not zeroed by a fused optimizer
        self.masked_lm = MaskedLMHead(size, vocabulary, model_options)
        self.pooler = nn.Linear(size.hidden, size.hidden)
        self.next_sentence = nn.Linear(size.hidden, 2)
        initialize(self, size)

    def forward(self, batch: RaggedBatch) -> Scores:
        """Return the logits of both heads for a batch on the model's device."""
        probability = self.dropout_probability if self.training else 0.0
        masked, first = batch.masked_positions, batch.sequence_starts[:-1]
        needed = torch.cat([masked, first]) if self.model_options.last_layer == "needed" else None
        encode = self._encode_fused if self.model_options.fused_layers else self._encode
        x_ND = encode(self.embeddings(batch, probability), batch, probability, needed)
        if needed is not None:
            x_MD, first_SD = torch.split(x_ND, [len(masked), len(first)])
        else:
            x_MD, first_SD = x_ND.index_select(0, masked), x_ND.index_select(0, first)
        masked_lm_MV = self.masked_lm(x_MD, self.embeddings.word.weight)
        return Scores(masked_lm_MV, self.next_sentence(torch.tanh(self.pooler(first_SD))))

    def _encode(self, x_TD: Tensor, batch: RaggedBatch, probability: float, needed: Tensor | None) -> Tensor:
        """Return the output of the last layer [T, D], or [N, D] of the token slots `needed`."""
        for layer in self.layers:
            x_TD = layer(x_TD, batch, probability, needed if layer.is_last else None)
        return x_TD

    def _encode_fused(self, x_TD: Tensor, batch: RaggedBatch, probability: float, needed: Tensor | None) -> Tensor:
        """Do as `_encode` with the functions of fused_layer.py."""
        from implementations.pytorch.model.fused_layer import Hidden, encoder_layer  # imports Triton

        hidden = Hidden(x_TD, x_TD)
        for layer in self.layers:
            assert isinstance(layer, Layer)
            hidden = encoder_layer(layer, hidden, batch, probability, needed if layer.is_last else None)
        return hidden.residual
