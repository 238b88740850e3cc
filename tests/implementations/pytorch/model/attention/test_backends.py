"""Attention over ragged batches compared with torch's attention on one sequence at a time, forward and backward."""

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
from implementations.pytorch.kernels.cpu.kernel_set import NUMBA
from implementations.pytorch.kernels.eager import EAGER
from implementations.pytorch.kernels.interface import Kernels
from implementations.pytorch.model.attention import padded as padded_module
from implementations.pytorch.model.attention.check import measure_deviations
from implementations.pytorch.model.attention.dispatch import attend

Maker = Callable[..., list[Sample]]
Error = Callable[[Tensor, Tensor], float]
HEADS, HEAD_SIZE = 3, 8
BACKENDS = {"padded", "grouped"}  # those that support any layout and run on a CPU
UNPADDED = {*BACKENDS, "nested"}


def sequence_by_sequence(qkv: Tensor, batch: RaggedBatch) -> Tensor:
    """The context of the tokens without padding, in their order."""
    contexts = []
    for start, length in zip(batch.sequence_starts.tolist(), batch.lengths, strict=False):
        q, k, v = qkv[start : start + length].permute(1, 2, 0, 3)  # [3, heads, tokens, head size]
        contexts.append(F.scaled_dot_product_attention(q, k, v).transpose(0, 1).flatten(1))
    return torch.cat(contexts)


def tokens_of(batch: RaggedBatch) -> Tensor:
    """Indices of the slots that contain tokens."""
    spans = zip(batch.sequence_starts.tolist(), batch.lengths, strict=False)
    return torch.tensor([slot for start, length in spans for slot in range(start, start + length)])


def attend_plainly(
    qkv: Tensor, batch: RaggedBatch, backend: str, probability: float = 0.0, kernels: Kernels = NUMBA
) -> Tensor:
    return attend(qkv, batch, backend=backend, kernels=kernels, probability=probability)


