"""Each attention backend of the device compared with the plain one in float64, and its dropout."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from benchmarks.bert.samples import Sample
from implementations.pytorch.build_run import resolve_attention
from implementations.pytorch.data.batch import RaggedBatch, collate
from implementations.pytorch.kernels.eager import EAGER
from implementations.pytorch.model.attention.dispatch import BACKENDS, attend
from podium.config.load import load_system
from podium.config.schema import RunConfig
from podium.core.errors import UsageError
from tests.implementations.pytorch.gpu.conftest import Target

pytestmark = pytest.mark.gpu
ALL = pytest.mark.parametrize("backend", sorted(BACKENDS))
TOLERANCE = {torch.float32: 1e-5, torch.float16: 3e-3, torch.bfloat16: 2e-2}
TYPES = pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
Samples = Callable[..., list[Sample]]
Record = Callable[[str, object], None]


def require(backend: str, target: Target, dtype: torch.dtype) -> None:
    try:
        resolve_attention(backend, target.device, dtype)
    except UsageError as error:
        pytest.skip(str(error))


def takes_absent_sequences(backend: str) -> bool:
    """Whether a run may give this backend sequences without tokens, which only round up their number."""
    config = load_system("h200_1x").model_copy(update={"attention": backend, "capacity_overflow": 0.01})
    try:
        RunConfig.model_validate(config.model_dump(by_alias=True))
    except ValueError:
        return False
    return True


def collated(samples: list[Sample], target: Target, backend: str | None) -> RaggedBatch:
    """The samples with spare slots after the last one, and for a backend of a run also with absent sequences."""
    absent = backend is not None and takes_absent_sequences(backend)
    step = 512 if target.is_gpu else 64
    batch = collate(samples, None, step, sequence_slots=len(samples) + 3 if absent else None)
    assert batch.spare_slots
    return batch.to(target.device)


def lengths(target: Target, draw: Callable[[int, int], np.ndarray]) -> list[int]:
    return [*draw(target.sequences - 4, 0).tolist(), 512, 511, 2, 1] if target.is_gpu else [30, 17, 2, 1]


def call(backend: str, qkv: Tensor, batch: RaggedBatch, probability: float, seed: int = 0) -> Tensor:
    torch.manual_seed(seed)
    return attend(qkv, batch, backend=backend, kernels=EAGER, probability=probability)


@TYPES
@ALL
def test_a_backend_matches_the_plain_one(
    backend: str,
    dtype: torch.dtype,
    target: Target,
    make_samples: Samples,
    wikipedia_lengths: Callable[[int, int], np.ndarray],
    relative_error: Callable[[Tensor, Tensor], float],
    record_property: Record,
) -> None:
    """With spare slots and sequences without tokens, whatever they contain; forward and backward."""
    require(backend, target, dtype)
    samples = make_samples(lengths(target, wikipedia_lengths))
    batch, plain = collated(samples, target, backend), collated(samples, target, None)
    size, used = target.size, batch.tokens
    qkv = target.normal(batch.slots, 3, size.heads, size.head_size).to(dtype)
    qkv[used:] = 100.0
    upstream = target.normal(batch.slots, size.hidden, seed=1).to(dtype)
    upstream[used:] = 0
    found, expected = (
        (context.detach(), torch.autograd.grad(context, leaf, upstream.to(leaf.dtype))[0])
        for leaf, name, where in (
            (qkv.clone().requires_grad_(), backend, batch),
            (qkv.double().requires_grad_(), "padded", plain),
        )
        for context in [call(name, leaf, where, 0.0)]
    )
    errors = []
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == dtype
        assert one.isfinite().all()
        errors.append(relative_error(one[:used], other[:used]))
    record_property("errors", errors)
    assert max(errors) < TOLERANCE[dtype]
    assert not found[1][used:].any(), "a slot of no sequence got a gradient"
    first = batch.lengths[0]  # the last sequence alone: it must not depend on any other
    changed = qkv.clone()
    changed[:first] = 1.0
    assert torch.equal(call(backend, changed, batch, 0.0)[first:used], found[0][first:used])


@TYPES
@ALL
def test_dropout_drops_the_same_in_both_directions(
    backend: str, dtype: torch.dtype, target: Target, make_samples: Samples, record_property: Record
) -> None:
    """With unit vectors as values the context is the dropped weights, so that the mask can be read off.

    It depends on the generator alone, so another call with the same seed has the same mask; its context and all three
    gradients must be those of the plain formula with that mask.
    """
    require(backend, target, dtype)
    size, p = target.size, 0.25
    width = size.head_size  # a sequence of at most this length has a unit vector for every token
    counts = [width, width, width - 3, max(1, width // 2), 2, 1]
    batch = collated(make_samples(counts), target, backend)
    used, starts = batch.tokens, batch.sequence_starts.tolist()
    qkv = target.normal(batch.slots, 3, size.heads, width, scale=0.5).to(dtype)
    probe = qkv.clone()
    for start, length in zip(starts, batch.lengths, strict=False):
        units = torch.eye(width, dtype=dtype, device=target.device)[:length]
        probe[start : start + length, 2] = units[:, None]
    weights = call(backend, probe, batch, p).view(-1, size.heads, width)

    leaf = qkv.clone().requires_grad_()
    upstream = target.normal(batch.slots, size.hidden, seed=1).to(dtype)
    upstream[used:] = 0
    context = call(backend, leaf, batch, p)
    (gradient,) = torch.autograd.grad(context, leaf, upstream)

    exact = qkv.double().requires_grad_()
    expected = torch.zeros(batch.slots, size.heads, width, dtype=torch.float64, device=target.device)
    dropped, entries, masks = 0, 0, []
    for start, length in zip(starts, batch.lengths, strict=False):
        rows = slice(start, start + length)
        q, k, v = exact[rows].permute(1, 2, 0, 3)  # [H, tokens, K] each
        keep = (weights[rows, :, :length] != 0).transpose(0, 1)
        shares = torch.softmax(q @ k.mT / width**0.5, -1) * keep / (1 - p)
        expected[rows] = (shares @ v).transpose(0, 1)
        dropped, entries = dropped + int((~keep).sum()), entries + keep.numel()
        masks += [keep[head] for head in range(size.heads)] if length == width else []
    (exact_gradient,) = torch.autograd.grad(expected.flatten(1), exact, upstream.double())
    errors = {}
    for name, one, other in (
        ("context", context.detach(), expected.detach().flatten(1)),
        *((f"d{'qkv'[part]}", gradient[:, part], exact_gradient[:, part]) for part in range(3)),
    ):
        errors[name] = float((one[:used].double() - other[:used]).norm() / other[:used].norm())
    record_property("errors", errors)
    assert max(errors.values()) < TOLERANCE[dtype], errors
    assert abs(dropped / entries - p) < 5 * (p * (1 - p) / entries) ** 0.5 + 1 / 256  # flash attention rounds to 1/256
    assert all(not torch.equal(one, masks[0]) for one in masks[1:]), "two heads or sequences have the same mask"
    assert not torch.equal(call(backend, qkv, batch, p, seed=1)[:used], context[:used])


@TYPES
@ALL
def test_dropout_of_long_sequences_is_adjoint(
    backend: str,
    dtype: torch.dtype,
    target: Target,
    make_samples: Samples,
    wikipedia_lengths: Callable[[int, int], np.ndarray],
    record_property: Record,
) -> None:
    """The context is y = M v, linear in the values, so that the gradient Mᵀ y has ⟨Mᵀ y, v⟩ = ⟨y, y⟩: per sequence.

    With another mask in backward the two would differ by about the dropout probability.
    """
    require(backend, target, dtype)
    batch = collated(make_samples(lengths(target, wikipedia_lengths)), target, backend)
    size = target.size
    qkv = target.normal(batch.slots, 3, size.heads, size.head_size).to(dtype)
    qkv[:, :2] *= 0.1  # nearly equal weights, so that every sequence has many that count
    leaf = qkv.requires_grad_()
    context = call(backend, leaf, batch, 0.5)
    used = torch.arange(batch.slots, device=target.device)[:, None] < batch.tokens
    (gradient,) = torch.autograd.grad(context, leaf, context.detach() * used)
    norms = context.detach().double().square().sum(1)
    products = (gradient[:, 2].double() * leaf.detach()[:, 2].double()).flatten(1).sum(1)
    worst = 0.0
    for start, length in zip(batch.sequence_starts.tolist(), batch.lengths, strict=False):
        expected, found = (float(x[start : start + length].sum()) for x in (norms, products))
        worst = max(worst, abs(found - expected) / expected if expected else abs(found))
    record_property("error", worst)
    assert worst < {torch.float32: 1e-3, torch.float16: 0.02, torch.bfloat16: 0.05}[dtype]


@TYPES
@ALL
def test_an_evaluation_drops_nothing(
    backend: str, dtype: torch.dtype, target: Target, make_samples: Samples, relative_error: Any
) -> None:
    require(backend, target, dtype)
    batch = collated(make_samples([20, 9, 1]), target, backend)
    qkv = target.normal(batch.slots, 3, target.size.heads, target.size.head_size).to(dtype)
    with torch.no_grad():
        without = call(backend, qkv, batch, 0.0)
    with_gradient = call(backend, qkv.clone().requires_grad_(), batch, 0.0)
    assert relative_error(without[: batch.tokens], with_gradient[: batch.tokens]) < TOLERANCE[dtype]
