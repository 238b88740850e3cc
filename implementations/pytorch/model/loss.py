"""Masked-LM and next-sentence losses as sums, which do not depend on how a global batch was assigned to ranks."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from implementations.pytorch.data.batch import RaggedBatch
from implementations.pytorch.kernels.eager import EAGER
from implementations.pytorch.kernels.interface import Kernels
from implementations.pytorch.model.bert import Scores

MASKED_LM_EPS = 1e-5  # added to the number of masked tokens, as the reference does


@dataclass(frozen=True)
class LossSums:
    """Sums of cross-entropies over a batch's masked tokens and sequences (0-d float32 tensors)."""

    masked_lm: Tensor
    next_sentence: Tensor

    def mean(self, masked: int, sequences: int) -> Tensor:
        """The pre-training loss as this batch's part of a larger one of `masked` tokens and `sequences` sequences."""
        return self.masked_lm / (masked + MASKED_LM_EPS) + self.next_sentence / sequences


def loss_sums(scores: Scores, batch: RaggedBatch, kernels: Kernels = EAGER) -> LossSums:
    return LossSums(
        kernels.cross_entropy(scores.masked_lm, batch.masked_labels),
        F.cross_entropy(scores.next_sentence.float(), batch.next_sentence, reduction="sum"),
    )


def correct_predictions(scores: Scores, batch: RaggedBatch) -> tuple[Tensor, Tensor]:
    """How many masked tokens and next-sentence labels are predicted right (0-d int64 tensors)."""
    return (
        torch.sum(scores.masked_lm.argmax(-1) == batch.masked_labels),
        torch.sum(scores.next_sentence.argmax(-1) == batch.next_sentence),
    )
