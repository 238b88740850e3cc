"""The fused LAMB and AdamW in Triton's interpreter, compared with their equations and with the plain optimizers.

Run by kernels/gpu/test_gpu.py in a new process. The interpreter runs the kernels' code with NumPy, and so rounds every
operation once, as the float32 equations here do; a GPU adds and multiplies in one rounding, as PyTorch's own kernels
there do.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_
from torch.optim import AdamW, Optimizer

from benchmarks.bert.sizes import Size
from benchmarks.bert.store import SampleStore
from implementations.pytorch.build_run import _restore, _snapshot
from implementations.pytorch.kernels.gpu import optimizer as kernels
from implementations.pytorch.model.bert import BertForPreTraining
from implementations.pytorch.optim.build import build_optimizer
from implementations.pytorch.optim.fused import FusedAdamW, FusedLamb, FusedOptimizer
from implementations.pytorch.optim.lamb import Lamb
from implementations.pytorch.phase_clock import PhaseClock
from implementations.pytorch.step import Stepper
from podium.config.schema import Clipping, LossScaling, RunConfig
from podium.planning.batch_plan import TrainingOrder
from tests.implementations.pytorch.data.plain_reader import read_step
from tests.implementations.pytorch.kernels.gpu import lasting_language

lasting_language.install()

# Two chunks and an odd size; rows that a third of which is not a multiple of 16 bytes; a vector; two elements.
CHUNK = 1 << 11
SHAPES = [(3, CHUNK // 2 + 33), (6, 7), (12, 4), (40,), (2,)]
RATE = 0.02


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of two iterations, since the interpreter takes milliseconds for each."""
    monkeypatch.setattr(kernels, "CHUNK", CHUNK)


@dataclass
class Case:
    group: dict[str, Any]
    shift: int = 0  # elements by which gradients are shifted from an address that is a multiple of 16

    def parameters(self, seed: int = 0) -> list[Tensor]:
        random = torch.Generator().manual_seed(seed)
        shapes = [shape for shape in SHAPES if self.group.get("parts", 1) == 1 or shape[0] % 3 == 0]
        values = [torch.randn(shape, generator=random) for shape in shapes]
        values[2].zero_()  # ‖p‖ = 0
        return [value.requires_grad_() for value in values]

    def groups(self, parameters: list[Tensor]) -> list[dict[str, Any]]:
        return [{"params": parameters, **self.group}]

    def set_gradients(self, parameters: list[Tensor], seed: int, scale: float = 1.0) -> None:
        """Set random gradients, in place if there are any, as views of one buffer like those of DDP's buckets."""
        random = torch.Generator().manual_seed(1000 + seed)
        gradients = [scale * torch.randn(p.shape, generator=random) for p in parameters]
        gradients[1].zero_()  # without weight decay ‖u‖ = 0
        if parameters[0].grad is None:
            whole = torch.zeros(self.shift + sum(p.numel() + 4 for p in parameters))
            start = self.shift
            for parameter in parameters:
                parameter.grad = whole[start : start + parameter.numel()].view(parameter.shape)
                start += (parameter.numel() + 3) // 4 * 4
        for parameter, gradient in zip(parameters, gradients, strict=True):
            assert parameter.grad is not None
            parameter.grad.copy_(gradient)


CASES = [
    Case({}),
    Case({}, shift=1),
    Case({"parts": 3, "weight_decay": 0.1}),
    Case({"adapt": False, "weight_decay": 0.0}, shift=2),
    Case({"weight_decay": 0.0, "betas": (0.8, 0.95), "eps": 1e-4}),
]
BY_CASE = pytest.mark.parametrize("case", CASES, ids=str)
F = np.float32


