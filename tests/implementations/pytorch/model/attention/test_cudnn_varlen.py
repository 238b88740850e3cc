"""Attention by cuDNN on a CPU: shapes, strides, offsets, dropout and plans, with a stand-in for the library.

The library itself needs a GPU; `measure_deviations` compares it with padded attention there.
"""

import sys
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from benchmarks.bert.samples import Sample
from implementations.pytorch.data.batch import RaggedBatch, collate
from implementations.pytorch.kernels.eager import EAGER
from implementations.pytorch.kernels.gpu.common import record_launches
from implementations.pytorch.model.attention import cudnn_varlen as module
from implementations.pytorch.model.attention.check import measure_deviations
from implementations.pytorch.model.attention.cudnn_varlen import varlen_cudnn
from implementations.pytorch.model.attention.dispatch import attend
from implementations.pytorch.model.attention.varlen import QKV
from tests.implementations.pytorch.model.attention.cudnn_stand_in import StandIn

Maker = Callable[..., list[Sample]]
Error = Callable[[Tensor, Tensor], float]
HEADS, SIZE = 2, 8
attend_cudnn = partial(attend, backend="cudnn", kernels=EAGER)


@pytest.fixture
def cudnn(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    stand_in = StandIn()
    monkeypatch.setitem(sys.modules, "cudnn", stand_in)
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: SimpleNamespace(cuda_stream=7))
    monkeypatch.setattr(module, "_plans", module._Plans())
    return stand_in


def random_qkv(batch: RaggedBatch) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(batch.slots, 3, HEADS, SIZE, generator=generator).half()


def run(call: Callable[[QKV], Tensor], leaves: list[Tensor], used: int) -> tuple[Tensor, Tensor]:
    """Context and the gradient [T, 3, H, K], for an upstream gradient that is zero from slot `used` on."""
    leaves = [leaf.requires_grad_() for leaf in leaves]
    context = call(leaves[0] if len(leaves) == 1 else (leaves[0], leaves[1], leaves[2]))
    upstream = torch.randn(context.shape, generator=torch.Generator().manual_seed(1)).to(context.dtype)
    upstream[used:] = 0
    found = torch.autograd.grad(context, leaves, upstream)
    return context.detach(), found[0] if len(found) == 1 else torch.stack(found, 1)


