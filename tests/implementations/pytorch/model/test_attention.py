"""Attention over ragged sequences, against one sequence at a time in torch's own attention, forward and backward."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from benchmarks.bert.samples import Sample
from implementations.pytorch.data.batch import RaggedBatch, collate
from implementations.pytorch.model import attention
from implementations.pytorch.model.attention import BACKENDS, attend

Maker = Callable[..., list[Sample]]
Error = Callable[[Tensor, Tensor], float]
HEADS, HEAD_SIZE = 3, 8


def sequence_by_sequence(qkv: Tensor, batch: RaggedBatch) -> Tensor:
    """The context of the tokens that are not padding, in their order."""
    contexts = []
    for start, length in zip(batch.sequence_starts.tolist(), batch.lengths, strict=False):
        q, k, v = qkv[start : start + length].permute(1, 2, 0, 3)  # [3, heads, tokens, head size]
        contexts.append(F.scaled_dot_product_attention(q, k, v).transpose(0, 1).flatten(1))
    return torch.cat(contexts)


def tokens_of(batch: RaggedBatch) -> Tensor:
    """Slots that hold tokens."""
    spans = zip(batch.sequence_starts.tolist(), batch.lengths, strict=False)
    return torch.tensor([slot for start, length in spans for slot in range(start, start + length)])


def assert_is_attention(batch: RaggedBatch, backend: str, error: Error, training: bool = False) -> None:
    torch.manual_seed(0)
    qkv = torch.randn(batch.slots, 3, HEADS, HEAD_SIZE, requires_grad=True)
    towards = torch.randn(batch.tokens, HEADS * HEAD_SIZE)
    context = attend(qkv, batch, backend=backend, probability=0.0, training=training)
    assert context.shape == (batch.slots, HEADS * HEAD_SIZE)
    found = context[tokens_of(batch)]
    (found_gradient,) = torch.autograd.grad((found * towards).sum(), qkv)
    expected = sequence_by_sequence(qkv, batch)
    (expected_gradient,) = torch.autograd.grad((expected * towards).sum(), qkv)
    assert torch.isfinite(context).all()
    assert error(found, expected) < 1e-5
    assert error(found_gradient, expected_gradient) < 1e-5
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found_gradient, expected_gradient, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("backend", sorted(BACKENDS))
@pytest.mark.parametrize("layout", [(None, 1), (None, 64), (512, 64)])
def test_it_is_torchs_attention_on_wikipedia(
    backend: str,
    layout: tuple[int | None, int],
    make_samples: Maker,
    wikipedia_lengths: Callable[[int, int], np.ndarray],
    relative_error: Error,
) -> None:
    batch = collate(make_samples([*wikipedia_lengths(10, 0), 512, 5, 5]), *layout)
    assert_is_attention(batch, backend, relative_error)


@pytest.mark.parametrize("backend", sorted(BACKENDS))
@given(
    lengths=st.lists(st.integers(1, 90), min_size=1, max_size=9),
    layout=st.sampled_from([(None, 1), (None, 64), (90, 1), (96, 64)]),
)
@settings(deadline=None, max_examples=40)
def test_it_is_torchs_attention_on_any_lengths(
    backend: str, layout: tuple[int | None, int], lengths: list[int], make_samples: Maker, relative_error: Error
) -> None:
    assert_is_attention(collate(make_samples(lengths), *layout), backend, relative_error, training=True)


@pytest.mark.parametrize("backend", sorted(BACKENDS))
def test_no_sequence_sees_another(backend: str, make_samples: Maker) -> None:
    batch = collate(make_samples([40, 33, 7]), None, 64)
    torch.manual_seed(0)
    qkv = torch.randn(batch.slots, 3, HEADS, HEAD_SIZE)
    before = attend(qkv, batch, backend=backend, probability=0.0, training=False)
    qkv[40:73] = 1e3  # the second sequence
    qkv[80:] = 1e3  # slots of no sequence
    after = attend(qkv, batch, backend=backend, probability=0.0, training=False)
    assert torch.equal(after[:40], before[:40])
    assert torch.equal(after[73:80], before[73:80])


@pytest.mark.parametrize("backend", sorted(BACKENDS))
@pytest.mark.parametrize("lengths", [[64, 64, 64], [64], [1, 64, 30]])
def test_padding_is_not_seen(backend: str, lengths: list[int], make_samples: Maker, relative_error: Error) -> None:
    """Whatever is in it; also where there is none, or slots of no sequence besides."""
    for shape_step in (1, 80):
        batch = collate(make_samples(lengths), 64, shape_step)
        assert_is_attention(batch, backend, relative_error, training=True)
        qkv = torch.randn(batch.slots, 3, HEADS, HEAD_SIZE, generator=torch.Generator().manual_seed(0))
        tokens = tokens_of(batch)
        before = attend(qkv, batch, backend=backend, probability=0.0, training=False)[tokens]
        padding = torch.ones(batch.slots, dtype=torch.bool)
        padding[tokens] = False
        qkv[padding] = 1e3
        after = attend(qkv, batch, backend=backend, probability=0.0, training=False)[tokens]
        assert torch.equal(after, before)


def test_a_padded_batch_is_not_copied(make_samples: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    places = []
    dense = attention._dense

    def noted(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> Tensor:
        places.append((q.data_ptr(), k.data_ptr(), v.data_ptr()))
        return dense(q, k, v, *rest)

    monkeypatch.setattr(attention, "_dense", noted)
    batch = collate(make_samples([5, 64, 30]), 64, 80)
    qkv = torch.randn(batch.slots, 3, HEADS, HEAD_SIZE)
    attend(qkv, batch, backend="padded", probability=0.0, training=False)
    assert places == [tuple(qkv[:, which].data_ptr() for which in range(3))]


@pytest.mark.parametrize("backend", sorted(BACKENDS))
def test_probabilities_are_dropped_in_training_alone(backend: str, make_samples: Maker) -> None:
    """With values of one, a context is the sum of the probabilities that are kept, scaled: 1 on average."""
    batch = collate(make_samples([128] * 8))
    qkv = torch.randn(batch.slots, 3, HEADS, HEAD_SIZE, generator=torch.Generator().manual_seed(0))
    qkv[:, 0] = 0.0  # every key is as probable as any other
    qkv[:, 2] = 1.0
    torch.manual_seed(1)
    dropped = attend(qkv, batch, backend=backend, probability=0.25, training=True)
    again = attend(qkv, batch, backend=backend, probability=0.25, training=True)
    kept = dropped.view(-1, HEADS, HEAD_SIZE)
    assert torch.allclose(kept, kept[..., :1].expand_as(kept))  # a probability is dropped for the whole value
    assert abs(float(kept.mean()) - 1) < 0.005
    assert abs(float(kept[..., 0].var()) - (0.25 / 0.75) / 128) < 0.0003  # of 128 independent choices
    assert not torch.equal(dropped, again)
    torch.manual_seed(1)
    assert torch.equal(dropped, attend(qkv, batch, backend=backend, probability=0.25, training=True))
    quiet = attend(qkv, batch, backend=backend, probability=0.25, training=False)
    torch.testing.assert_close(quiet, torch.ones_like(quiet))


def test_an_unknown_backend_is_a_key_error(make_samples: Maker) -> None:
    with pytest.raises(KeyError):
        attend(torch.zeros(5, 3, 1, 4), collate(make_samples([5])), backend="none", probability=0.0, training=False)