class Equations:
    """LAMB and AdamW in float32, every operation rounded once."""

    def __init__(self, parameters: list[Tensor], group: dict[str, Any], adamw: bool) -> None:
        self.group, self.adamw, self.steps = group, adamw, 0
        self.p = [p.detach().numpy().copy() for p in parameters]
        self.m, self.v = [np.zeros_like(p) for p in self.p], [np.zeros_like(p) for p in self.p]

    def step(self, gradients: list[np.ndarray], factors: tuple[F, F], squares: list[tuple[float, float]]) -> None:
        """`squares`: the kernel's squared norms of parameter and update for each part of each parameter.

        They are float32 sums, whose order decides their rounding; checked with those in float64.
        """
        self.steps += 1
        (beta1, beta2), eps, parts = self.group["betas"], F(self.group["eps"]), self.group.get("parts", 1)
        correction1, correction2 = 1 - beta1**self.steps, 1 - beta2**self.steps
        decay, rate = F(self.group["weight_decay"]), F(RATE)
        for number, gradient in enumerate(gradients):
            g, p = gradient * factors[0] * factors[1], self.p[number]
            self.m[number] = m = F(beta1) * self.m[number] + F(1 - beta1) * g
            self.v[number] = v = F(beta2) * self.v[number] + F(1 - beta2) * g * g
            if self.adamw:
                moved = rate / F(correction1) * m / (np.sqrt(v) / F(correction2**0.5) + eps)
                self.p[number] = p - rate * decay * p - moved
                continue
            u = (m / F(correction1)) / (np.sqrt(v / F(correction2)) + eps) + decay * p
            factor = np.empty_like(p)
            own = squares[parts * number : parts * (number + 1)]
            for place, (p_square, u_square) in zip(np.split(np.arange(len(p)), parts), own, strict=True):
                for found, values in ((p_square, p[place]), (u_square, u[place])):
                    assert found == pytest.approx(np.sum(values.astype(np.float64) ** 2), rel=1e-6)
                adapts = self.group["adapt"] and p_square > 0 and u_square > 0
                factor[place] = np.float64(rate) * (np.sqrt(p_square / u_square) if adapts else 1.0)
            self.p[number] = p - factor * u
        assert all(x.dtype == np.float32 for x in (*self.p, *self.m, *self.v))


def squares_of(optimizer: FusedOptimizer) -> list[tuple[float, float]]:
    """Squared norms of parameter and update of each tensor with a trust ratio, from the partial sums of its chunks."""
    assert optimizer._table is not None
    sums = optimizer._table._norm_sums.double()
    firsts = [(chunk[5], chunk[6]) for number, chunk in enumerate(optimizer._table._chunks) if chunk[5] == number]
    return [tuple(sums[first : first + count].sum(0).tolist()) for first, count in firsts]


def build(kind: type[Optimizer], groups: list[dict[str, Any]]) -> Any:
    if issubclass(kind, AdamW):
        for group in groups:
            group.pop("parts", None)
            group.pop("adapt", None)
        return kind(groups, lr=torch.tensor(RATE), betas=(0.9, 0.999), eps=1e-6, fused=True)
    return kind(groups, lr=torch.tensor(RATE))  # type: ignore[call-arg]


def state_of(optimizer: Optimizer) -> list[Tensor]:
    """Parameters, moments and step counts."""
    values = []
    for group in optimizer.param_groups:
        values += [tensor for p in group["params"] for tensor in (p, *optimizer.state[p].values())]
        values += [group["step"]] if "step" in group else []
    return [value.detach().clone() for value in values]


KINDS = {"lamb": (Lamb, FusedLamb), "adamw": (AdamW, FusedAdamW)}
BY_KIND = pytest.mark.parametrize("kind", list(KINDS))


@BY_CASE
@BY_KIND
def test_update_equals_the_equations_in_float32(kind: str, case: Case) -> None:
    """Bit for bit, with unscaling and clipping, over several chunks and odd sizes and addresses."""
    parameters = case.parameters()
    optimizer: FusedOptimizer = build(KINDS[kind][1], case.groups(parameters))
    (group,) = optimizer.param_groups
    equations = Equations(parameters, group, kind == "adamw")
    names = ("exp_avg", "exp_avg_sq") if kind == "adamw" else ("m", "v")
    for step in range(3):
        case.set_gradients(parameters, step, scale=64.0)
        gradients = [p.grad.numpy().copy() for p in parameters if p.grad is not None]
        unscale = torch.tensor(1 / 48) if step else torch.tensor(1 / 64)
        assert float(optimizer.measure_gradients(unscale)) == 0
        norm = optimizer.clip_gradients(1.0 if step < 2 else 1e6)
        expected = np.sqrt(sum(np.sum((g.astype(np.float64) * float(unscale)) ** 2) for g in gradients))
        assert float(norm) == pytest.approx(expected, rel=1e-6)
        clip = (torch.tensor(1.0 if step < 2 else 1e6) / (norm + 1e-6)).clamp(max=1.0)
        optimizer.step()
        equations.step(gradients, (F(unscale), F(clip)), squares_of(optimizer))
        for number, parameter in enumerate(parameters):
            for name, value in zip(names, (equations.m, equations.v), strict=True):
                assert np.array_equal(optimizer.state[parameter][name].numpy(), value[number]), (step, number, name)
            assert np.array_equal(parameter.detach().numpy(), equations.p[number]), (step, number)
            assert parameter.grad is not None and not parameter.grad.any()


