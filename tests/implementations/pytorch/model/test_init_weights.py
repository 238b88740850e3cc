"""Initial weights."""

import dataclasses
import math

import pytest
import torch

from benchmarks.bert.sizes import LARGE, TINY, Size
from implementations.pytorch.model.bert import BertForPreTraining
from implementations.pytorch.model.init_weights import POSITION_AMPLITUDE

# Standard deviation of a standard normal variable truncated at two.
STD_OF_TRUNCATED = math.sqrt(1 - 4 * math.exp(-2) / math.sqrt(2 * math.pi) / math.erf(math.sqrt(2)))


def model_of(size: Size, vocabulary: int = 200) -> BertForPreTraining:
    torch.manual_seed(0)
    return BertForPreTraining(size, vocabulary, dropout_probability=0.1)


@pytest.mark.parametrize(
    "size", [dataclasses.replace(LARGE, layers=1, hidden=256, heads=4), TINY], ids=["BERT", "tiny"]
)
def test_weights_are_normal_truncated_at_two_deviations(size: Size) -> None:
    model = model_of(size)
    special = {"embeddings.position.weight", "layers.0.qkv.weight"} if size.local_heads else set()
    for name, trained in model.named_parameters():
        parameter = trained.detach()
        if parameter.dim() == 1:
            expected = 1.0 if "norm.weight" in name else 0.0
            assert (parameter == expected).all(), name
        elif name not in special:
            assert float(parameter.abs().max()) <= 2 * size.initial_std, name
            tolerance = 4 * size.initial_std / parameter.numel() ** 0.5
            assert abs(float(parameter.mean())) < tolerance, name
            assert abs(float(parameter.std()) - STD_OF_TRUNCATED * size.initial_std) < tolerance, name


def test_weights_depend_on_the_seed() -> None:
    first, again = model_of(TINY).state_dict(), model_of(TINY).state_dict()
    torch.manual_seed(1)
    other = BertForPreTraining(TINY, 200, dropout_probability=0.1).state_dict()
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["embeddings.word.weight"], other["embeddings.word.weight"])


def test_local_heads_attend_to_neighbours() -> None:
    """For position embeddings only, a query's score is greatest for the key at the head's offset."""
    size = TINY
    model = model_of(size)
    positions = model.embeddings.position.weight.detach()
    weight = model.get_parameter("layers.0.qkv.weight").detach()
    queries, keys, _ = (weight @ positions.T).view(3, size.heads, size.head_size, size.positions)
    for head, offset in enumerate(size.local_heads):
        scores = queries[head].T @ keys[head]
        inside = torch.arange(5, size.positions - 5)
        assert float((scores.argmax(1) == torch.arange(size.positions) + offset)[inside].double().mean()) > 0.95


def test_position_embeddings_are_waves_of_equal_amplitude() -> None:
    positions = model_of(TINY).embeddings.position.weight.detach()
    radii = positions.view(TINY.positions, -1, 2).norm(dim=-1)
    torch.testing.assert_close(radii, torch.full_like(radii, POSITION_AMPLITUDE * TINY.initial_std))
    assert len({tuple(row) for row in positions.tolist()}) == TINY.positions


def test_query_is_the_shifted_key() -> None:
    """G R p(i) = G p(i + offset)."""
    size = TINY
    model = model_of(size)
    positions = model.embeddings.position.weight.detach()
    queries, keys, _ = model.get_parameter("layers.0.qkv.weight").detach().view(3, size.heads, size.head_size, -1)
    for head, offset in enumerate(size.local_heads):
        shifted_key_scores = keys[head] @ positions[max(0, offset) : size.positions + min(0, offset)].T
        query_scores = queries[head] @ positions[max(0, -offset) : size.positions - max(0, offset)].T
        torch.testing.assert_close(query_scores, shifted_key_scores, rtol=1e-3, atol=1e-4)
