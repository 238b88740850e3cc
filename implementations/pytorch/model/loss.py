"""Masked-LM and next-sentence losses as sums, which are independent of how a global batch is assigned to ranks."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from implementations.pytorch.data.batch import RaggedBatch
from implementations.pytorch.kernels.eager import EAGER
from implementations.pytorch.kernels.interface import Kernels
from implementations.pytorch.model.bert import Scores

MASKED_LM_EPS = 1e-5  # added to the number of masked tokens, as in MLPerf's reference


@dataclass(frozen=True)
class LossSums:
    """Cross-entropies summed over a batch's masked tokens and over its sequences (0-d float32 tensors)."""

    masked_lm: Tensor
    next_sentence: Tensor

    def mean(self, masked: int, sequences: int) -> Tensor:
        """Return this batch's contribution (0-d) to the mean loss of a batch with the given counts.

        `masked` and `sequences` are the counts of the larger batch, such as the global one; contributions add up.
        """
        return self.masked_lm / (masked + MASKED_LM_EPS) + self.next_sentence / sequences


def loss_sums(scores: Scores, batch: RaggedBatch, kernels: Kernels = EAGER) -> LossSums:
    """Return the loss sums of a batch; labels of IGNORED (padding of the shapes) do not count."""
    return LossSums(
        kernels.cross_entropy(scores.masked_lm, batch.masked_labels),
        F.cross_entropy(scores.next_sentence.float(), batch.next_sentence, reduction="sum"),
    )


def correct_predictions(scores: Scores, batch: RaggedBatch) -> tuple[Tensor, Tensor]:
    """Return the numbers of correctly predicted masked tokens and next-sentence labels (0-d int64 tensors)."""
    # Padded labels are IGNORED, a negative number that argmax never returns, so they never count as correct.
    return (
        torch.sum(scores.masked_lm.argmax(-1) == batch.masked_labels),
        torch.sum(scores.next_sentence.argmax(-1) == batch.next_sentence),
    )
