"""Fused encoder layers in Triton's interpreter, compared with the eager layers in float32 and float64.

Run by kernels/gpu/test_gpu.py in a new process, with TRITON_INTERPRET=1.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from benchmarks.bert.samples import Sample
from benchmarks.bert.sizes import Size
from benchmarks.bert.store import SampleStore
from implementations.pytorch.checkpointing import RunState, write_tensors
from implementations.pytorch.data.batch import RaggedBatch, collate
from implementations.pytorch.distributed.process_group import Processes
from implementations.pytorch.kernels.fp8_scaling import FP8_KINDS, HISTORY, Fp8Scaling
from implementations.pytorch.kernels.gpu.cast import cast_fp8, join, transpose_fp8
from implementations.pytorch.kernels.gpu.common import sum_parts
from implementations.pytorch.kernels.gpu.gelu import gelu_backward, gelu_backward_fp8, gelu_forward, gelu_forward_fp8
from implementations.pytorch.kernels.gpu.kernel_set import TRITON
from implementations.pytorch.kernels.gpu.norm import residual_norm_backward, residual_norm_forward
from implementations.pytorch.model import fused_layer
from implementations.pytorch.model.attention import dispatch
from implementations.pytorch.model.attention.dispatch import BACKENDS
from implementations.pytorch.model.attention.padded import padded
from implementations.pytorch.model.bert import BertForPreTraining
from implementations.pytorch.model.loss import loss_sums
from implementations.pytorch.phase_clock import PhaseClock
from implementations.pytorch.precision import autocast
from implementations.pytorch.step import Stepper
from podium.config.run_folder import rank_file
from podium.config.schema import RunConfig
from podium.planning.balancing.interface import AssignmentSpec
from podium.planning.batch_plan import TrainingOrder
from tests.implementations.pytorch.data.plain_reader import read_step
from tests.implementations.pytorch.kernels.gpu import exact_casts, lasting_language

exact_casts.install()
lasting_language.install()
CPU = torch.device("cpu")


def normal(*shape: int, seed: int = 0, scale: float = 1.0) -> Tensor:
    return scale * torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def error(found: Tensor, expected: Tensor) -> float:
    return float((found.double() - expected.double()).norm() / expected.double().norm())


@pytest.fixture
def batch(make_samples: Callable[..., list[Sample]]) -> RaggedBatch:
    return collate(make_samples([5, 3, 4]), shape_step=16)


def gradients(model: BertForPreTraining, batch: RaggedBatch, precision: str = "fp32") -> dict[str, Tensor]:
    """Train on a batch; return the loss and copies of all gradients."""
    with autocast(precision, CPU):
        loss = loss_sums(model(batch), batch, model.model_options.kernels).mean(batch.masked, batch.sequences)
    loss.backward()
    found = {name: parameter.grad.clone() for name, parameter in model.named_parameters() if parameter.grad is not None}
    return {"loss": loss.detach(), **found}


@pytest.mark.parametrize(("last_layer", "attention"), [("needed", "grouped"), ("all", "padded")])
def test_gradients_are_those_of_eager_layers(
    last_layer: str, attention: str, make_model: Callable[..., BertForPreTraining], batch: RaggedBatch
) -> None:
    options = {"last_layer": last_layer, "attention": attention}
    eager = make_model(**options)
    fused = make_model(kernels=TRITON, fused_layers=True, **options)
    fused.load_state_dict(eager.state_dict())
    expected, found = gradients(eager, batch), gradients(fused, batch)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        # The bias of the keys moves no softmax, so its gradient is only rounding error.
        assert error(found[name], value) < 2e-5 or float((found[name] - value).abs().max()) < 1e-6, name


@pytest.mark.parametrize("one_buffer", [False, True])
def test_three_tensors_of_queries_keys_and_values(
    one_buffer: bool, monkeypatch: pytest.MonkeyPatch, make_model: Callable[..., BertForPreTraining], batch: RaggedBatch
) -> None:
    """A backend that takes them separately returns their gradients separately, as parts of one buffer or not."""
    seen = []

    class Stack(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *parts: Tensor) -> Tensor:
            return torch.stack(parts, 1)

        @staticmethod
        def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, ...]:
            parts = gradients[0].contiguous().unbind(1)
            return parts if one_buffer else tuple(part.clone() for part in parts)

    def separate(qkv: tuple[Tensor, ...], *rest: object) -> Tensor:
        seen.append([part.shape for part in qkv])
        return padded(Stack.apply(*qkv), *rest)  # type: ignore[no-untyped-call, arg-type]

    def join(sources: Any, copy: bool = True) -> tuple[Tensor, Tensor]:
        assert copy == (not one_buffer)
        return cast_join(sources, copy)

    cast_join = fused_layer.join
    monkeypatch.setattr(fused_layer, "join", join)

    monkeypatch.setitem(BACKENDS, "separate", separate)
    for module in (fused_layer, dispatch):
        monkeypatch.setattr(module, "SEPARATE_QKV", ("separate",))
    fused = make_model(kernels=TRITON, fused_layers=True, attention="separate")
    eager = make_model(attention="padded")
    fused.load_state_dict(eager.state_dict())
    expected, found = gradients(eager, batch), gradients(fused, batch)
    for name, value in expected.items():
        assert error(found[name], value) < 2e-5 or float((found[name] - value).abs().max()) < 1e-6, name
    assert [len(shapes) for shapes in seen] == [3, 3]


@pytest.mark.parametrize("fp8", [False, True])
def test_gradients_are_replaced_or_added_to_in_place(
    fp8: bool, make_model: Callable[..., BertForPreTraining], batch: RaggedBatch
) -> None:
    model = make_model(kernels=TRITON, fused_layers=True, fp8=fp8)
    first = gradients(model, batch)
    addresses = {name: p.grad.data_ptr() for name, p in model.named_parameters() if p.grad is not None}
    assert gradients(model, batch)["layers.0.qkv.weight"] == pytest.approx(2 * first["layers.0.qkv.weight"], rel=1e-5)
    model.gradients.accumulate = False
    again = gradients(model, batch)
    for name, value in first.items():
        if name.startswith("layers."):
            assert torch.equal(again[name], value), name
    assert addresses == {name: p.grad.data_ptr() for name, p in model.named_parameters() if p.grad is not None}


def test_bf16_is_close_to_float32(make_model: Callable[..., BertForPreTraining], batch: RaggedBatch) -> None:
    eager, fused = make_model(), make_model(kernels=TRITON, fused_layers=True)
    fused.load_state_dict(eager.state_dict())
    expected, found = gradients(eager, batch), gradients(fused, batch, "bf16")
    for name, value in expected.items():
        if value.numel() > 1000 and "qkv" not in name:
            assert error(found[name], value) < 0.05, name
            assert found[name].dtype == torch.float32


def test_fp8_is_close_to_float32_and_learns_its_scales(
    make_model: Callable[..., BertForPreTraining], batch: RaggedBatch
) -> None:
    eager, fused = make_model(), make_model(kernels=TRITON, fused_layers=True, fp8=True)
    fused.load_state_dict(eager.state_dict())
    assert eager.state_dict().keys() == fused.state_dict().keys()
    scaling = fused.scaling
    assert scaling is not None
    first = scaling.scale.clone()
    for _ in range(2):
        scaling.update()
        fused.zero_grad()
        found = gradients(fused, batch, "bf16")
    assert not torch.equal(scaling.scale, first)
    expected = gradients(eager, batch)
    for name, value in expected.items():
        if value.numel() > 1000 and "qkv" not in name:
            assert 1e-3 < error(found[name], value) < 0.15, name
    assert float(found["loss"]) == pytest.approx(float(expected["loss"]), rel=0.02)
    # Every matrix was seen, and none but the input of the first layer and what the last layer passes on is missing.
    assert (scaling.amax.view(torch.float32) > 0).all()


def test_evaluation_is_not_fp8_and_changes_nothing(
    make_model: Callable[..., BertForPreTraining], batch: RaggedBatch
) -> None:
    fp8, plain = (make_model(kernels=TRITON, fused_layers=True, fp8=value).eval() for value in (True, False))
    fp8.load_state_dict(plain.state_dict())
    assert fp8.scaling is not None
    before = {name: tensor.clone() for name, tensor in fp8.scaling.tensors().items()}
    with torch.no_grad():
        assert torch.equal(fp8(batch).masked_lm, plain(batch).masked_lm)
    assert all(torch.equal(tensor, before[name]) for name, tensor in fp8.scaling.tensors().items())


def test_dropout_is_the_same_in_both_directions(
    make_model: Callable[..., BertForPreTraining], batch: RaggedBatch
) -> None:
    """The loss changes along a direction by the product with the gradient, only if backward has forward's masks."""
    model = make_model(kernels=TRITON, fused_layers=True, dropout_probability=0.2)
    parameter = model.layers[0].get_parameter("intermediate.weight")
    direction = normal(*parameter.shape, seed=5)

    def loss(step: float, seed: int = 7) -> float:
        torch.manual_seed(seed)
        with torch.no_grad():
            parameter.add_(step * direction)
        sums = loss_sums(model(batch), batch, TRITON)
        with torch.no_grad():
            parameter.sub_(step * direction)
        return float(sums.mean(batch.masked, batch.sequences))

    torch.manual_seed(7)
    slope = float((gradients(model, batch)["layers.0.intermediate.weight"] * direction).sum())
    assert (loss(1e-3) - loss(-1e-3)) / 2e-3 == pytest.approx(slope, rel=0.03)
    assert loss(0.0, seed=8) != loss(0.0)


