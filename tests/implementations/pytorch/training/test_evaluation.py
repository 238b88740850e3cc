"""Evaluation: micro-averages over all masked tokens, without dropout, back in training mode afterwards."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from benchmarks.bert.samples import Sample
from implementations.pytorch.data.batch import collate
from implementations.pytorch.model.bert import BertForPreTraining
from implementations.pytorch.training.evaluation import evaluate
from implementations.pytorch.training.processes import Processes


@pytest.mark.parametrize("attention", ["grouped", "padded"])
def test_it_is_the_average_over_tokens_and_not_over_batches(
    attention: str,
    processes: Processes,
    make_samples: Callable[..., list[Sample]],
    make_model: Callable[..., BertForPreTraining],
) -> None:
    samples = make_samples([60, 50, 40, 9, 8, 7, 6, 5, 5])
    model = make_model(attention, dropout_probability=0.5)
    right = next_sentence_right = masked = 0
    loss = 0.0
    model.eval()
    for sample in samples:  # one by one, without padding
        with torch.no_grad():
            scores = model(collate([sample]))
        labels = torch.from_numpy(sample.masked_token_ids.astype("int64")[: len(sample.masked_positions)])
        right += int((scores.masked_lm.argmax(1) == labels).sum())
        next_sentence_right += int(scores.next_sentence.argmax()) == sample.next_sentence_label
        loss += float(F.cross_entropy(scores.masked_lm, labels, reduction="sum"))
        masked += len(labels)
    model.train()
    batches = [collate(part, 60 if attention == "padded" else None, 64) for part in (samples[:2], samples[2:])]
    found = evaluate(model, batches, processes, "fp32")
    assert found.masked_lm == pytest.approx(right / masked)
    assert found.next_sentence == pytest.approx(next_sentence_right / len(samples))
    assert found.masked_lm_loss == pytest.approx(loss / masked, rel=1e-5)
    assert found.sequences == len(samples)
    assert model.training
    assert all(module.training for module in model.modules())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_perfect_model_is_right_everywhere(
    processes: Processes, make_samples: Callable[..., list[Sample]], vocabulary: int
) -> None:
    """Positions that only round the shape up count neither as right nor as wrong."""
    from implementations.pytorch.data.batch import RaggedBatch
    from implementations.pytorch.model.bert import Making, Scores

    class Perfect(torch.nn.Module):
        making = Making()

        def forward(self, batch: RaggedBatch) -> Scores:
            labels = batch.masked_labels.clamp(min=0)
            return Scores(F.one_hot(labels, vocabulary).float(), F.one_hot(batch.next_sentence, 2).float())

    batches = [collate(make_samples([50, 9], seed), None, 64) for seed in range(2)]
    found = evaluate(Perfect(), batches, processes, "fp32")
    assert (found.masked_lm, found.next_sentence, found.sequences) == (1.0, 1.0, 4)
