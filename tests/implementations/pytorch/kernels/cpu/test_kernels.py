"""The numba kernels compared with the eager kernels in float64, forward and backward, with recomputed dropout masks."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from implementations.pytorch.data.batch import IGNORED
from implementations.pytorch.kernels.choose import load_kernels
from implementations.pytorch.kernels.cpu import attention_weights as attention_module
from implementations.pytorch.kernels.cpu import embedding as embedding_module
from implementations.pytorch.kernels.cpu import norm as norm_module
from implementations.pytorch.kernels.cpu.kernel_set import NUMBA
from implementations.pytorch.kernels.eager import EAGER
from implementations.pytorch.kernels.interface import dropout_threshold_and_scale
from tests.implementations.pytorch.kernels.cpu.masks import kept_mask

Error = Callable[[Tensor, Tensor], float]
Call = Callable[..., Tensor]
# Relative to the norm of the whole tensor; bfloat16 has eight significant bits.
TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 1e-2}
TYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])


def normal(*shape: int, seed: int = 0, scale: float = 1.0) -> Tensor:
    return scale * torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def run(call: Call, activations: list[Tensor], parameters: list[Tensor], dtype: torch.dtype) -> list[Tensor]:
    """Result and all gradients, activations in `dtype` and parameters in float32 (or both in float64)."""
    other = torch.float64 if dtype == torch.float64 else torch.float32
    inputs = [a.to(dtype).requires_grad_() for a in activations] + [p.to(other).requires_grad_() for p in parameters]
    result = call(*inputs)
    upstream = normal(*result.shape, seed=99).to(result.dtype)
    return [result, *torch.autograd.grad(result, inputs, upstream)]


def assert_same(
    kernel: Call, reference: Call, activations: list[Tensor], parameters: list[Tensor], dtype: torch.dtype, error: Error
) -> None:
    rounded = [a.to(dtype).double() for a in activations]
    expected = run(reference, rounded, [p.float().double() for p in parameters], torch.float64)
    for number, (one, other) in enumerate(zip(run(kernel, rounded, parameters, dtype), expected, strict=True)):
        assert one.dtype == (dtype if number <= len(activations) and one.dim() else torch.float32)
        small = float(one.double().norm()) if not other.any() else error(one, other)
        assert small < TOLERANCE[dtype], number


@pytest.fixture
def seeds(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """The seeds that kernels draw, in order."""
    drawn: list[Tensor] = []
    for module in (norm_module, attention_module, embedding_module):
        draw = module.draw_seed

        def noted(probability: float, draw: Callable[[float], Tensor] = draw) -> Tensor:
            drawn.append(draw(probability))
            return drawn[-1]

        monkeypatch.setattr(module, "draw_seed", noted)
    return drawn


def mask(seed: Tensor, rows: int, columns: int, probability: float) -> Tensor:
    return kept_mask(seed, rows, columns, probability).double() * dropout_threshold_and_scale(probability)[1]


@TYPES
@pytest.mark.parametrize(("tokens", "width"), [(1, 8), (37, 96), (130, 33)])
def test_bias_gelu(dtype: torch.dtype, tokens: int, width: int, relative_error: Error) -> None:
    x, bias = normal(tokens, width, scale=3), normal(width, seed=1)
    assert_same(NUMBA.bias_gelu, EAGER.bias_gelu, [x], [bias], dtype, relative_error)


def test_gelu_of_large_numbers() -> None:
    x = torch.tensor([[-1e4, -100.0, -20.0, 0.0, 20.0, 100.0, 1e4, float("nan")]])
    found = NUMBA.bias_gelu(x, torch.zeros(8))
    assert torch.allclose(found[0, :7], torch.tensor([0, 0, 0, 0, 20.0, 100.0, 1e4]), atol=1e-30)
    assert found[0, 7].isnan()


@TYPES
@pytest.mark.parametrize("probability", [0.0, 0.1])
@pytest.mark.parametrize(("tokens", "width"), [(1, 8), (37, 96), (130, 33)])
def test_residual_norm(
    dtype: torch.dtype, probability: float, tokens: int, width: int, seeds: list[Tensor], relative_error: Error
) -> None:
    activations = [normal(tokens, width, seed=n) for n in (1, 2)]
    parameters = [normal(width, seed=n) for n in (3, 4, 5)]
    keeps = torch.ones(tokens, width, dtype=torch.float64)

    def kernel(*inputs: Tensor) -> Tensor:
        result = NUMBA.residual_norm(*inputs, probability)  # type: ignore[call-arg,misc]
        if probability:
            keeps.copy_(mask(seeds[-1], tokens, width, probability))
        return result

    def reference(x: Tensor, update: Tensor, update_bias: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        zero = torch.zeros_like(update_bias)
        return EAGER.residual_norm(x, (update + update_bias) * keeps, zero, weight, bias, 0.0)

    torch.manual_seed(0)
    run(kernel, activations, parameters, dtype)  # the seed that is drawn here is the one drawn below
    torch.manual_seed(0)
    assert_same(kernel, reference, activations, parameters, dtype, relative_error)
    assert not probability or tokens == 1 or 0 < float((keeps == 0).double().mean()) < 0.3


@TYPES
@pytest.mark.parametrize("probability", [0.0, 0.25])
def test_embedding_norm(dtype: torch.dtype, probability: float, seeds: list[Tensor], relative_error: Error) -> None:
    tokens, width = 41, 48
    ids = tuple(torch.randint(0, n, (tokens,), generator=torch.Generator().manual_seed(n)) for n in (30, 20, 2))
    parameters = [normal(n, width, seed=n) for n in (30, 20, 2)] + [normal(width, seed=n) for n in (3, 4)]
    keeps = torch.ones(tokens, width, dtype=torch.float64)

    def kernel(*inputs: Tensor) -> Tensor:
        result = NUMBA.embedding_norm(ids, inputs[:3], *inputs[3:], probability, dtype)  # type: ignore[arg-type]
        if probability:
            keeps.copy_(mask(seeds[-1], tokens, width, probability))
        return result

    found = run(kernel, [], parameters, torch.float32)
    assert found[0].dtype == dtype

    def reference(*inputs: Tensor) -> Tensor:
        return keeps * EAGER.embedding_norm(ids, inputs[:3], *inputs[3:], 0.0, torch.float64)  # type: ignore[arg-type]

    expected = run(reference, [], [p.float().double() for p in parameters], torch.float64)
    for one, other in zip(found, expected, strict=True):
        assert relative_error(one, other) < TOLERANCE[dtype]


@TYPES
@pytest.mark.parametrize("probability", [0.0, 1e-6, 0.1])
@pytest.mark.parametrize(("heads", "counts", "width"), [(1, [1], 1), (2, [32, 17, 1], 32), (3, [65, 65], 65)])
def test_attention_weights(
    dtype: torch.dtype,
    probability: float,
    heads: int,
    counts: list[int],
    width: int,
    seeds: list[Tensor],
    relative_error: Error,
) -> None:
    rows, key_counts = len(counts), torch.tensor(counts, dtype=torch.int32)
    keeps = torch.ones(heads, rows, width, width, dtype=torch.float64)

    def kernel(scores: Tensor) -> Tensor:
        result = NUMBA.attention_weights(scores, key_counts, probability)
        if probability:
            keeps.copy_(mask(seeds[-1], heads * rows * width, width, probability).view(heads, rows, width, width))
        return result

    def reference(scores: Tensor) -> Tensor:
        return keeps * EAGER.attention_weights(scores, key_counts, 0.0)

    scores = [normal(heads, rows, width, width, scale=2)]
    torch.manual_seed(0)
    found = run(kernel, scores, [], dtype)
    torch.manual_seed(0)
    assert_same(kernel, reference, scores, [], dtype, relative_error)
    for row, count in enumerate(counts):
        assert not found[0][:, row, :, count:].any()
        assert not found[1][:, row, :, count:].any()


def test_attention_of_scores_of_any_size() -> None:
    counts = torch.tensor([3], dtype=torch.int32)
    for shift in (-1e4, 0.0, 1e4):
        found = NUMBA.attention_weights(torch.tensor([[[[0.0, 1.0, 2.0]]]]) + shift, counts, 0.0)
        assert torch.allclose(found, torch.softmax(torch.tensor([0.0, 1.0, 2.0]), 0).expand(1, 1, 1, 3), rtol=1e-3)
    assert NUMBA.attention_weights(torch.tensor([[[[0.0, float("nan"), 2.0]]]]), counts, 0.0).isnan().all()


@TYPES
@pytest.mark.parametrize(("masked", "vocabulary_size"), [(1, 3), (37, 1003), (64, 512)])
def test_cross_entropy(dtype: torch.dtype, masked: int, vocabulary_size: int, relative_error: Error) -> None:
    labels = torch.randint(0, vocabulary_size, (masked,), generator=torch.Generator().manual_seed(0))
    labels[1::5] = IGNORED
    logits = normal(masked, vocabulary_size, scale=4)
    assert_same(
        lambda x: NUMBA.cross_entropy(x, labels),
        lambda x: torch.nn.functional.cross_entropy(x, labels, ignore_index=IGNORED, reduction="sum"),
        [logits],
        [],
        dtype,
        relative_error,
    )


def test_cross_entropy_of_ignored_labels_and_of_nan() -> None:
    logits = normal(4, 9).float().requires_grad_()
    loss = NUMBA.cross_entropy(logits, torch.full((4,), IGNORED))
    (gradient,) = torch.autograd.grad(loss, logits)
    assert float(loss.detach()) == 0
    assert not gradient.any()
    broken = logits.detach().clone()
    broken[2, 3] = float("nan")
    assert NUMBA.cross_entropy(broken, torch.zeros(4, dtype=torch.int64)).isnan()


@pytest.mark.parametrize("name", ["residual_norm", "attention_weights", "embedding_norm"])
def test_dropout_preserves_the_mean(name: str) -> None:
    """The mean over many masks approaches the result without dropout, where the kernel is (nearly) linear in them."""
    torch.manual_seed(1)
    if name == "attention_weights":
        scores, counts = normal(2, 3, 16, 16).float(), torch.tensor([16, 9, 2], dtype=torch.int32)
        call: Any = lambda p: NUMBA.attention_weights(scores, counts, p)  # noqa: E731
    elif name == "embedding_norm":
        ids = (torch.arange(5), torch.arange(5), torch.zeros(5, dtype=torch.int64))
        tables = (normal(5, 16).float(), normal(5, 16, seed=1).float(), normal(2, 16, seed=2).float())
        call = lambda p: NUMBA.embedding_norm(ids, tables, torch.ones(16), torch.zeros(16), p, torch.float32)  # noqa: E731
    else:  # with a dominant residual the norm is nearly linear in the update
        x, update = 100 * normal(5, 16).float(), normal(5, 16, seed=1).float()
        call = lambda p: NUMBA.residual_norm(x, update, torch.zeros(16), torch.ones(16), torch.zeros(16), p)  # noqa: E731
    mean = torch.stack([call(0.5) for _ in range(4000)]).mean(0)
    assert torch.allclose(mean, call(0.0), atol=0.1)
    assert not torch.equal(call(0.5), call(0.5))


def test_number_of_torch_threads_is_unchanged() -> None:
    """Also in a new process, where numba starts its threads, which would set torch's number to that of the cores."""
    torch.set_num_threads(2)
    load_kernels("numba")
    assert torch.get_num_threads() == 2
    code = (
        "import torch; torch.set_num_threads(1)\n"
        "from implementations.pytorch.kernels.choose import load_kernels\n"
        "load_kernels('numba').bias_gelu(torch.ones(4, 8), torch.ones(8)); print(torch.get_num_threads())"
    )
    root = Path(__file__).resolve().parents[5]
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True, timeout=120)
    assert int(done.stdout) == 1