@pytest.mark.parametrize("case", CASES[1:4], ids=str)
@BY_KIND
def test_update_equals_the_plain_optimizers(kind: str, case: Case) -> None:
    """With PyTorch's unscaling and clipping before the plain step, and without; then checkpoints are exchanged."""
    ends = []
    for fused in (False, True):
        parameters = case.parameters()
        optimizer = build(KINDS[kind][fused], case.groups(parameters))
        for step in range(4):
            case.set_gradients(parameters, step, scale=32.0)
            if step % 2 and fused:
                optimizer.measure_gradients(torch.tensor(1 / 32))
                optimizer.clip_gradients(0.7)
            elif step % 2:
                for parameter in parameters:
                    assert parameter.grad is not None
                    parameter.grad.mul_(1 / 32)
                clip_grad_norm_(parameters, 0.7)
            optimizer.step()
        ends.append(state_of(optimizer))
        if fused:
            other_parameters = [p.detach().clone().requires_grad_() for p in parameters]
            other = build(KINDS[kind][0], case.groups(other_parameters))
            other.load_state_dict(optimizer.state_dict())
            back_parameters = [p.detach().clone().requires_grad_() for p in parameters]
            back = build(KINDS[kind][1], case.groups(back_parameters))
            back.load_state_dict(other.state_dict())
            for values, its in ((other_parameters, other), (back_parameters, back)):
                # load_state_dict keeps the tensors of the same type: these are not to share them.
                its.load_state_dict(torch.utils._pytree.tree_map(copied, its.state_dict()))
                case.set_gradients(values, 9)
                its.step()
            case.set_gradients(parameters, 9)
            optimizer.step()
            assert all(torch.equal(a, b) for a, b in zip(state_of(optimizer), state_of(back), strict=True))
            ends += [state_of(optimizer), state_of(other)]
    for pair in (ends[:2], ends[2:]):
        for one, two in zip(*pair, strict=True):
            assert one.dtype == two.dtype
            assert float((one - two).norm()) <= 2e-6 * float(one.norm())


def copied(value: object) -> object:
    return value.clone() if isinstance(value, Tensor) else value


@BY_KIND
@pytest.mark.parametrize(
    ("bad", "by"), [(float("-inf"), "measured"), (float("nan"), "measured"), (float("nan"), "scaler"), (1e30, "scaler")]
)
def test_overflowing_step_changes_nothing_and_clears_the_gradients(kind: str, bad: float, by: str) -> None:
    """In the first step and in a later one. The step count stays, and the next step is as without it."""
    case = Case({"parts": 3} if kind == "lamb" else {}, shift=1)
    parameters, other = case.parameters(), case.parameters()
    optimizer, without = build(KINDS[kind][1], case.groups(parameters)), build(KINDS[kind][1], case.groups(other))
    for step in range(2):
        case.set_gradients(parameters, step)
        assert parameters[1].grad is not None
        parameters[1].grad[1, 2] = bad
        before = [p.detach().clone() for p in parameters] if step == 0 else state_of(optimizer)
        if by == "measured":
            assert float(optimizer.measure_gradients(torch.ones(()))) == 1
            optimizer.clip_gradients(1.0)
        optimizer.found_inf, optimizer.grad_scale = torch.tensor(1.0), None
        optimizer.step()
        del optimizer.found_inf, optimizer.grad_scale
        now = state_of(optimizer)
        same = parameters if step == 0 else now
        assert all(torch.equal(a, b) for a, b in zip(before, same, strict=True))
        assert step or not any(tensor.any() for tensor in now if not any(torch.equal(tensor, p) for p in parameters))
        assert not any(p.grad.any() for p in parameters if p.grad is not None)
        for values, its in ((parameters, optimizer), (other, without)):
            case.set_gradients(values, 5 + step)
            its.step()
        assert all(torch.equal(a, b) for a, b in zip(state_of(optimizer), state_of(without), strict=True))


