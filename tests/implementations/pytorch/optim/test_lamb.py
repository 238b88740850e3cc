"""LAMB compared with its equations in numpy."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from implementations.pytorch.optim import lamb as lamb_module
from implementations.pytorch.optim.lamb import Lamb

Arrays = list[np.ndarray]


def lamb(
    parameters: Arrays,
    gradients: list[Arrays],
    lr: float,
    betas: tuple[float, float],
    eps: float,
    decay: float,
    adapt: bool,
) -> Arrays:
    """Parameters after one step for each list of gradients."""
    beta1, beta2 = betas
    after = []
    for number, parameter in enumerate(parameters):
        p = parameter.copy()
        m, v = np.zeros_like(p), np.zeros_like(p)
        for step, step_gradients in enumerate(gradients, start=1):
            g = step_gradients[number]
            m = beta1 * m + (1 - beta1) * g
            v = beta2 * v + (1 - beta2) * g * g
            u = (m / (1 - beta1**step)) / (np.sqrt(v / (1 - beta2**step)) + eps) + decay * p
            p_norm, u_norm = np.sqrt(np.sum(p * p)), np.sqrt(np.sum(u * u))
            ratio = p_norm / u_norm if adapt and p_norm > 0 and u_norm > 0 else 1.0
            p = p - lr * ratio * u
        after.append(p)
    return after


def step_with(optimizer: Lamb, parameters: list[torch.Tensor], gradients: list[Arrays]) -> None:
    for step_gradients in gradients:
        for parameter, gradient in zip(parameters, step_gradients, strict=True):
            parameter.grad = torch.from_numpy(gradient.copy())
        optimizer.step()


@given(
    lr=st.floats(1e-5, 1.0),
    betas=st.tuples(st.floats(0, 0.99), st.floats(0, 0.9999)),
    eps=st.sampled_from([1e-8, 1e-6, 1e-2]),
    decay=st.sampled_from([0.0, 0.01, 0.5]),
    adapt=st.booleans(),
    steps=st.integers(1, 6),
    seed=st.integers(0, 100),
)
@settings(deadline=None)
def test_lamb_matches_its_equations(
    lr: float, betas: tuple[float, float], eps: float, decay: float, adapt: bool, steps: int, seed: int
) -> None:
    """Also for zero parameters, zero gradients and both, where the trust ratio is 1."""
    random = np.random.default_rng(seed)
    shapes = [(5, 4), (7,), (3, 3), (6, 2), (2, 2)]
    before = [random.normal(size=shape) for shape in shapes]
    gradients = [[random.normal(size=shape) for shape in shapes] for _ in range(steps)]
    before[2][:] = before[4][:] = 0.0
    for step_gradients in gradients:
        step_gradients[3][:] = step_gradients[4][:] = 0.0
    parameters = [torch.from_numpy(array.copy()).requires_grad_() for array in before]
    step_with(Lamb(parameters, lr, betas, eps, decay, adapt), parameters, gradients)
    for found, expected in zip(parameters, lamb(before, gradients, lr, betas, eps, decay, adapt), strict=True):
        np.testing.assert_allclose(found.detach().numpy(), expected, rtol=1e-9, atol=1e-12)


def test_zero_parameter_moves_by_the_learning_rate() -> None:
    """‖p‖ = 0: the ratio is 1, and the first step of every element is lr · sign(g)."""
    parameter = torch.zeros(3, 2, dtype=torch.float64, requires_grad=True)
    step_with(Lamb([parameter], 0.1, eps=1e-12), [parameter], [[np.array([[1.0, -2], [3, -4], [5, -6]])]])
    np.testing.assert_allclose(parameter.detach().numpy(), [[-0.1, 0.1]] * 3)


def test_zero_update_is_no_division_by_zero() -> None:
    parameter = torch.ones(3, requires_grad=True)
    step_with(Lamb([parameter], 0.1, weight_decay=0.0), [parameter], [[np.zeros(3, dtype=np.float32)]] * 3)
    assert parameter.tolist() == [1, 1, 1]


def test_groups_have_separate_settings() -> None:
    random = np.random.default_rng(0)
    before = [random.normal(size=(4, 4)), random.normal(size=4)]
    gradients = [[random.normal(size=a.shape) for a in before] for _ in range(4)]
    parameters = [torch.from_numpy(array.copy()).requires_grad_() for array in before]
    groups = [
        {"params": parameters[:1], "weight_decay": 0.1, "adapt": True},
        {"params": parameters[1:], "weight_decay": 0.0, "adapt": False, "lr": 0.3},
    ]
    step_with(Lamb(groups, 0.02), parameters, gradients)
    betas = (0.9, 0.999)
    matrix = lamb(before[:1], [g[:1] for g in gradients], 0.02, betas, 1e-6, 0.1, True)
    vector = lamb(before[1:], [g[1:] for g in gradients], 0.3, betas, 1e-6, 0.0, False)
    for found, expected in zip(parameters, matrix + vector, strict=True):
        np.testing.assert_allclose(found.detach().numpy(), expected, rtol=1e-9)


@pytest.mark.parametrize("parts", [1, 2, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_matrix_in_parts_equals_separate_matrices(parts: int, dtype: torch.dtype) -> None:
    """Bit for bit, with one trust ratio per part; one part is zero, and one has zero gradients."""
    random = torch.Generator().manual_seed(0)
    scales = torch.tensor([0.01, 1.0, 0.0], dtype=dtype)[:parts].repeat_interleave(4)[:, None]
    before = torch.randn(4 * parts, 5, generator=random, dtype=dtype) * scales
    other = torch.randn(6, 2, generator=random, dtype=dtype)
    gradients = [torch.randn(4 * parts, 5, generator=random, dtype=dtype) for _ in range(5)]
    for gradient in gradients:
        gradient[:4] = 0.0
    fused, other_fused = before.clone().requires_grad_(), other.clone().requires_grad_()
    separate = [part.clone().requires_grad_() for part in before.chunk(parts)]
    other_apart = other.clone().requires_grad_()
    one = Lamb([{"params": [fused], "parts": parts}, {"params": [other_fused]}], 0.1)
    many = Lamb([*separate, other_apart], 0.1)
    for gradient in gradients:
        fused.grad, other_fused.grad, other_apart.grad = gradient.clone(), other.clone(), other.clone()
        for part, part_gradient in zip(separate, gradient.chunk(parts), strict=True):
            part.grad = part_gradient.clone()
        one.step()
        many.step()
    assert torch.equal(fused, torch.cat(separate))
    assert torch.equal(other_fused, other_apart)
    assert not torch.equal(fused, before)
    assert one.state[fused]["m"].shape == fused.shape
    assert torch.equal(one.state[fused]["v"], torch.cat([many.state[part]["v"] for part in separate]))
    if parts > 1:
        whole = before.clone().requires_grad_()
        as_one = Lamb([whole], 0.1)
        for gradient in gradients:
            whole.grad = gradient.clone()
            as_one.step()
        assert not torch.allclose(whole, fused, rtol=1e-3)


def test_saved_state_is_resumed() -> None:
    random = np.random.default_rng(0)
    before = [random.normal(size=(4, 3))]
    gradients = [[random.normal(size=(4, 3))] for _ in range(5)]
    parameter = torch.from_numpy(before[0].copy()).requires_grad_()
    first = Lamb([parameter], 0.1)
    step_with(first, [parameter], gradients[:2])
    second = Lamb([parameter], 0.1)
    second.load_state_dict(first.state_dict())
    step_with(second, [parameter], gradients[2:])
    expected = lamb(before, gradients, 0.1, (0.9, 0.999), 1e-6, 0.01, True)[0]
    np.testing.assert_allclose(parameter.detach().numpy(), expected, rtol=1e-9)


def test_parameter_without_gradient_is_unchanged() -> None:
    still, moved = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    moved.grad = torch.ones(2)
    Lamb([still, moved], 0.1).step()
    assert still.tolist() == [1, 1]
    assert moved.tolist() != [1, 1]


@pytest.mark.parametrize("adapt", [True, False])
@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize("parts", [1, 3])
def test_compiled_update_equals_the_foreach_update(
    adapt: bool, decay: float, parts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """float32 on a CPU uses compiled loops: several blocks, odd sizes, zero parameters and gradients."""
    random = torch.Generator().manual_seed(0)
    shapes = [(3, 30_001), (6, 7), (3, 5), (3, 4)]
    before = [torch.randn(shape, generator=random) for shape in shapes]
    gradients = [[torch.randn(shape, generator=random) for shape in shapes] for _ in range(4)]
    before[2].zero_()
    for step_gradients in gradients:
        step_gradients[3].zero_()
    ends = []
    for compiled in (True, False):
        if not compiled:
            monkeypatch.setattr(lamb_module, "update_compiled", lamb_module.update_foreach)
        parameters = [value.clone().requires_grad_() for value in before]
        group = {"params": parameters, "adapt": adapt, "weight_decay": decay, "parts": parts}
        optimizer = Lamb([group], torch.tensor(0.02))
        for step_gradients in gradients:
            for parameter, gradient in zip(parameters, step_gradients, strict=True):
                parameter.grad = gradient.clone()
            optimizer.step()
        states = [optimizer.state[p][key] for p in parameters for key in ("m", "v")]
        ends.append([p.detach() for p in parameters] + states)
    for found, expected in zip(*ends, strict=True):
        assert float((found - expected).norm()) <= 2e-6 * float(expected.norm())


def test_step_count_is_a_tensor_and_saved() -> None:
    parameter = torch.ones(2, requires_grad=True)
    optimizer = Lamb([parameter], 0.1)
    for _ in range(3):
        parameter.grad = torch.ones(2)
        optimizer.step()
    (group,) = optimizer.state_dict()["param_groups"]
    assert isinstance(group["step"], torch.Tensor)
    assert float(group["step"]) == 3


SHAPES = [(6, 5), (3, 7), (4,)]
GROUPS = pytest.mark.parametrize("group", [{}, {"parts": 3}, {"adapt": False, "weight_decay": 0.0}])


def make(group: dict[str, Any], dtype: torch.dtype = torch.float32) -> tuple[Lamb, list[torch.Tensor]]:
    random = torch.Generator().manual_seed(0)
    shapes = SHAPES[:2] if "parts" in group else SHAPES
    parameters = [torch.randn(shape, generator=random, dtype=dtype).requires_grad_() for shape in shapes]
    return Lamb([{"params": parameters, **group}], torch.tensor(0.1, dtype=dtype)), parameters


def take_step(optimizer: Lamb, seed: int, found_inf: float | None = None, bad: float | None = None) -> None:
    """Take a step as `torch.amp.GradScaler` does, with one gradient element set to `bad`."""
    random = torch.Generator().manual_seed(seed)
    for parameter in optimizer.param_groups[0]["params"]:
        parameter.grad = torch.randn(parameter.shape, generator=random, dtype=parameter.dtype)
        if bad is not None:
            parameter.grad.view(-1)[1] = bad
    if found_inf is not None:
        optimizer.found_inf = torch.tensor(found_inf)  # type: ignore[attr-defined]
        optimizer.grad_scale = None  # type: ignore[attr-defined]
    optimizer.step()
    if found_inf is not None:
        del optimizer.found_inf, optimizer.grad_scale  # type: ignore[attr-defined]


def state_of(optimizer: Lamb) -> list[torch.Tensor]:
    (group,) = optimizer.param_groups
    moments = [optimizer.state[p][key] for p in group["params"] for key in ("m", "v")]
    return [tensor.detach().clone() for tensor in (*group["params"], *moments, group["step"])]


@GROUPS
@pytest.mark.parametrize("bad", [float("inf"), float("-inf"), float("nan"), 1e30])
def test_overflowing_step_changes_nothing(group: dict[str, Any], bad: float) -> None:
    """In the first step and in a later one. The square of 1e30 is infinite and must not reach the state either."""
    optimizer, parameters = make(group)
    start = [p.detach().clone() for p in parameters]
    take_step(optimizer, 0, found_inf=1.0, bad=bad)
    assert all(torch.equal(p, before) for p, before in zip(parameters, start, strict=True))
    assert not any(tensor.any() for tensor in state_of(optimizer)[len(parameters) :])
    without, _ = make(group)
    for seed in range(3):
        take_step(optimizer, seed, found_inf=0.0)
        before = state_of(optimizer)
        take_step(optimizer, 7, found_inf=1.0, bad=bad)
        assert all(torch.equal(a, b) for a, b in zip(state_of(optimizer), before, strict=True))
        take_step(without, seed, found_inf=0.0)
    assert all(torch.equal(a, b) for a, b in zip(state_of(optimizer), state_of(without), strict=True))
    assert not any(torch.equal(p, before) for p, before in zip(parameters, start, strict=True))


@GROUPS
def test_loss_scaling_does_not_change_the_step(group: dict[str, Any]) -> None:
    """With PyTorch's GradScaler, and gradients unscaled before the step or by it."""
    ends = []
    for way in ("plain", "before", "by the step"):
        optimizer, parameters = make(group)
        scaler = torch.amp.GradScaler("cpu", init_scale=64.0, enabled=way != "plain")
        for seed in range(3):
            random = torch.Generator().manual_seed(seed)
            optimizer.zero_grad()
            loss = sum(((p * torch.randn(p.shape, generator=random)).sum() for p in parameters), torch.zeros(()))
            scaler.scale(loss).backward()
            if way == "before":
                scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
        ends.append(state_of(optimizer))
    for end in ends[1:]:
        for found, expected in zip(end, ends[0], strict=True):
            torch.testing.assert_close(found, expected, rtol=2e-6, atol=1e-7)


def test_transposed_parameter_is_updated() -> None:
    values = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    gradient = torch.randn(3, 5, generator=torch.Generator().manual_seed(1))
    plain, transposed = values.t().clone(memory_format=torch.contiguous_format), values.clone().t()
    for parameter in (plain, transposed):
        parameter.requires_grad_()
        parameter.grad = gradient.clone()
        Lamb([parameter], 0.1).step()
    torch.testing.assert_close(transposed, plain, rtol=1e-6, atol=0)