FORMS: dict[str, Callable[[Tensor], list[Tensor]]] = {
    "one tensor": lambda qkv: [qkv.clone()],
    "parts of one buffer": lambda qkv: list(qkv.clone().unbind(1)),
    "three buffers": lambda qkv: [part.clone() for part in qkv.unbind(1)],
    "heads outermost": lambda qkv: [part.transpose(0, 1).contiguous().transpose(0, 1) for part in qkv.unbind(1)],
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("lengths", [[90, 1, 2, 33, 64, 7], [64], [5, 5]])
@pytest.mark.parametrize(("shape_step", "absent"), [(1, 0), (64, 0), (256, 3)])
def test_context_and_gradient_match_padded_attention(
    form: str,
    lengths: list[int],
    shape_step: int,
    absent: int,
    cudnn: StandIn,
    make_samples: Maker,
    relative_error: Error,
) -> None:
    """With spare slots, and with sequences without tokens."""
    slots = len(lengths) + absent if absent else None
    batch = collate(make_samples(lengths), None, shape_step, sequence_slots=slots)
    qkv = random_qkv(batch)
    found = run(partial(attend_cudnn, batch=batch, probability=0.0), FORMS[form](qkv), batch.tokens)
    plain = partial(attend, batch=batch, backend="padded", kernels=EAGER, probability=0.0)
    expected = run(plain, [qkv.double()], batch.tokens)  # type: ignore[arg-type]
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == torch.float16
        assert one.isfinite().all()
        assert relative_error(one[: batch.tokens], other[: batch.tokens]) < 2e-3
    assert not found[1][batch.tokens :].any()
    assert set(cudnn.streams) == {7}


@pytest.mark.parametrize("form", FORMS)
def test_gradients_are_written_into_one_buffer(form: str, cudnn: StandIn, make_samples: Maker) -> None:
    """Nothing is stacked, and parts of one buffer are not copied."""
    batch = collate(make_samples([50, 40, 3]), None, 128)
    leaves = [leaf.requires_grad_() for leaf in FORMS[form](random_qkv(batch))]
    with torch.profiler.profile() as profile:
        context = attend_cudnn(leaves[0] if len(leaves) == 1 else tuple(leaves), batch, probability=0.1)  # type: ignore[arg-type]
        found = torch.autograd.grad(context, leaves, torch.ones_like(context))
    names = {event.key for event in profile.key_averages()}
    assert not names & {"aten::stack", "aten::cat"}
    assert ("aten::clone" in names) is (form == "heads outermost")
    assert len({gradient.untyped_storage().data_ptr() for gradient in found}) == 1
    assert found[0].untyped_storage().nbytes() == 2 * 3 * batch.slots * HEADS * SIZE


def test_dropout_has_one_mask_in_both_directions_and_another_in_each_call(cudnn: StandIn, make_samples: Maker) -> None:
    batch = collate(make_samples([50, 40]), None, 64)
    qkv = torch.zeros(batch.slots, 3, HEADS, SIZE, dtype=torch.float16)
    qkv[:, 2] = 1
    torch.manual_seed(3)
    first = attend_cudnn(qkv, batch, probability=0.5)
    second = attend_cudnn(qkv, batch, probability=0.5)
    assert 0.9 < float(first[: batch.tokens].float().mean()) < 1.1
    assert float(first[: batch.tokens].float().var()) > 0.001
    assert not torch.equal(first, second)
    torch.manual_seed(3)
    assert torch.equal(attend_cudnn(qkv, batch, probability=0.5), first)
    state = torch.get_rng_state()
    quiet = attend_cudnn(qkv, batch, probability=0.0)
    torch.testing.assert_close(quiet, torch.ones_like(quiet))
    assert torch.equal(torch.get_rng_state(), state)  # an evaluation does not change later masks
    assert measure_deviations("cudnn", torch.device("cpu"), torch.float16).mask < 0.01


def test_plans_are_built_once_for_a_shape(cudnn: StandIn, make_samples: Maker) -> None:
    """Numbers of sequences are rounded up, and lengths and seeds are no part of a plan."""

    def step(lengths: list[int], probability: float) -> int:
        batch = collate(make_samples(lengths), None, 128)
        leaf = random_qkv(batch).requires_grad_()
        torch.autograd.grad(attend_cudnn(leaf, batch, probability=probability).sum(), leaf)
        return cudnn.built

    assert step([50, 40], 0.1) == 2  # forward and backward
    assert step([90, 5, 5], 0.1) == 2  # 3 and 4 sequences with the spare slots: 4
    assert step([50, 40], 0.0) == 4
    assert step([10] * 4, 0.1) == 6  # 5 sequences: 8


def test_the_counter_gets_bytes_and_operations(cudnn: StandIn, make_samples: Maker) -> None:
    batch = collate(make_samples([50, 40]), None, 64)
    launched: list[tuple[str, int, float]] = []
    leaf = random_qkv(batch).requires_grad_()
    with record_launches(lambda *values: launched.append(values)):
        context = attend_cudnn(leaf, batch, probability=0.1)
        torch.autograd.grad(context, leaf, torch.empty_like(context))
    assert not cudnn.built
    (forward, moved, flops), (backward, backward_moved, backward_flops) = launched
    assert forward.endswith("cudnn_attention") and backward.endswith("cudnn_attention_backward")
    part = 2 * batch.slots * HEADS * SIZE
    pairs = 50**2 + 40**2 + batch.spare_slots**2
    accumulator = 4 * 4 * HEADS * 512 * SIZE  # float32, of 4 sequences of 512
    assert flops == 4 * HEADS * SIZE * pairs and backward_flops == 2.5 * flops
    assert 4 * part < moved < 5 * part
    assert 8 * part < backward_moved - 3 * accumulator < 9 * part


def test_the_check_finds_faults(cudnn: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    measure = partial(measure_deviations, "cudnn", torch.device("cpu"), torch.float16)
    assert measure().describe_failure() is None

    def failure() -> str:
        return measure().describe_failure() or ""

    cudnn.other_mask_in_backward = True
    assert "different masks" in failure()
    cudnn.other_mask_in_backward, cudnn.ignores_dropout = False, True
    assert "there is no dropout" in failure()
    cudnn.ignores_dropout = False
    plain = module.varlen_cudnn

    def with_last_sequence_missing(qkv: QKV, starts: Tensor, *rest: int) -> Tensor:
        return plain(qkv, torch.where(starts == starts[-1], starts[-2], starts), *rest)

    def with_longer_sequences(qkv: QKV, starts: Tensor, *rest: int) -> Tensor:
        return plain(qkv, torch.where(starts == starts[1], starts[1] + 1, starts), *rest)

    with monkeypatch.context() as patch:
        patch.setattr(module, "varlen_cudnn", with_longer_sequences)
        assert "the context deviates" in failure()
    with monkeypatch.context() as patch:
        patch.setattr(
            torch.Tensor,
            "new_empty",
            lambda self, *shape, **o: torch.full(shape, torch.nan, dtype=o.get("dtype", self.dtype)),
        )
        assert failure() == ""  # every element of the results is written
        patch.setattr(module, "varlen_cudnn", with_last_sequence_missing)
        assert "not finite" in failure()


def test_starts_may_be_those_of_a_group(cudnn: StandIn) -> None:
    """As grouped attention passes them: relative to the group's first token, with the group's maximum length."""
    qkv = torch.randn(9, 3, HEADS, SIZE, generator=torch.Generator().manual_seed(0)).half()
    context = varlen_cudnn(qkv, torch.tensor([0, 4, 9], dtype=torch.int32), 32, 0.0)
    for rows in (slice(0, 4), slice(4, 9)):
        q, k, v = qkv[rows].float().permute(1, 2, 0, 3)
        expected = torch.softmax(q @ k.mT * SIZE**-0.5, -1) @ v
        torch.testing.assert_close(context[rows].float(), expected.transpose(0, 1), rtol=0, atol=2e-3)