@BY_KIND
@pytest.mark.parametrize("way", ["before", "by the step"])
def test_pytorchs_loss_scaling_does_not_change_the_step(kind: str, way: str) -> None:
    """torch.amp.GradScaler itself, without the methods of a fused optimizer. The scale is not a power of two."""
    case, ends = Case({}), []
    for scale in (1.0, 80.0):
        parameters = case.parameters()
        optimizer = build(KINDS[kind][1], case.groups(parameters))
        scaler = torch.amp.GradScaler("cpu", init_scale=scale, enabled=scale != 1.0)
        scaler.scale(torch.ones(()))
        for step in range(2):
            case.set_gradients(parameters, step, scale=scale)
            if way == "before":
                scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
        ends.append(state_of(optimizer))
    for one, other in zip(*ends, strict=True):
        torch.testing.assert_close(one, other, rtol=2e-6, atol=1e-7)


@BY_KIND
def test_a_gradient_that_backward_overwrites_is_kept(kind: str) -> None:
    case = Case({})
    parameters = case.parameters()
    parameters[0].overwritten_gradient = True  # type: ignore[attr-defined]
    optimizer = build(KINDS[kind][1], case.groups(parameters))
    case.set_gradients(parameters, 0)
    kept = [p.grad.clone() for p in parameters if p.grad is not None]
    optimizer.measure_gradients(torch.tensor(0.5))
    optimizer.step()
    assert parameters[0].grad is not None and torch.equal(parameters[0].grad, kept[0])
    assert not any(p.grad.any() for p in parameters[1:] if p.grad is not None)


@BY_KIND
def test_parameters_without_gradients_are_unchanged(kind: str) -> None:
    case = Case({})
    parameters = case.parameters()
    optimizer = build(KINDS[kind][1], case.groups(parameters))
    optimizer.step()
    assert float(optimizer.measure_gradients(torch.ones(()))) == 0
    assert float(optimizer.clip_gradients(1.0)) == 0
    assert not optimizer.state
    before = [p.detach().clone() for p in parameters]
    parameters[3].grad = torch.ones_like(parameters[3])
    optimizer.step()
    assert [torch.equal(p, b) for p, b in zip(parameters, before, strict=True)] == [True, True, True, False, True]
    assert list(optimizer.state) == [parameters[3]]


def test_the_table_is_rebuilt_only_when_it_is_out_of_date(monkeypatch: pytest.MonkeyPatch) -> None:
    """An address, a hyper-parameter or the flag of a parameter."""
    built: list[kernels.TensorTable] = []

    def build_table(*arguments: Any, of: type = kernels.TensorTable) -> kernels.TensorTable:
        built.append(of(*arguments))
        return built[-1]

    monkeypatch.setattr(kernels, "TensorTable", build_table)
    case = Case({})
    parameters = case.parameters()
    optimizer = build(FusedLamb, case.groups(parameters))

    def step(count: int, seed: int) -> None:
        case.set_gradients(parameters, seed)
        optimizer.measure_gradients(torch.ones(()))
        optimizer.step()
        assert len(built) == count

    step(1, 0)
    step(1, 1)
    assert parameters[1].grad is not None
    former, parameters[1].grad = parameters[1].grad, parameters[1].grad.clone()
    step(2, 2)
    assert former is not parameters[1].grad
    optimizer.load_state_dict(torch.utils._pytree.tree_map(copied, optimizer.state_dict()))
    step(3, 3)
    optimizer.param_groups[0]["weight_decay"] = 0.5
    step(4, 4)
    parameters[0].overwritten_gradient = True  # type: ignore[attr-defined]
    step(5, 5)


@pytest.mark.parametrize(("shift", "aligned"), [(0, True), (1, False), (2, False), (4, True)])
def test_wide_accesses_are_used_only_where_addresses_and_sizes_are_multiples_of_16_bytes(
    shift: int, aligned: bool
) -> None:
    whole = torch.zeros(2 * CHUNK + 8)
    address = whole.data_ptr() % 16 // 4
    gradient = whole[-address % 4 + shift :][: CHUNK + 4]
    others = [torch.zeros(CHUNK + 4) for _ in range(3)]
    assert all(other.data_ptr() % 16 == 0 for other in others)
    row = [[0.9, 0.999, 1e-6, 0.0, 1.0]]
    for size, expected in ((CHUNK + 4, [aligned] * 2), (CHUNK + 3, [aligned, False])):
        p, g, m, v = (t[:size] for t in (others[0], gradient, *others[1:]))
        table = kernels.TensorTable([kernels.Piece(p, g, (m, v), 0, True)], row)
        assert [bool(chunk[-1] & kernels.ALIGNED.value) for chunk in table._chunks] == expected


