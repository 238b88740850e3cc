"""Calls of flash attention on a CPU, with an equivalent implementation registered for PyTorch's operator.

The arguments of the call and PyTorch's differentiation of the operator are tested; the kernels themselves need a GPU.
"""

import math
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks.bert.samples import Sample
from implementations.pytorch.data.batch import collate
from implementations.pytorch.kernels.eager import EAGER
from implementations.pytorch.model.attention import grouped as grouped_module
from implementations.pytorch.model.attention.dispatch import attend

Maker = Callable[..., list[Sample]]
Error = Callable[[Tensor, Tensor], float]
CUDA = torch.device("cuda")


def keep(shape: tuple[int, ...], seed: Tensor, probability: float) -> Tensor:
    draws = torch.rand(shape, generator=torch.Generator().manual_seed(int(seed)), dtype=torch.float64)
    return (draws >= probability) / (1 - probability)


def parts(q: Tensor, k: Tensor, v: Tensor, starts: Tensor, longest: int) -> Iterator[tuple[Any, ...]]:
    assert starts.dtype == torch.int32
    assert int(starts[-1]) == len(q)
    for start, end in pairwise(starts.tolist()):
        assert 0 <= end - start <= longest
        yield slice(start, end), *(x[start:end].double().transpose(0, 1) for x in (q, k, v))


def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    starts: Tensor,
    other: Tensor,
    longest: int,
    most: int,
    p: float,
    causal: bool,
    *_: Any,
    **__: Any,
) -> tuple[Tensor, ...]:
    assert torch.equal(starts, other)
    assert longest == most
    assert not causal
    out, seed = torch.full_like(q, float("nan")), torch.randint(0, 2**31, (2,))
    for rows, qs, ks, vs in parts(q, k, v, starts, longest):
        shares = torch.softmax(qs @ ks.mT / math.sqrt(q.shape[-1]), -1)
        out[rows] = ((shares * keep(shares.shape, seed[0], p)) @ vs).transpose(0, 1).to(q.dtype)
    return out, torch.zeros(1), seed, torch.zeros(1), torch.zeros(1)


def backward(
    upstream: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, _: Tensor, starts: Tensor, __: Tensor,
    longest: int, ___: int, p: float, ____: bool, seed: Tensor, *_____: Any, **______: Any,
) -> tuple[Tensor, ...]:  # fmt: skip
    gradients = [torch.full_like(x, float("nan")) for x in (q, k, v)]
    for rows, qs, ks, vs in parts(q, k, v, starts, longest):
        scale, up = 1 / math.sqrt(q.shape[-1]), upstream[rows].double().transpose(0, 1)
        shares = torch.softmax(qs @ ks.mT * scale, -1)
        kept = keep(shares.shape, seed[0], p)
        dshares = kept * (up @ vs.mT)
        dscores = shares * (dshares - (dshares * shares).sum(-1, keepdim=True)) * scale
        found = (dscores @ ks, dscores.mT @ qs, (shares * kept).mT @ up)
        for gradient, part in zip(gradients, found, strict=True):
            gradient[rows] = part.transpose(0, 1).to(q.dtype)
    return tuple(gradients)


@pytest.fixture
def operator() -> Iterator[None]:
    """Register PyTorch's operator on the CPU for the duration of a test."""
    library = torch.library.Library("aten", "IMPL")
    library.impl("_flash_attention_forward", forward, "CPU")
    library.impl("_flash_attention_backward", backward, "CPU")
    yield
    library._destroy()


def run(call: Callable[[Tensor], Tensor], start: Tensor, used: int) -> tuple[Tensor, Tensor]:
    qkv = start.clone().requires_grad_()
    context = call(qkv)
    upstream = torch.randn(context.shape, generator=torch.Generator().manual_seed(1)).to(context.dtype)
    upstream[used:] = 0
    return context, torch.autograd.grad(context, qkv, upstream)[0]


