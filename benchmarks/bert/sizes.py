"""The sizes of BERT: their tensors, parameters, and floating-point operations of training."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np

VOCABULARY_SIZE = 30_522  # tokens of MLPerf's vocab.txt
SEQUENCE_LENGTH = 512  # tokens of MLPerf's longest samples
MASKED_POSITIONS = 76  # largest number of masked tokens in MLPerf's samples
MASKED_SHARE = 0.15  # of a sample's tokens


@dataclass(frozen=True)
class Size:
    """Dimensions of a BERT (post-LayerNorm encoder, tanh-approximated GELU, LayerNorm eps 1e-12) and its evaluation.

    `evaluation_interval` is in training samples; None: MLPerf's formula gives it from the batch size.
    """

    name: str
    layers: int
    hidden: int
    heads: int
    feed_forward: int
    evaluation_samples: int
    evaluation_interval: int | None
    positions: int = SEQUENCE_LENGTH
    segments: int = 2
    vocabulary_size: int = VOCABULARY_SIZE  # of its usual training text
    initial_std: float = 0.02
    # For each head of the first layer, the relative position in tokens that it attends to at initialization; () for
    # BERT's random initialization.
    local_heads: tuple[int, ...] = ()

    @property
    def head_size(self) -> int:
        return self.hidden // self.heads

    def parameters(self, vocabulary_size: int) -> int:
        """Number of trainable parameters: the tied decoder counts once, its bias is included."""
        return sum(int(np.prod(shape)) for shape in self.tensors(vocabulary_size).values())

    def tensors(self, vocabulary_size: int) -> dict[str, tuple[int, ...]]:
        """Shape of every tensor by its name in the reference's TensorFlow checkpoint."""
        h, f = self.hidden, self.feed_forward
        shapes: dict[str, tuple[int, ...]] = {
            "bert/embeddings/word_embeddings": (vocabulary_size, h),
            "bert/embeddings/position_embeddings": (self.positions, h),
            "bert/embeddings/token_type_embeddings": (self.segments, h),
        }
        shapes |= _layer_norm("bert/embeddings", h)
        for layer in range(self.layers):
            prefix = f"bert/encoder/layer_{layer}"
            for part in ("query", "key", "value"):
                shapes |= _dense(f"{prefix}/attention/self/{part}", h, h)
            shapes |= _dense(f"{prefix}/attention/output/dense", h, h)
            shapes |= _layer_norm(f"{prefix}/attention/output", h)
            shapes |= _dense(f"{prefix}/intermediate/dense", h, f)
            shapes |= _dense(f"{prefix}/output/dense", f, h)
            shapes |= _layer_norm(f"{prefix}/output", h)
        shapes |= _dense("bert/pooler/dense", h, h)
        shapes["cls/predictions/output_bias"] = (vocabulary_size,)
        shapes |= _dense("cls/predictions/transform/dense", h, h)
        shapes |= _layer_norm("cls/predictions/transform", h)
        shapes["cls/seq_relationship/output_weights"] = (2, h)
        shapes["cls/seq_relationship/output_bias"] = (2,)
        return shapes

    def training_flops(
        self, lengths: Iterable[int], masked: int, vocabulary_size: int, last_layer: Literal["all", "needed"] = "all"
    ) -> float:
        """Floating-point operations of forward and backward on sequences of these lengths (model FLOPs).

        Only matrix products count, a multiply-add as two operations and backward as twice forward: the encoder on
        every token, attention on every pair of tokens within a sequence, the masked-LM head on `masked` tokens, pooler
        and next-sentence head on sequences. Padding, recomputation and element-wise operations do not count. With
        `last_layer` "needed" the part of the last layer after its attention counts only on masked and [CLS] tokens,
        the only ones that the heads read; published figures count "all".
        """
        n = np.asarray(lengths if isinstance(lengths, np.ndarray) else [*lengths], dtype=np.float64)
        return self.flops_from_totals(len(n), n.sum(), float(n @ n), masked, vocabulary_size, last_layer)

    def flops_from_totals(
        self,
        sequences: int,
        tokens: float,
        token_pairs: float,
        masked: int,
        vocabulary_size: int,
        last_layer: Literal["all", "needed"] = "all",
    ) -> float:
        """`training_flops` from totals over the sequences: their number, tokens, and pairs of tokens."""
        h = self.hidden
        encoder = 2 * self.layers * (4 * h * h + 2 * h * self.feed_forward) * float(tokens)
        if last_layer == "needed":
            encoder -= 2 * (h * h + 2 * h * self.feed_forward) * (tokens - masked - sequences)
        attention = 4 * self.layers * h * float(token_pairs)
        masked_head = 2 * (h * h + h * vocabulary_size) * masked
        sequence_head = 2 * (h * h + 2 * h) * sequences
        return 3.0 * float(encoder + attention + masked_head + sequence_head)

    def relative_costs(self, vocabulary_size: int) -> tuple[float, float]:
        """Cost of a pair of tokens within a sequence, and cost of a sequence, both relative to the cost of a token.

        By `training_flops` with 15% masked tokens.
        """
        # The operations are linear in tokens, pairs and sequences, so three lengths determine the coefficients.
        token, pair, sequence = np.linalg.solve(
            [[n, n * n, 1] for n in (100, 200, 400)],
            [self.training_flops([n], round(MASKED_SHARE * n), vocabulary_size) for n in (100, 200, 400)],
        )
        return float(pair / token), float(sequence / token)


def _dense(name: str, inputs: int, outputs: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}/kernel": (inputs, outputs), f"{name}/bias": (outputs,)}


def _layer_norm(name: str, width: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}/LayerNorm/gamma": (width,), f"{name}/LayerNorm/beta": (width,)}


# MLPerf's BERT-large, trained from the phase-1 checkpoint.
LARGE = Size(
    "large", layers=24, hidden=1024, heads=16, feed_forward=4096, evaluation_samples=10_000, evaluation_interval=None
)

# A BERT that two CPU cores train in a minute, on the invented language. As BERT-large starts from a checkpoint of
# phase 1, this one starts from weights whose first layer already attends to the neighbouring tokens: in the runs tried,
# learning that took most of the time from a random initialization. The standard deviation is 0.02 scaled to the smaller
# width, as 0.02 · √(1024 / 128), rounded to 0.06.
TINY = Size(
    "tiny",
    layers=2,
    hidden=128,
    heads=2,
    feed_forward=512,
    evaluation_samples=1_000,
    evaluation_interval=2_048,
    vocabulary_size=512,
    initial_std=0.06,
    local_heads=(-1, 1),
)

SIZES: dict[str, Size] = {size.name: size for size in (LARGE, TINY)}