def test_results_do_not_depend_on_the_number_of_threads() -> None:
    """Bit for bit: sums over rows have the same chunks, and masks depend on the position only."""
    x, update = normal(300, 64).bfloat16(), normal(300, 64, seed=1).bfloat16()
    parameters = [normal(64, seed=n).float() for n in (3, 4, 5)]
    ends = []
    import numba

    threads = numba.get_num_threads()
    try:
        for count in (1, min(2, numba.config.NUMBA_NUM_THREADS)):  # type: ignore[attr-defined]
            numba.set_num_threads(count)
            inputs = [t.clone().requires_grad_() for t in (x, update, *parameters)]
            torch.manual_seed(0)
            result = NUMBA.residual_norm(*inputs, 0.1)  # type: ignore[call-arg,misc]
            ends.append([result, *torch.autograd.grad(result, inputs, x)])
    finally:
        numba.set_num_threads(threads)
    assert all(torch.equal(a, b) for a, b in zip(*ends, strict=True))


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_other_dtypes_use_the_eager_kernels(dtype: torch.dtype) -> None:
    x = normal(5, 8).to(dtype)
    parameters = [normal(8, seed=n).to(dtype if dtype == torch.float64 else torch.float32) for n in (3, 4, 5)]
    assert torch.equal(NUMBA.residual_norm(x, x, *parameters, 0.0), EAGER.residual_norm(x, x, *parameters, 0.0))
    assert torch.equal(NUMBA.bias_gelu(x, parameters[0]), EAGER.bias_gelu(x, parameters[0]))
    scores, counts = x.view(1, 1, 5, 8), torch.tensor([8], dtype=torch.int32)
    assert torch.equal(NUMBA.attention_weights(scores, counts, 0.0), EAGER.attention_weights(scores, counts, 0.0))
    labels = torch.from_numpy(np.arange(5))
    assert torch.equal(NUMBA.cross_entropy(x, labels), EAGER.cross_entropy(x, labels))


def test_inputs_need_not_be_contiguous(relative_error: Error) -> None:
    x, bias = normal(8, 6).float(), normal(8, seed=1).float()
    found, expected = (kernels.bias_gelu(x.T, bias) for kernels in (NUMBA, EAGER))
    assert relative_error(found, expected) < 1e-6
    parameters = [normal(8, seed=n).float() for n in (3, 4, 5)]
    update = normal(8, 6, seed=7).float().T
    found, expected = (kernels.residual_norm(x.T, update, *parameters, 0.0) for kernels in (NUMBA, EAGER))
    assert relative_error(found, expected) < 1e-6
