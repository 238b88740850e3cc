"""Masked-LM accuracy on the evaluation samples, over all ranks, dropout off."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch

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


@torch.no_grad()
def evaluate(
    model: BertForPreTraining, batches: Iterable[RaggedBatch], processes: Processes, precision: str
) -> Accuracy:
    """Evaluate this rank's batches, add up over ranks and tell every rank. Leaves the model in training mode."""
    model.eval()
    sums = torch.zeros(5, dtype=torch.float64, device=processes.device)
    for batch in batches:
        batch = batch.to(processes.device)
        with autocast(precision, processes.device):
            scores = model(batch)
        masked_lm_right, next_sentence_right = correct_predictions(scores, batch)
        loss = loss_sums(scores, batch, model.making.kernels).masked_lm
        counts = torch.tensor([batch.masked, batch.sequences], dtype=torch.float64).to(processes.device)
        sums += torch.stack([masked_lm_right, next_sentence_right, loss, *counts]).double()
    model.train()
    masked_lm, next_sentence, loss_sum, masked, sequences = processes.total(sums.tolist())
    return Accuracy(masked_lm / masked, next_sentence / sequences, loss_sum / masked, int(sequences))
