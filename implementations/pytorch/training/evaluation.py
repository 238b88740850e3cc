"""Masked-LM accuracy on the evaluation samples, over all ranks, dropout off."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from implementations.pytorch.data.batch import RaggedBatch
from implementations.pytorch.model.bert import BertForPreTraining
from implementations.pytorch.model.loss import correct_predictions, loss_sums
from implementations.pytorch.training.precision import autocast
from implementations.pytorch.training.processes import Processes


@dataclass(frozen=True)
class Accuracy:
    """Micro-averages over all masked tokens, or all sequences, of the evaluation samples."""

    masked_lm: float
    next_sentence: float
    masked_lm_loss: float
    sequences: int


def evaluate(
    model: BertForPreTraining, batches: Iterable[RaggedBatch], processes: Processes, precision: str
) -> Accuracy:
    """Evaluate this rank's batches, add up over ranks and tell every rank. Leaves the model in training mode."""
    model.eval()
    sums = evaluation_sums(model, batches, processes.device, precision)
    model.train()
    return accuracy_of(processes.total(sums.tolist()))


@torch.no_grad()
def evaluation_sums(
    model: BertForPreTraining, batches: Iterable[RaggedBatch], device: torch.device, precision: str
) -> Tensor:
    """What a model in evaluation mode gets right of some batches: float64 [5] on the device, to be added up over ranks.

    Masked tokens right, next sentences right, sum of masked-LM losses, masked tokens, sequences.
    """
    sums = torch.zeros(5, dtype=torch.float64, device=device)
    for batch in batches:
        batch = batch.to(device)
        with autocast(precision, device):
            scores = model(batch)
        masked_lm_right, next_sentence_right = correct_predictions(scores, batch)
        loss = loss_sums(scores, batch, model.making.kernels).masked_lm
        counts = torch.tensor([batch.masked, batch.sequences], dtype=torch.float64).to(device)
        sums += torch.stack([masked_lm_right, next_sentence_right, loss, *counts]).double()
    return sums


def accuracy_of(sums: Sequence[float]) -> Accuracy:
    """From `evaluation_sums` of all ranks together."""
    masked_lm, next_sentence, loss_sum, masked, sequences = sums
    return Accuracy(masked_lm / masked, next_sentence / sequences, loss_sum / masked, int(sequences))