# Steps of a small model.

Start = Callable[..., tuple[Stepper, TrainingOrder]]


@pytest.fixture
def start(
    make_store: Callable[..., SampleStore],
    make_config: Callable[..., RunConfig],
    make_model: Callable[..., BertForPreTraining],
    make_stepper: Callable[..., Stepper],
    make_order: Callable[[SampleStore, RunConfig], TrainingOrder],
    small: Size,
) -> Start:
    store = make_store(np.random.default_rng(0).integers(5, 60, 40))

    def begin(fused: bool, algorithm: str, precision: str = "fp32", **settings: Any) -> tuple[Stepper, TrainingOrder]:
        config = make_config(
            global_batch_size=4,
            gradient_bucket_mib=0.01,
            optimizer={"algorithm": algorithm, "warmup_steps": 0, "learning_rate": 0.01, "decay_steps": 50},
            **settings,
        )
        model = make_model(size=replace(small, layers=1))
        stepper = make_stepper(config, model, precision)
        stepper.optimizer = build_optimizer(model, config.optimizer, fused)
        return stepper, make_order(store, config)

    return begin


@pytest.mark.parametrize(
    ("algorithm", "precision", "accumulation", "clipping"),
    [
        ("lamb", "fp32", 2, Clipping(max_norm=0.5)),
        ("lamb", "fp16", 1, Clipping(max_norm=0.5)),
        ("lamb", "fp16", 1, Clipping(max_norm=0.5, when="bucket")),
        ("adamw", "fp32", 1, None),
        ("adamw", "fp16", 1, Clipping(max_norm=1e6)),
    ],
)
def test_steps_equal_those_of_the_plain_optimizer(
    algorithm: str, precision: str, accumulation: int, clipping: Clipping | None, start: Start
) -> None:
    """All results of each step, and at the end all weights and states. In fp16 the first steps overflow."""
    ends, results = [], []
    for fused in (False, True):
        stepper, order = start(
            fused,
            algorithm,
            precision,
            clipping=clipping,
            gradient_accumulation_steps=accumulation,
            loss_scaling=LossScaling(initial=2.0**18),
        )
        assert isinstance(stepper.optimizer, FusedOptimizer) is fused
        taken = [vars(stepper.take(read_step(order, number, 0), PhaseClock())) for number in range(3)]
        results.append(taken)
        ends.append(state_of(stepper.optimizer))
        gradients = [p.grad for p in stepper.model.parameters() if p.grad is not None]
        assert any(gradient.any() for gradient in gradients) is not fused
    for plain, found in zip(*results, strict=True):
        for name, value in plain.items():
            if name == "work_ms":  # which is measured
                continue
            tolerance = 1e-3 if precision == "fp16" else 1e-5
            torch.testing.assert_close(found[name], value, rtol=tolerance, atol=1e-6, equal_nan=True)
    overflows = [1 - float(result["taken"]) for result in results[0]]
    assert (sum(overflows) > 0) is (precision == "fp16") and overflows[-1] == 0
    for one, two in zip(*ends, strict=True):
        difference = float((one.double() - two.double()).norm())
        assert difference <= (2e-2 if precision == "fp16" else 1e-4) * max(float(one.norm()), 1e-6)


def test_warm_up_is_undone(start: Start) -> None:
    """Gradients too, although steps leave them at 0: a captured step is not undone by the next."""
    stepper, order = start(True, "lamb", clipping=Clipping(max_norm=0.5))
    saved = _snapshot(stepper)
    before = [p.detach().clone() for p in stepper.model.parameters()]
    stepper.take(read_step(order, 0, 0), PhaseClock())
    first = state_of(stepper.optimizer)
    _restore(stepper, saved)
    assert all(torch.equal(p, b) for p, b in zip(stepper.model.parameters(), before, strict=True))
    stepper.take(read_step(order, 0, 0), PhaseClock())
    assert all(torch.equal(a, b) for a, b in zip(state_of(stepper.optimizer), first, strict=True))
