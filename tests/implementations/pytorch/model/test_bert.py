"""The model: padding does not change its results, and each sequence is computed as in the paper."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.bert.samples import Sample
from benchmarks.bert.sizes import LARGE, TINY, Size
from implementations.pytorch.data.batch import RaggedBatch, collate
from implementations.pytorch.kernels.cpu.kernel_set import NUMBA
from implementations.pytorch.kernels.eager import EAGER
from implementations.pytorch.kernels.interface import Kernels
from implementations.pytorch.model.bert import BertForPreTraining
from implementations.pytorch.model.loss import loss_sums

Maker = Callable[..., list[Sample]]
Models = Callable[..., BertForPreTraining]
Error = Callable[[Tensor, Tensor], float]
Lengths = Callable[[int, int], np.ndarray]


def loss_and_gradients(model: BertForPreTraining, batch: RaggedBatch) -> tuple[float, dict[str, Tensor]]:
    model.zero_grad()
    loss = loss_sums(model(batch), batch).mean(batch.masked, batch.sequences)
    torch.autograd.backward(loss)
    return float(loss.detach()), {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("seed", [0, 1])
def test_unpadded_equals_padded(
    seed: int, make_samples: Maker, make_model: Models, wikipedia_lengths: Lengths, relative_error: Error
) -> None:
    """Loss and every parameter's gradient, fp32, dropout 0, on lengths of Wikipedia."""
    samples = make_samples(wikipedia_lengths(12, seed), seed)
    assert len({len(sample.token_ids) for sample in samples}) > 4
    loss, gradients = loss_and_gradients(make_model("grouped"), collate(samples, None, 64))
    expected_loss, expected = loss_and_gradients(make_model("padded"), collate(samples, 512, 1))
    assert loss == pytest.approx(expected_loss, rel=1e-5)
    assert gradients.keys() == expected.keys() == dict(make_model().named_parameters()).keys()
    for name in expected:
        assert float(expected[name].norm()) > 0, name
        assert relative_error(gradients[name], expected[name]) < 1e-5, name


def test_loss_does_not_depend_on_backend_and_layout(
    make_samples: Maker, make_model: Models, relative_error: Error
) -> None:
    samples = make_samples([60, 3, 17, 17, 41])
    found = [
        loss_and_gradients(make_model(attention), collate(samples, slot_width, shape_step))
        for attention in ("padded", "grouped")
        for slot_width, shape_step in ((None, 1), (None, 64), (60, 1), (64, 64))
    ]
    for loss, gradients in found[1:]:
        assert loss == pytest.approx(found[0][0], rel=1e-5)
        for name, gradient in gradients.items():
            assert relative_error(gradient, found[0][1][name]) < 1e-5, name


@pytest.mark.parametrize("last_layer", ["needed", "all"])
def test_spare_slots_and_empty_sequences_change_nothing(
    last_layer: str, make_samples: Maker, make_model: Models, relative_error: Error
) -> None:
    """Batches that are rounded up to a common shape contain them."""
    samples, model = make_samples([60, 3, 17, 17, 41]), make_model(last_layer=last_layer)
    loss, gradients = loss_and_gradients(model, collate(samples, None, 64, 40, None, 9))
    expected_loss, expected = loss_and_gradients(model, collate(samples))
    assert loss == pytest.approx(expected_loss, rel=1e-5)
    assert all(relative_error(gradients[name], expected[name]) < 1e-5 for name in expected)


def test_the_order_of_samples_does_not_matter(make_samples: Maker, make_model: Models, relative_error: Error) -> None:
    samples, model = make_samples([30, 5, 5, 80]), make_model()
    loss, gradients = loss_and_gradients(model, collate(samples))
    other_loss, other = loss_and_gradients(model, collate(samples[::-1]))
    assert loss == pytest.approx(other_loss, rel=1e-6)
    assert all(relative_error(other[name], gradients[name]) < 1e-5 for name in gradients)


def norm(x: Tensor, weights: dict[str, Tensor], name: str) -> Tensor:
    deviation = x - x.mean(-1, keepdim=True)
    scaled = deviation / torch.sqrt(deviation.square().mean(-1, keepdim=True) + 1e-12)
    return scaled * weights[f"{name}.weight"] + weights[f"{name}.bias"]


def dense(x: Tensor, weights: dict[str, Tensor], name: str) -> Tensor:
    return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]


def gelu(x: Tensor) -> Tensor:
    """GELU by its tanh approximation, Hendrycks and Gimpel, arXiv 1606.08415."""
    return 0.5 * x * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (x + 0.044715 * x**3)))


def one_layer(x: Tensor, weights: dict[str, Tensor], prefix: str, heads: int) -> Tensor:
    """One post-LayerNorm layer on one sequence [tokens, hidden], head by head."""
    queries, keys, values = dense(x, weights, f"{prefix}.qkv").chunk(3, dim=-1)
    size = x.shape[1] // heads
    contexts = []
    for head in range(heads):
        q, k, v = (part[:, head * size : (head + 1) * size] for part in (queries, keys, values))
        contexts.append(F.softmax(q @ k.T / size**0.5, dim=-1) @ v)
    x = norm(
        x + dense(torch.cat(contexts, dim=1), weights, f"{prefix}.attention_output"),
        weights,
        f"{prefix}.attention_norm",
    )
    inner = gelu(dense(x, weights, f"{prefix}.intermediate"))
    return norm(x + dense(inner, weights, f"{prefix}.output"), weights, f"{prefix}.output_norm")


