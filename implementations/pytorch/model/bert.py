"""BERT for pre-training on ragged batches: everything is [tokens, hidden], from the embeddings to the heads.

Source: Devlin et al., arXiv 1810.04805, with the details of MLPerf Training's reference: post-LayerNorm, tanh-
approximated GELU, LayerNorm eps 1e-12, dropout on embeddings, attention probabilities and sub-layer outputs, a
masked-LM decoder tied to the word embeddings.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.bert.sizes import Size
from implementations.pytorch.data.batch import RaggedBatch
from implementations.pytorch.model.attention import attend
from implementations.pytorch.model.dropout import dropout
from implementations.pytorch.model.initial import initialize

LAYER_NORM_EPS = 1e-12


@dataclass(frozen=True)
class Scores:
    """What the model says of a batch: masked-LM logits [M, vocabulary], next-sentence logits [S, 2]."""

    masked_lm: Tensor
    next_sentence: Tensor


class Embeddings(nn.Module):
    """Word + position + segment → LayerNorm → dropout."""

    def __init__(self, size: Size, vocabulary: int, dropout_probability: float) -> None:
        super().__init__()
        self.word = nn.Embedding(vocabulary, size.hidden)
        self.position = nn.Embedding(size.positions, size.hidden)
        self.segment = nn.Embedding(size.segments, size.hidden)
        self.norm = nn.LayerNorm(size.hidden, eps=LAYER_NORM_EPS)
        self.dropout_probability = dropout_probability

    def forward(self, batch: RaggedBatch) -> Tensor:
        x_TD = self.word(batch.token_ids) + self.position(batch.position_ids) + self.segment(batch.segment_ids)
        return dropout(self.norm(x_TD), self.dropout_probability, self.training)


class Layer(nn.Module):
    """Self-attention and feed-forward, each followed by dropout, residual and LayerNorm."""

    def __init__(self, size: Size, attention_backend: str, dropout_probability: float) -> None:
        super().__init__()
        self.heads, self.head_size = size.heads, size.head_size
        self.attention_backend = attention_backend
        self.dropout_probability = dropout_probability
        self.qkv = nn.Linear(size.hidden, 3 * size.hidden)
        self.attention_output = nn.Linear(size.hidden, size.hidden)
        self.attention_norm = nn.LayerNorm(size.hidden, eps=LAYER_NORM_EPS)
        self.intermediate = nn.Linear(size.hidden, size.feed_forward)
        self.output = nn.Linear(size.feed_forward, size.hidden)
        self.output_norm = nn.LayerNorm(size.hidden, eps=LAYER_NORM_EPS)

    def forward(self, x_TD: Tensor, batch: RaggedBatch) -> Tensor:
        qkv_T3HK = self.qkv(x_TD).view(-1, 3, self.heads, self.head_size)
        context_TD = attend(
            qkv_T3HK,
            batch,
            backend=self.attention_backend,
            probability=self.dropout_probability,
            training=self.training,
        )
        x_TD = self._residual(x_TD, self.attention_output(context_TD), self.attention_norm)
        inner_TF = F.gelu(self.intermediate(x_TD), approximate="tanh")
        return self._residual(x_TD, self.output(inner_TF), self.output_norm)

    def _residual(self, x_TD: Tensor, update_TD: Tensor, norm: nn.LayerNorm) -> Tensor:
        kept_TD: Tensor = norm(x_TD + dropout(update_TD, self.dropout_probability, self.training))
        return kept_TD


class MaskedLMHead(nn.Module):
    """Dense, GELU, LayerNorm, then the word embeddings as decoder with a bias of its own; on masked tokens only."""

    def __init__(self, size: Size, vocabulary: int) -> None:
        super().__init__()
        self.transform = nn.Linear(size.hidden, size.hidden)
        self.norm = nn.LayerNorm(size.hidden, eps=LAYER_NORM_EPS)
        self.bias = nn.Parameter(torch.zeros(vocabulary))

    def forward(self, x_MD: Tensor, word_embeddings_VD: Tensor) -> Tensor:
        x_MD = self.norm(F.gelu(self.transform(x_MD), approximate="tanh"))
        return F.linear(x_MD, word_embeddings_VD, self.bias)


class BertForPreTraining(nn.Module):
    """The encoder with both heads.

    `vocabulary` counts the words; `attention` names a backend. Weights start as `initial` sets them.
    """

    def __init__(self, size: Size, vocabulary: int, *, attention: str, dropout_probability: float) -> None:
        super().__init__()
        self.size, self.vocabulary = size, vocabulary
        self.embeddings = Embeddings(size, vocabulary, dropout_probability)
        self.layers = nn.ModuleList(Layer(size, attention, dropout_probability) for _ in range(size.layers))
        self.masked_lm = MaskedLMHead(size, vocabulary)
        self.pooler = nn.Linear(size.hidden, size.hidden)
        self.next_sentence = nn.Linear(size.hidden, 2)
        initialize(self, size)

    def forward(self, batch: RaggedBatch) -> Scores:
        x_TD = self.embeddings(batch)
        for layer in self.layers:
            x_TD = layer(x_TD, batch)
        masked_lm_MV = self.masked_lm(x_TD.index_select(0, batch.masked_positions), self.embeddings.word.weight)
        first_SD = x_TD.index_select(0, batch.sequence_starts[:-1])
        return Scores(masked_lm_MV, self.next_sentence(torch.tanh(self.pooler(first_SD))))
