"""Losses are sums: the parts of a global batch add up to the whole under every assignment to ranks."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.bert.samples import Sample
from implementations.pytorch.data.batch import IGNORED, collate
from implementations.pytorch.model.bert import BertForPreTraining, Scores
from implementations.pytorch.model.loss import correct_predictions, loss_sums
from podium.planning.balancing.interface import AssignmentSpec
from podium.planning.balancing.strategies import STRATEGIES, assign


@pytest.mark.parametrize("strategy", sorted(STRATEGIES))
@pytest.mark.parametrize(("ranks", "accumulation"), [(1, 1), (1, 4), (2, 1), (2, 4), (4, 1), (4, 4)])
def test_losses_of_parts_add_up_to_the_whole(
    strategy: str,
    ranks: int,
    accumulation: int,
    make_samples: Callable[..., list[Sample]],
    make_model: Callable[..., BertForPreTraining],
    wikipedia_lengths: Callable[[int, int], np.ndarray],
    relative_error: Callable[[Tensor, Tensor], float],
) -> None:
    """Loss and gradients, with unequal numbers of masked tokens."""
    samples, model = make_samples(wikipedia_lengths(16, 8) // 4 + 1), make_model()
    whole = collate(samples)
    expected = loss_sums(model(whole), whole).mean(whole.masked, whole.sequences)
    expected_gradients = torch.autograd.grad(expected, [*model.parameters()])

    lengths = np.array([len(sample.token_ids) for sample in samples], dtype=np.uint16)
    parts = []
    assignment = assign(strategy, lengths, AssignmentSpec(ranks, ranks), accumulation)
    for positions in map(assignment.part, range(assignment.parts)):
        batch = collate([samples[i] for i in positions], 192 if STRATEGIES[strategy].pads else None, 64)
        parts.append(loss_sums(model(batch), batch).mean(whole.masked, whole.sequences))
    loss = torch.stack(parts).sum()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    for found, gradient in zip(torch.autograd.grad(loss, [*model.parameters()]), expected_gradients, strict=True):
        assert relative_error(found, gradient) < 1e-5


def test_sums_and_mean_against_the_formula(make_samples: Callable[..., list[Sample]], vocabulary: int) -> None:
    """Σ(w·CE)/(Σw + 1e-5) over masked tokens plus the mean CE over sequences, in double precision."""
    batch = collate(make_samples([50, 20, 9]), None, 64)
    torch.manual_seed(0)
    scores = Scores(torch.randn(batch.masked_labels.numel(), vocabulary), torch.randn(3, 2))
    masked = sum(
        -float(torch.log_softmax(scores.masked_lm[i].double(), 0)[label])
        for i, label in enumerate(batch.masked_labels[: batch.masked].tolist())
    )
    next_sentence = sum(
        -float(torch.log_softmax(scores.next_sentence[i].double(), 0)[label])
        for i, label in enumerate(batch.next_sentence.tolist())
    )
    sums = loss_sums(scores, batch)
    assert float(sums.masked_lm) == pytest.approx(masked, rel=1e-6)
    assert float(sums.next_sentence) == pytest.approx(next_sentence, rel=1e-6)
    assert float(sums.mean(batch.masked, 3)) == pytest.approx(masked / (batch.masked + 1e-5) + next_sentence / 3)
    assert float(sums.mean(1, 7)) == pytest.approx(masked / 1.00001 + next_sentence / 7, rel=1e-6)


def test_half_precision_losses_are_summed_in_float32(make_samples: Callable[..., list[Sample]]) -> None:
    batch = collate(make_samples([512] * 8))
    scores = Scores(torch.zeros(batch.masked, 64, dtype=torch.bfloat16), torch.zeros(8, 2, dtype=torch.bfloat16))
    batch.masked_labels.remainder_(64)
    sums = loss_sums(scores, batch)
    assert sums.masked_lm.dtype == sums.next_sentence.dtype == torch.float32
    assert float(sums.masked_lm) == pytest.approx(batch.masked * np.log(64), rel=1e-5)
    assert float(sums.next_sentence) == pytest.approx(8 * np.log(2), rel=1e-5)


def test_correct_predictions_exclude_ignored_positions(
    make_samples: Callable[..., list[Sample]], vocabulary: int
) -> None:
    batch = collate(make_samples([50, 20, 9]), None, 64)
    assert int((batch.masked_labels == IGNORED).sum()) > 0
    right = F.one_hot(batch.masked_labels.clamp(min=0), vocabulary).float()
    next_sentence = F.one_hot(batch.next_sentence, 2).float()
    assert [int(n) for n in correct_predictions(Scores(right, next_sentence), batch)] == [batch.masked, 3]
    wrong = right.clone()
    wrong[:4] = wrong[:4].roll(1, dims=1)
    assert [int(n) for n in correct_predictions(Scores(wrong, 1 - next_sentence), batch)] == [batch.masked - 4, 0]