def slot(kind: str, scale: float) -> "fused_layer.Fp8Slot":
    scaling = Fp8Scaling([kind])
    scaling.scale.fill_(scale)
    scaling.inverse.fill_(1 / scale)
    return scaling.slot(0)


@pytest.mark.parametrize(("rows", "columns"), [(1, 16), (70, 48), (130, 80)])
@pytest.mark.parametrize(("kind", "dtype"), [("activation", torch.float8_e4m3fn), ("gradient", torch.float8_e5m2)])
def test_cast_and_transpose(rows: int, columns: int, kind: str, dtype: torch.dtype) -> None:
    fp8 = slot(kind, 8.0)
    sources = [normal(rows, columns, seed=n, scale=3).bfloat16() for n in range(3)]
    sources[0][0, 0] = 1e4 if kind == "activation" else 1e9  # saturates
    whole = torch.cat(sources, 1).float()
    straight, transposed, parts = cast_fp8(sources, fp8, sums=True)
    limit = torch.finfo(dtype).max
    expected = (whole * 8).clamp(-limit, limit).to(dtype)
    assert torch.equal(straight.float(), expected.float())
    assert transposed.shape == (3 * columns, -(-rows // 16) * 16)
    assert torch.equal(transposed[:, :rows].float(), expected.t().float())
    assert not transposed[:, rows:].float().any()
    assert torch.equal(transpose_fp8(straight).float(), transposed.float())
    assert float(fp8.amax.view(torch.float32)) == float(whole.abs().max())
    sums = torch.empty(3 * columns)
    assert parts is not None
    sum_parts(parts, (sums,))
    torch.testing.assert_close(sums, whole.sum(0), rtol=1e-5, atol=1e-3)


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan")])
@pytest.mark.parametrize("kind", ["activation", "gradient"])
def test_what_is_not_finite_stays_not_finite(value: float, kind: str) -> None:
    x = normal(16, 16)
    x[3, 5] = value
    straight, transposed, _ = cast_fp8([x], slot(kind, 1.0))
    assert straight.float().isfinite().logical_not().nonzero().tolist() == [[3, 5]]
    assert transposed.float().isfinite().logical_not().nonzero().tolist() == [[5, 3]]


def test_join() -> None:
    whole = normal(70, 3 * 24).bfloat16()
    parts = [part.contiguous() for part in whole.chunk(3, 1)]
    joined, sums = join(parts)
    assert torch.equal(joined, whole)
    torch.testing.assert_close(sums.sum((0, 1)), whole.float().sum(0), rtol=1e-5, atol=1e-3)
    nothing, again = join(whole.chunk(3, 1), copy=False)
    assert not nothing.numel()
    assert torch.equal(again, sums)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_sum_parts(count: int) -> None:
    parts, targets = normal(37, count, 70), tuple(normal(70, seed=n) for n in range(count))
    expected = [target + part for target, part in zip(targets, parts.sum(0), strict=True)]
    sum_parts(parts, targets, accumulate=True)
    torch.testing.assert_close(list(targets), expected, rtol=1e-5, atol=1e-5)
    sum_parts(parts, targets)
    torch.testing.assert_close(list(targets), list(parts.sum(0).unbind()), rtol=1e-5, atol=1e-5)


def test_gelu_in_fp8() -> None:
    x, bias, dy = normal(70, 48).bfloat16(), normal(48, seed=1), normal(70, 48, seed=2).bfloat16()
    forward, backward = slot("activation", 16.0), slot("gradient", 16.0)
    for found, plain, fp8 in (
        (gelu_forward_fp8(x, bias, forward), gelu_forward(x, bias), forward),
        (gelu_backward_fp8(x, bias, dy, backward), gelu_backward(x, bias, dy)[0], backward),
    ):
        rows, columns = found[0], found[1]
        assert error(rows.float() / 16, plain) < (0.04 if fp8 is forward else 0.08)
        assert torch.equal(columns[:, :70].float(), rows.t().float())
        assert float(fp8.amax.view(torch.float32)) == pytest.approx(float(plain.float().abs().max()), rel=0.01)
    sums = gelu_backward_fp8(x, bias, dy, backward)[2].sum((0, 1))
    torch.testing.assert_close(sums, gelu_backward(x, bias, dy)[1].sum((0, 1)), rtol=1e-4, atol=1e-4)


def test_second_gradient_and_fp8_of_a_residual_norm() -> None:
    x, update = normal(20, 48).bfloat16(), normal(20, 48, seed=1).bfloat16()
    bias, weight, shift = (normal(48, seed=n) for n in (2, 3, 4))
    seed = torch.zeros(1, dtype=torch.int64)
    fp8 = slot("activation", 8.0)
    y, y8, state = residual_norm_forward(x, update, bias, weight, shift, seed, 0.0, fp8)
    plain, nothing, without = residual_norm_forward(x, update, bias, weight, shift, seed, 0.0, save=False)
    assert torch.equal(y, plain) and nothing is None and without is None
    assert y8 is not None and state is not None
    assert error(y8.float() / 8, y) < 0.04
    one, two = normal(20, 48, seed=5).bfloat16(), normal(20, 48, seed=6).bfloat16()
    dx, dupdate, parts = residual_norm_backward(state, one, two)
    state32 = residual_norm_forward(x.float(), update.float(), bias, weight, shift, seed, 0.0)[2]
    assert state32 is not None
    dx32, dupdate32, parts32 = residual_norm_backward(state32, one.float() + two.float())
    assert error(dx, dx32) < 0.02 and error(dupdate, dupdate32) < 0.02
    assert error(parts.sum(0), parts32.sum(0)) < 0.02
    gradient = slot("gradient", 64.0)
    dx8, dupdate8, _ = residual_norm_backward(state, one, two, gradient)
    assert torch.equal(dx8, dx)
    assert error(dupdate8.float() / 64, dupdate) < 0.08
    assert float(gradient.amax.view(torch.float32)) == pytest.approx(float(dupdate.float().abs().max()), rel=0.01)


def test_scales_follow_the_largest_of_the_last_steps() -> None:
    scaling = Fp8Scaling(FP8_KINDS)
    magnitudes = torch.linspace(0.1, 3, len(FP8_KINDS))
    scaling.amax.copy_(magnitudes.view(torch.int32))
    scaling.update()
    torch.testing.assert_close(scaling.scale, scaling.limits / (2 * magnitudes))
    torch.testing.assert_close(scaling.inverse * scaling.scale, torch.ones(len(FP8_KINDS)))
    scale = scaling.scale.clone()
    for _ in range(HISTORY - 1):
        scaling.amax.copy_((magnitudes / 4).view(torch.int32))
        scaling.update()
        assert torch.equal(scaling.scale, scale)
    scaling.update()
    torch.testing.assert_close(scaling.scale, 4 * scale)
    for number in (float("inf"), float("nan")):  # a step that overflowed changes nothing
        scaling.amax.copy_(torch.full_like(magnitudes, number).view(torch.int32))
        before = scaling.scale.clone()
        scaling.update()
        assert torch.equal(scaling.scale, before)
    for _ in range(HISTORY + 1):  # nothing but zeros: the scale stays
        scaling.update()
    assert scaling.scale.isfinite().all()


@pytest.mark.parametrize(
    ("rows", "inputs", "outputs", "kinds", "dtype", "bias"),
    [
        (37, 32, 48, ("activation", "weight"), torch.bfloat16, True),  # forward
        (37, 48, 32, ("gradient", "weight"), torch.bfloat16, False),  # gradient of the input
        (32, 48, 16, ("gradient", "activation"), torch.float32, False),  # gradient of the weight
    ],
)
def test_fp8_products_by_pytorchs_operator(
    rows: int, inputs: int, outputs: int, kinds: tuple[str, str], dtype: torch.dtype, bias: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Its CPU implementation gives the same products; fake tensors check what a GPU demands of layouts and dtypes."""
    one, other = slot(kinds[0], 16.0), slot(kinds[1], 32.0)
    a, b = (normal(n, inputs, seed=n).to(part.dtype) for n, part in ((rows, one), (outputs, other)))
    shift = normal(outputs).to(dtype) if bias else None
    expected = fused_layer._scaled_product(a, one, b, other, dtype, shift)
    monkeypatch.setattr(fused_layer, "recording", lambda: True)
    target = torch.empty(rows, outputs, dtype=dtype)
    found = fused_layer._scaled_product(a, one, b, other, dtype, shift, out=target)
    assert found is target
    torch.testing.assert_close(found, expected, rtol=1e-2, atol=1e-2)
    with FakeTensorMode():
        a, b = (torch.empty(part.shape, dtype=part.dtype, device="cuda") for part in (a, b))
        one, other = (fused_layer.Fp8Slot(p.dtype, *(torch.empty(1, device="cuda"),) * 3) for p in (one, other))
        shift = None if shift is None else torch.empty(outputs, dtype=dtype, device="cuda")
        assert fused_layer._scaled_product(a, one, b, other, dtype, shift, fast=bias).dtype == dtype


@pytest.mark.parametrize("accumulate", [False, True])
def test_products_into_float32_as_on_a_gpu(accumulate: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The operators with an output of another dtype exist on GPUs only: fake tensors check the arguments."""
    monkeypatch.setattr(fused_layer, "recording", lambda: True)
    with FakeTensorMode():
        dy, x = (torch.empty(37, n, dtype=torch.bfloat16) for n in (16, 24))
        fused_layer._product_float32(dy, x, torch.empty(16, 24), accumulate)


def test_fp8_training_resumes_bit_for_bit(
    make_store: Callable[..., SampleStore],
    make_config: Callable[..., RunConfig],
    make_model: Callable[..., BertForPreTraining],
    make_stepper: Callable[..., Stepper],
    processes: Processes,
    small: Size,
    tmp_path: Path,
) -> None:
    """A step of two micro-batches sets the scales once, from the second step on; a checkpoint holds them."""
    size = replace(small, layers=1)
    store = make_store([5, 7, 3, 6, 4, 8, 5, 6])
    config = make_config(global_batch_size=2, gradient_accumulation_steps=2)
    order = TrainingOrder(
        store,
        seed=7,
        strategy=config.balancing,
        global_batch_size=2,
        spec=AssignmentSpec(1, 1),
        accumulation_steps=2,
        shape_step=16,
    )

    def start(seed: int) -> Stepper:
        model = make_model(kernels=TRITON, fused_layers=True, fp8=True, dropout_probability=0.1, size=size, seed=seed)
        stepper = make_stepper(config, model, "bf16")
        stepper.take(read_step(order, 0, 0), PhaseClock())
        return stepper

    def tensors(stepper: Stepper) -> dict[str, Tensor]:
        return {name: tensor.clone() for name, tensor in RunState(stepper, processes).rank_tensors().items()}

    def steps_in_history(state: dict[str, Tensor]) -> int:
        return int((state["fp8.history"] > 0).any(1).sum())

    stepper = start(0)
    stepper.take(read_step(order, 1, 0), PhaseClock())
    saved = tensors(stepper)
    write_tensors(rank_file(tmp_path, 0), saved, {})
    stepper.take(read_step(order, 2, 0), PhaseClock())
    expected = tensors(stepper)
    assert (steps_in_history(saved), steps_in_history(expected)) == (1, 2), "the scales are set once a step"
    resumed = start(1)
    RunState(resumed, processes).load(tmp_path)
    resumed.take(read_step(order, 2, 0), PhaseClock())
    found = tensors(resumed)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.equal(found[name], value), name


def test_fp8_products_write_to_aligned_addresses_only(
    make_model: Callable[..., BertForPreTraining], batch: RaggedBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gradients that begin anywhere in a bucket get the same values."""
    written = []

    def scaled_product(*arguments: Any, out: Tensor | None = None, **options: Any) -> Tensor:
        if out is not None:
            written.append(out.data_ptr() % 16)
        return original(*arguments, out=out, **options)

    original = fused_layer._scaled_product
    monkeypatch.setattr(fused_layer, "_scaled_product", scaled_product)
    model = make_model(kernels=TRITON, fused_layers=True, fp8=True)
    model.gradients.accumulate = False
    expected = gradients(model, batch, "bf16")
    assert not any(written)
    shifted = "layers.1.intermediate.weight", "layers.0.qkv.weight"
    for name in shifted:
        parameter = model.get_parameter(name)
        parameter.grad = torch.empty(parameter.numel() + 2)[2:].view_as(parameter)
    written.clear()
    found = gradients(model, batch, "bf16")
    assert len(written) == 8 - len(shifted) and not any(written)
    for name in shifted:
        assert torch.equal(found[name], expected[name])


def test_what_is_not_needed_any_more_keeps_no_memory() -> None:
    nothing = fused_layer._nothing(normal(64, 16))
    assert nothing.shape == (0, 16)
    assert not nothing.untyped_storage().nbytes()


def test_another_loss_scale_changes_gradients_only() -> None:
    scaling = Fp8Scaling(FP8_KINDS)
    magnitudes = torch.linspace(0.1, 3, len(FP8_KINDS))
    scaling.amax.copy_(magnitudes.view(torch.int32))
    scaling.update()
    scaling.amax.copy_(magnitudes.view(torch.int32))
    factors = torch.tensor([8.0 if kind == "gradient" else 1.0 for kind in FP8_KINDS])
    history, scale = scaling.history.clone(), scaling.scale.clone()
    scaling.change_loss_scale(8.0)
    assert torch.equal(scaling.history, history * factors)
    assert torch.equal(scaling.scale, scale / factors)
    assert torch.equal(scaling.amax.view(torch.float32), magnitudes * factors)
    torch.testing.assert_close(scaling.scale * scaling.inverse, torch.ones(len(FP8_KINDS)))