@pytest.mark.parametrize("lengths", [[90, 1, 2, 33, 64, 7], [64], [5, 5]])
@pytest.mark.parametrize("shape_step", [1, 64, 1024])
@pytest.mark.parametrize("backend", ["flash", "slices"])
def test_flash_attention_matches_the_reference(
    backend: str,
    lengths: list[int],
    shape_step: int,
    operator: None,
    make_samples: Maker,
    relative_error: Error,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`slices` is grouped attention on a GPU: one launch per group."""
    monkeypatch.setattr(grouped_module, "run_concurrently", lambda launches, shared: [launch() for launch in launches])
    batch = collate(make_samples(lengths), None, shape_step, attention_widths=[5, 64, 90])
    start = torch.randn(batch.slots, 3, 2, 8, generator=torch.Generator().manual_seed(0))
    attention = (
        partial(attend, batch=batch, backend="flash", kernels=EAGER, probability=0.0)
        if backend == "flash"
        else partial(grouped_module._attend_slices, batch=batch, probability=0.0)
    )
    found = run(attention, start, batch.tokens)
    plain = partial(attend, batch=batch, backend="padded", kernels=EAGER, probability=0.0)
    expected = run(plain, start.double(), batch.tokens)
    for one, other in zip(found, expected, strict=True):
        assert one.isfinite().all()
        assert relative_error(one[: batch.tokens], other[: batch.tokens]) < 1e-6
        assert backend == "flash" or not one[batch.tokens :].any()
    assert not found[1][batch.tokens :].any()


@pytest.mark.parametrize("separate", [False, True])
def test_three_tensors_get_three_gradients_and_one_tensor_gets_one(
    separate: bool, operator: None, make_samples: Maker
) -> None:
    """Of three tensors no gradient is stacked."""
    batch = collate(make_samples([50, 40]), None, 64)
    start = torch.randn(batch.slots, 3, 2, 8, generator=torch.Generator().manual_seed(0))
    call = partial(attend, batch=batch, backend="flash", kernels=EAGER, probability=0.0)
    leaves = [part.clone().requires_grad_() for part in (start.unbind(1) if separate else [start])]
    context = call((leaves[0], leaves[1], leaves[2]) if separate else leaves[0])
    with torch.profiler.profile() as profile:
        found = torch.autograd.grad(context.sum(), leaves)
    assert any(event.key == "aten::stack" for event in profile.key_averages()) is not separate
    expected = (
        run(call, start, batch.slots)[0],
        torch.autograd.grad(call(leaf := start.clone().requires_grad_()).sum(), leaf),
    )
    torch.testing.assert_close(context.detach(), expected[0].detach())
    torch.testing.assert_close(torch.stack(found, 1) if separate else found[0], expected[1][0])


def test_dropout_reaches_the_operator(operator: None, make_samples: Maker) -> None:
    """Forward and backward use the same mask, which differs between calls."""
    batch = collate(make_samples([50, 40]), None, 64)
    qkv = torch.zeros(batch.slots, 3, 2, 8)
    qkv[:, 2] = 1.0
    call = partial(attend, batch=batch, backend="flash", kernels=EAGER)
    found = call(qkv, probability=0.5)
    assert 0.9 < float(found[: batch.tokens].mean()) < 1.1
    assert float(found[: batch.tokens].var()) > 0.001
    assert not torch.equal(found, call(qkv, probability=0.5))
    torch.testing.assert_close(call(qkv, probability=0.0), torch.ones_like(found))
    leaf = qkv.clone().requires_grad_()
    out = call(leaf, probability=0.5)
    (gradient,) = torch.autograd.grad(out, leaf, out.detach())
    assert float((gradient[:, 2] * leaf.detach()[:, 2]).sum()) == pytest.approx(float(out.square().sum()), rel=1e-5)


def test_maximum_length_is_the_same_for_all_batches(monkeypatch: pytest.MonkeyPatch, make_samples: Maker) -> None:
    """A CUDA graph captures it as a constant."""
    from implementations.pytorch.model.attention import varlen as module

    seen: list[int] = []

    def noted(qkv: Tensor, starts: Tensor, longest: int, probability: float) -> Tensor:
        seen.append(longest)
        return qkv[:, 0]

    monkeypatch.setattr(module, "varlen", noted)
    for lengths in ([5], [512, 3], [90] * 9):
        batch = collate(make_samples(lengths), None, 512)
        attend(torch.zeros(batch.slots, 3, 1, 4), batch, backend="flash", kernels=EAGER, probability=0.0)
    assert seen == [512, 512, 512]


@pytest.fixture
def capability(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, int], None]:
    """(major, minor) → sets the GPU's compute capability."""

    def set_capability(major: int, minor: int) -> None:
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (major, minor))

    return set_capability


class OnCuda:
    """The attributes of a tensor from which grouped attention chooses its implementation."""

    device, dtype = CUDA, torch.float16


@pytest.mark.parametrize(
    ("version", "trains", "expected"),
    [((8, 0), True, "slices"), ((8, 0), False, "whole"), ((7, 5), True, "dense"), ((7, 5), False, "dense")],
)
def test_grouped_attention_uses_flash_attention_if_supported(
    version: tuple[int, int],
    trains: bool,
    expected: str,
    capability: Callable[[int, int], None],
    monkeypatch: pytest.MonkeyPatch,
    make_samples: Maker,
) -> None:
    """In training; an evaluation is one launch. Without flash attention every group is a dense product."""
    capability(*version)
    batch = collate(make_samples([5, 3]), None, 1, attention_widths=[4, 8])
    calls: list[str] = []
    monkeypatch.setattr(grouped_module, "_attend_slices", lambda *_: calls.append("slices"))
    monkeypatch.setattr(grouped_module, "flash", lambda *_: calls.append("whole"))
    monkeypatch.setattr(grouped_module, "split", lambda *_: [(None, None, None)] * len(batch.groups))
    monkeypatch.setattr(grouped_module, "dense", lambda *_: calls.append("dense"))
    monkeypatch.setattr(grouped_module, "merge", lambda *_: torch.zeros(8, 1, 1))
    with torch.set_grad_enabled(trains):
        attend(OnCuda(), batch, backend="grouped", kernels=EAGER, probability=0.0)  # type: ignore[arg-type]
    assert set(calls) == {expected} and len(calls) == (2 if expected == "dense" else 1)