def assert_is_attention(batch: RaggedBatch, backend: str, error: Error, kernels: Kernels = NUMBA) -> None:
    torch.manual_seed(0)
    qkv = torch.randn(batch.slots, 3, HEADS, HEAD_SIZE, requires_grad=True)
    towards = torch.randn(batch.tokens, HEADS * HEAD_SIZE)
    context = attend_plainly(qkv, batch, backend, kernels=kernels)
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
def test_context_equals_torchs_attention_on_wikipedia_lengths(
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
def test_context_equals_torchs_attention_on_any_lengths(
    backend: str, layout: tuple[int | None, int], lengths: list[int], make_samples: Maker, relative_error: Error
) -> None:
    assert_is_attention(collate(make_samples(lengths), *layout), backend, relative_error)


@pytest.mark.parametrize("backend", sorted(UNPADDED))
def test_sequences_do_not_attend_to_each_other(backend: str, make_samples: Maker) -> None:
    batch = collate(make_samples([40, 33, 7]), None, 64)
    torch.manual_seed(0)
    qkv = torch.randn(batch.slots, 3, HEADS, HEAD_SIZE)
    before = attend_plainly(qkv, batch, backend)
    qkv[40:73] = 1e3  # the second sequence
    qkv[80:] = 1e3  # slots of no sequence
    after = attend_plainly(qkv, batch, backend)
    assert torch.equal(after[:40], before[:40])
    assert torch.equal(after[73:80], before[73:80])


@pytest.mark.parametrize("backend", sorted(BACKENDS))
@pytest.mark.parametrize("lengths", [[64, 64, 64], [64], [1, 64, 30]])
def test_padding_is_not_attended_to(
    backend: str, lengths: list[int], make_samples: Maker, relative_error: Error
) -> None:
    """With any content of the padding; also without padding, and with spare slots."""
    for shape_step in (1, 80):
        batch = collate(make_samples(lengths), 64, shape_step)
        assert_is_attention(batch, backend, relative_error)
        qkv = torch.randn(batch.slots, 3, HEADS, HEAD_SIZE, generator=torch.Generator().manual_seed(0))
        tokens = tokens_of(batch)
        before = attend_plainly(qkv, batch, backend)[tokens]
        padding = torch.ones(batch.slots, dtype=torch.bool)
        padding[tokens] = False
        qkv[padding] = 1e3
        after = attend_plainly(qkv, batch, backend)[tokens]
        assert torch.equal(after, before)


def test_a_padded_batch_is_not_copied(make_samples: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    places = []
    dense = padded_module.dense

    def noted(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> Tensor:
        places.append((k.data_ptr(), v.data_ptr()))
        return dense(q, k, v, *rest)

    monkeypatch.setattr(padded_module, "dense", noted)
    batch = collate(make_samples([5, 64, 30]), 64, 80)
    qkv = torch.randn(batch.slots, 3, HEADS, HEAD_SIZE)
    attend_plainly(qkv, batch, "padded")
    assert places == [tuple(qkv[:, which].data_ptr() for which in (1, 2))]


@pytest.mark.parametrize("kernels", [EAGER, NUMBA])
@pytest.mark.parametrize("backend", sorted(UNPADDED))
def test_dropout_of_attention_weights(backend: str, kernels: Kernels, make_samples: Maker) -> None:
    """If all values are 1, the context is the scaled sum of the kept probabilities: 1 on average."""
    batch = collate(make_samples([128] * 8))
    qkv = torch.randn(batch.slots, 3, HEADS, HEAD_SIZE, generator=torch.Generator().manual_seed(0))
    qkv[:, 0] = 0.0  # every key is as probable as any other
    qkv[:, 2] = 1.0
    torch.manual_seed(1)
    dropped = attend_plainly(qkv, batch, backend, 0.25, kernels)
    again = attend_plainly(qkv, batch, backend, 0.25, kernels)
    kept = dropped.view(-1, HEADS, HEAD_SIZE)
    assert torch.allclose(kept, kept[..., :1].expand_as(kept))  # a probability is dropped for the whole value
    assert abs(float(kept.mean()) - 1) < 0.005
    assert abs(float(kept[..., 0].var()) - (0.25 / 0.75) / 128) < 0.0003  # of 128 independent choices
    assert not torch.equal(dropped, again)
    torch.manual_seed(1)
    assert torch.equal(dropped, attend_plainly(qkv, batch, backend, 0.25, kernels))
    quiet = attend_plainly(qkv, batch, backend, 0.0, kernels)
    torch.testing.assert_close(quiet, torch.ones_like(quiet))


@pytest.mark.parametrize("backend", sorted(UNPADDED))
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kernels", [EAGER, NUMBA])
def test_all_dtypes_and_kernels_match_the_reference(
    backend: str, dtype: torch.dtype, kernels: Kernels, make_samples: Maker, relative_error: Error
) -> None:
    """The reference is padded attention in float64, forward and backward; bfloat16 within 1%. Three groups."""
    batch = collate(make_samples([90, 1, 2, 33, 64, 64, 7]), None, 64, attention_widths=[7, 64, 90])
    assert len(batch.groups) == 3
    start = torch.randn(batch.slots, 3, HEADS, HEAD_SIZE, generator=torch.Generator().manual_seed(0)).to(dtype)
    upstream = torch.randn(batch.slots, HEADS * HEAD_SIZE, generator=torch.Generator().manual_seed(1)).to(dtype)
    upstream[batch.tokens :] = 0
    ends = []
    for qkv, name, other in ((start, backend, kernels), (start.double(), "padded", EAGER)):
        qkv = qkv.requires_grad_()
        context = attend_plainly(qkv, batch, name, kernels=other)
        (gradient,) = torch.autograd.grad(context, qkv, upstream.to(qkv.dtype))
        assert not gradient[batch.tokens :].any()
        assert not context[batch.tokens :].any()
        ends.append((context, gradient))
    tolerance = {torch.float64: 1e-12, torch.float32: 2e-6, torch.bfloat16: 1e-2}[dtype]
    for found, expected in zip(*ends, strict=True):
        assert found.dtype == dtype
        assert relative_error(found, expected) < tolerance


@pytest.mark.parametrize("backend", sorted(UNPADDED))
def test_three_tensors_give_what_one_does(backend: str, make_samples: Maker) -> None:
    batch = collate(make_samples([40, 33, 7]), None, 64)
    qkv = torch.randn(batch.slots, 3, HEADS, HEAD_SIZE, generator=torch.Generator().manual_seed(0))
    leaves = [part.clone().requires_grad_() for part in qkv.unbind(1)]
    q, k, v = leaves
    context = attend((q, k, v), batch, backend=backend, kernels=NUMBA, probability=0.0)
    assert torch.equal(context, attend_plainly(qkv, batch, backend))
    gradients = torch.autograd.grad(context.sum(), leaves)
    (expected,) = torch.autograd.grad(attend_plainly(qkv.requires_grad_(), batch, backend).sum(), qkv)
    assert torch.equal(torch.stack(gradients, 1), expected)


@pytest.mark.parametrize("backend", sorted(BACKENDS))
def test_the_check_of_a_device_passes(backend: str) -> None:
    assert measure_deviations(backend, torch.device("cpu"), torch.bfloat16).describe_failure() is None


def test_an_unknown_backend_is_a_key_error(make_samples: Maker) -> None:
    with pytest.raises(KeyError):
        attend_plainly(torch.zeros(5, 3, 1, 4), collate(make_samples([5])), "none")