def one_sequence(sample: Sample, weights: dict[str, Tensor], size: Size) -> tuple[Tensor, Tensor]:
    """Masked-LM logits and next-sentence logits of one sample, in double precision."""
    word_embeddings = weights["embeddings.word.weight"]
    length = len(sample.token_ids)
    segments = [int(i >= sample.first_segment_length) for i in range(length)]
    x = word_embeddings[sample.token_ids.tolist()] + weights["embeddings.position.weight"][:length]
    x = norm(x + weights["embeddings.segment.weight"][segments], weights, "embeddings.norm")
    for layer in range(size.layers):
        x = one_layer(x, weights, f"layers.{layer}", size.heads)
    masked = gelu(dense(x[sample.masked_positions.tolist()], weights, "masked_lm.transform"))
    masked_logits = norm(masked, weights, "masked_lm.norm") @ word_embeddings.T + weights["masked_lm.bias"]
    return masked_logits, dense(torch.tanh(dense(x[:1], weights, "pooler")), weights, "next_sentence")


@pytest.mark.parametrize("attention", ["grouped", "padded"])
def test_model_matches_the_equations_of_bert(
    attention: str,
    make_samples: Maker,
    make_model: Models,
    wikipedia_lengths: Lengths,
    relative_error: Error,
    small: Size,
) -> None:
    samples = sorted(make_samples([*wikipedia_lengths(5, 4), 512]), key=lambda s: -len(s.token_ids))
    model = make_model(attention)
    weights = {name: value.detach().double() for name, value in model.state_dict().items()}
    batch = collate(samples, None, 64)
    scores = model(batch)
    expected = [one_sequence(sample, weights, small) for sample in samples]
    masked = torch.cat([logits for logits, _ in expected])
    next_sentence = torch.cat([logits for _, logits in expected])
    assert relative_error(scores.masked_lm[: batch.masked], masked) < 1e-5
    assert relative_error(scores.next_sentence, next_sentence) < 1e-5
    labels = torch.tensor([int(label) for sample in samples for label in sample.masked_token_ids])
    loss = F.cross_entropy(masked, labels, reduction="sum") / (len(labels) + 1e-5)
    loss += F.cross_entropy(next_sentence, torch.tensor([sample.next_sentence_label for sample in samples]))
    found = loss_sums(scores, batch).mean(batch.masked, batch.sequences)
    assert found.item() == pytest.approx(loss.item(), rel=1e-5)


def test_evaluation_is_deterministic_and_without_dropout(make_samples: Maker, make_model: Models) -> None:
    batch = collate(make_samples([40, 60]))
    model, without = make_model(dropout_probability=0.3), make_model(dropout_probability=0.0)
    model.eval()
    first, second, expected = model(batch), model(batch), without(batch)
    assert torch.equal(first.masked_lm, second.masked_lm)
    assert torch.equal(first.masked_lm, expected.masked_lm)
    assert torch.equal(first.next_sentence, expected.next_sentence)
    model.train()
    assert not torch.equal(model(batch).masked_lm, first.masked_lm)


def test_dropout_is_applied_where_bert_has_it(make_samples: Maker, make_model: Models, small: Size) -> None:
    """On the embeddings, and in each layer on the probabilities and both sub-layers' outputs; not in the heads."""
    seen: list[tuple[str, float]] = []

    def noted(name: str, place: int) -> Any:
        def call(*arguments: Any) -> Tensor:
            seen.append((name, arguments[place]))
            result: Tensor = getattr(EAGER, name)(*arguments)
            return result

        return call

    places = {"embedding_norm": 4, "residual_norm": 5, "attention_weights": 2}
    kernels = replace(EAGER, **{name: noted(name, place) for name, place in places.items()})
    model, batch = make_model(dropout_probability=0.1, kernels=kernels), collate(make_samples([20, 30]))
    groups = len(batch.groups)
    model(batch)
    layer = [("attention_weights", 0.1)] * groups + [("residual_norm", 0.1)] * 2
    assert seen == [("embedding_norm", 0.1)] + layer * small.layers
    seen.clear()
    model.eval()(batch)
    assert {probability for _, probability in seen} == {0.0}


@pytest.mark.parametrize("kernels", [EAGER, NUMBA])
@pytest.mark.parametrize("slot_width", [None, 64])
def test_last_layer_computes_only_the_needed_tokens(
    kernels: Kernels,
    slot_width: int | None,
    make_samples: Maker,
    make_model: Models,
    relative_error: Error,
    small: Size,
) -> None:
    """Loss and gradients equal those of a full last layer, though about a seventh of its tokens is computed."""
    batch = collate(make_samples([60, 3, 17, 17, 41]), slot_width, 64)
    loss, gradients = loss_and_gradients(make_model(kernels=kernels, last_layer="needed"), batch)
    expected_loss, expected = loss_and_gradients(make_model(kernels=kernels, last_layer="all"), batch)
    assert loss == pytest.approx(expected_loss, rel=1e-6)
    for name in expected:
        assert relative_error(gradients[name], expected[name]) < 1e-5, name
    rows: list[int] = []
    model = make_model(kernels=replace(kernels, bias_gelu=lambda x, bias: rows.append(len(x)) or x + bias))
    model(batch)
    masked = batch.masked_positions.numel()
    assert rows == [batch.slots] * (small.layers - 1) + [masked + batch.sequences, masked]


def test_decoder_shares_the_word_embeddings(make_model: Models, vocabulary: int) -> None:
    model = make_model()
    assert sum(parameter.shape[0] == vocabulary for parameter in model.parameters()) == 2  # with the decoder's bias


@pytest.mark.parametrize("size", [TINY, LARGE], ids=lambda size: size.name)
def test_number_of_parameters(size: Size) -> None:
    with torch.device("meta"):
        model = BertForPreTraining(size, 30_522, dropout_probability=0.1)
    assert sum(parameter.numel() for parameter in model.parameters()) == size.parameters(30_522)
    if size is LARGE:
        assert size.parameters(30_522) == 336_226_108
