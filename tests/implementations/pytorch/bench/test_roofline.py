"""Counts of kernels: exact bytes and FLOPs of small cases, and whole steps of configurations."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.bert.lengths import wikipedia_histogram
from benchmarks.bert.sizes import LARGE, TINY
from implementations.pytorch.bench import fake_gpu, roofline
from implementations.pytorch.bench.compiled_region import FUSED, FUSED_CASTS, FUSED_SUMS, counting_compile
from implementations.pytorch.bench.roofline import (
    ATTENTION,
    COPIES,
    ELEMENTS,
    HEAD,
    OPTIMIZER,
    PARTS,
    PRODUCTS,
    Kernel,
    KernelCounter,
    count_step,
    launches_of,
    summarize,
)
from implementations.pytorch.bench.variants import resize
from podium.config.load import load_system, system_names, write_resolved
from podium.core.errors import UsageError
from podium.planning.accelerators import ReachableRates, require_gpu

GPU = fake_gpu.GPU
TOKENS, INPUTS, OUTPUTS = 64, 32, 16
HALF, FULL = 2, 4


@contextmanager
def counting(hidden: int = INPUTS) -> Iterator[KernelCounter]:
    """A counter on a fake H100; everything that runs in the block counts as the encoder's."""
    counter = KernelCounter(hidden)
    with fake_gpu.fake_gpu((9, 0), 132) as fake_tensors, fake_tensors, counter, counter.region(ELEMENTS):
        counter.is_building = False
        yield counter


def fake(*shape: int, dtype: torch.dtype = torch.float32, needs_gradient: bool = False) -> Tensor:
    return torch.empty(*shape, dtype=dtype, device=GPU, requires_grad=needs_gradient)


def counts(counter: KernelCounter) -> list[tuple[str, str, int, float]]:
    return [(kernel.part, kernel.name, kernel.moved, kernel.flops) for kernel in counter.kernels]


def test_linear_forward_and_backward() -> None:
    with counting() as counter:
        x = fake(TOKENS, INPUTS, dtype=torch.bfloat16, needs_gradient=True)
        weight = fake(OUTPUTS, INPUTS, dtype=torch.bfloat16, needs_gradient=True)
        weight.grad = fake(OUTPUTS, INPUTS, dtype=torch.bfloat16)
        counter.enabled = True
        y = F.linear(x, weight)
        fake_gpu.run_graph([(y.grad_fn, 0, torch.empty_like(y))], counter.of_node)
    moved = HALF * (TOKENS * INPUTS + OUTPUTS * INPUTS + TOKENS * OUTPUTS)
    flops = 2.0 * TOKENS * INPUTS * OUTPUTS
    accumulated = HALF * 3 * OUTPUTS * INPUTS  # gradient and sum so far read, sum written
    found = counts(counter)
    assert found[:3] == [(PRODUCTS, "mm", moved, flops)] * 3  # output, and both gradients
    assert found[3:] == [(ELEMENTS, "add_", accumulated, 0.0)]
    assert {kernel.unit for kernel in counter.kernels[:3]} == {"half"}


def test_layer_norm_forward_and_backward() -> None:
    with counting() as counter:
        x = fake(TOKENS, INPUTS, needs_gradient=True)
        weight, bias = (fake(INPUTS, needs_gradient=True) for _ in range(2))
        counter.enabled = True
        y = F.layer_norm(x, (INPUTS,), weight, bias)
        fake_gpu.run_graph([(y.grad_fn, 0, torch.empty_like(y))], counter.of_node)
    elements, statistics, parameters = FULL * TOKENS * INPUTS, FULL * 2 * TOKENS, FULL * 2 * INPUTS
    assert counts(counter) == [
        (ELEMENTS, "native_layer_norm", 2 * elements + statistics + parameters, 0.0),
        # the gradient and x read, dx written; the parameters read and their gradients written
        (ELEMENTS, "native_layer_norm_backward", 3 * elements + statistics + 2 * parameters, 0.0),
    ]


def test_attention_counts_the_lengths_of_the_batch_and_not_the_rectangle() -> None:
    lengths, heads, size = (30, 20, 10), 2, 16
    with counting(heads * size) as counter:
        q, k, v = (fake(TOKENS, heads, size, dtype=torch.bfloat16, needs_gradient=True) for _ in range(3))
        starts = fake(len(lengths) + 2, dtype=torch.int32)
        counter.start_batch(SimpleNamespace(lengths=lengths))  # type: ignore[arg-type]
        counter.enabled = True
        y = torch.ops.aten._flash_attention_forward(q, k, v, starts, starts, 512, 512, 0.1, False, False)[0]
        fake_gpu.run_graph([(y.grad_fn, 0, torch.empty_like(y))], counter.of_node)
    forward = 4.0 * heads * size * sum(length**2 for length in lengths)
    assert [(kernel.part, kernel.name, kernel.unit) for kernel in counter.kernels] == [
        (ATTENTION, "_flash_attention_forward", "flash"),
        (ATTENTION, "_flash_attention_backward", "flash"),
    ]
    assert [kernel.flops for kernel in counter.kernels] == pytest.approx([forward, 2 * forward])


def test_optimizer_step() -> None:
    with counting() as counter, counter.region(OPTIMIZER):
        parameter = fake(256, 256, needs_gradient=True)
        parameter.grad = fake(256, 256)
        optimizer = torch.optim.SGD([parameter], lr=0.1, momentum=0.9, foreach=True)
        optimizer.step()  # allocates the momentum
        counter.enabled = True
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
    size = FULL * 256 * 256
    assert counts(counter) == [
        (OPTIMIZER, "_foreach_mul_", 2 * size, 0.0),  # momentum read and written
        (OPTIMIZER, "_foreach_add_", 3 * size, 0.0),  # momentum and gradient read, momentum written
        (OPTIMIZER, "_foreach_add_", 3 * size, 0.0),
        (OPTIMIZER, "_foreach_zero_", size, 0.0),
    ]


def test_rows_that_are_gathered_and_scattered_count_and_not_the_table() -> None:
    with counting() as counter:
        table, ids = fake(1000, INPUTS), fake(TOKENS, dtype=torch.int64)
        rows = fake(TOKENS, INPUTS)
        counter.enabled = True
        F.embedding(ids, table)
        table.index_select(0, ids)
        table.index_add_(0, ids, rows)
    row_bytes, id_bytes = FULL * TOKENS * INPUTS, 8 * TOKENS
    assert [kernel.moved for kernel in counter.kernels] == [
        *(2 * row_bytes + id_bytes,) * 2,
        3 * row_bytes + id_bytes,
    ]


def test_views_and_allocations_are_no_kernels_and_repeated_tensors_count_once() -> None:
    with counting() as counter:
        counter.enabled = True
        x = fake(TOKENS, INPUTS)
        torch.split(x.view(-1), 7)
        x.t().detach().expand(INPUTS, TOKENS)
        assert counter.kernels == []
        x * x
        x[:1].expand(TOKENS, INPUTS) + x
        x.zero_()
    whole, row = FULL * TOKENS * INPUTS, FULL * INPUTS
    assert [kernel.moved for kernel in counter.kernels] == [2 * whole, 2 * whole + row, whole]
    assert [kernel.part for kernel in counter.kernels] == [ELEMENTS, ELEMENTS, COPIES]


def test_unknown_operators_are_counted_by_their_bytes() -> None:
    with counting() as counter:
        x = fake(TOKENS, INPUTS)
        counter.enabled = True
        torch.special.bessel_j0(x)
    assert counts(counter) == [(ELEMENTS, "special_bessel_j0", 2 * FULL * TOKENS * INPUTS, 0.0)]


def test_launches_of_multi_tensor_operators() -> None:
    with counting():
        small, large = [fake(8)] * 221, [fake(65_536 * 320 + 1)]
    assert launches_of("_foreach_mul_", (small, 2.0)) == 3  # 110 tensors a launch
    assert launches_of("_foreach_add_", (small, small)) == 4  # 64 pairs
    assert launches_of("_foreach_mul_", (large,)) == 2  # 320 chunks a launch
    assert launches_of("cat", (small,)) == 1


class TwoResults(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, number: int, a: Tensor, b: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(a, b)
        return a * b, a + b

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        a, b = ctx.saved_tensors
        return None, gradients[0] * b + gradients[1], gradients[0] * a + gradients[1], None


def test_backward_in_python_equals_pytorchs() -> None:
    torch.manual_seed(0)
    layer, x, constant = torch.nn.Linear(8, 8), torch.randn(4, 8, requires_grad=True), torch.randn(4, 8)

    def loss() -> Tensor:
        y = F.gelu(layer(x))
        product, total = TwoResults.apply(3, y, constant, layer(y))  # type: ignore[no-untyped-call]
        unused, _ = TwoResults.apply(3, x, y, x)  # type: ignore[no-untyped-call]
        normed = F.layer_norm(product, (8,)).to(torch.bfloat16).pow(3).float()
        whole: Tensor = normed.sum() + total.unbind(0)[1].sum() + (x[0] + unused).sum()
        return whole

    leaves = [x, *layer.parameters()]
    torch.autograd.backward(loss())
    expected = [leaf.grad for leaf in leaves]
    for leaf in leaves:
        leaf.grad = None
    fake_gpu.backward(loss())
    fake_gpu.backward(loss())  # accumulates
    for leaf, gradient in zip(leaves, expected, strict=True):
        assert leaf.grad is not None and gradient is not None
        torch.testing.assert_close(leaf.grad, 2 * gradient)


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.empty(OUTPUTS, INPUTS))


def block(module: Block, x: Tensor, slope: float) -> Tensor:
    y = F.linear(x, module.weight.to(x.dtype))
    return torch.tanh(y * slope) + 1


def test_compiled_functions_fuse_what_stands_between_products() -> None:
    found: list[tuple[str, int, float]] = []
    with counting() as counter:
        with torch.device(GPU):
            module = Block()
        x = fake(TOKENS, INPUTS, dtype=torch.bfloat16, needs_gradient=True)
        compiled = counting_compile(
            lambda name, moved, flops, dtype: found.append((name, moved, flops)), counter.disabled
        )
        y = compiled(block)(module, x, 0.5)
        forward, found = found[:], found
        assert y.shape == (TOKENS, OUTPUTS) and y.dtype == torch.bfloat16
        assert len(forward) == 3
        fake_gpu.run_graph([(y.grad_fn, 0, torch.empty_like(y))])
        assert x.grad is not None and x.grad.shape == x.shape
        assert module.weight.grad is not None and module.weight.grad.dtype == torch.float32
    weights, inputs, outputs = OUTPUTS * INPUTS, HALF * TOKENS * INPUTS, HALF * TOKENS * OUTPUTS
    flops = 2.0 * TOKENS * INPUTS * OUTPUTS
    assert sorted(forward) == sorted(
        [
            (FUSED_CASTS, (FULL + HALF) * weights, 0.0),
            ("mm", inputs + HALF * weights + outputs, flops),
            (FUSED, 2 * outputs, 0.0),  # tanh is recomputed in backward, not stored
        ]
    )
    backward = found[3:]
    assert sorted(name for name, _, _ in backward) == sorted([FUSED, FUSED_CASTS, "mm", "mm"])
    assert (FUSED, 3 * outputs, 0.0) in backward  # product and gradient read, gradient written
    assert not any(name == FUSED_SUMS for name, _, _ in found)


@pytest.mark.parametrize("kernels", ["eager", "triton", "compiled"])
def test_flops_of_a_step_are_those_of_the_model(kernels: str) -> None:
    if kernels == "triton":
        pytest.importorskip("triton")
    config = load_system("h200_1x", settings=[f"kernels={kernels}", "attention=flash"])
    gpu, rates = require_gpu("h200")
    found, facts = count_step(config, gpu, wikipedia_histogram(), 30_522, resize(LARGE, 2, 256))
    counted = summarize(found, rates)
    assert counted["total"]["flops"] == pytest.approx(facts["model_flops"], rel=0.01)
    assert facts["kernel_set"] == kernels and facts["attention"] == "flash" and facts["precision"] == "bf16"
    assert facts["sequences"] == 56 and facts["tokens"] == 14_325
    parts = {row["part"]: row for row in counted["parts"]}
    assert list(parts) == list(PARTS)
    for key in ("launches", "bytes", "flops", "milliseconds"):
        assert sum(row[key] for row in counted["parts"]) == pytest.approx(counted["total"][key])
        assert sum(row[key] for row in counted["kernels"]) == pytest.approx(counted["total"][key])
    assert parts[ATTENTION]["launches"] == 2 * 2
    # gradients of 2 layers: 4 products each in forward, and twice as many in backward
    assert parts[PRODUCTS]["launches"] == 3 * 4 * 2
    assert parts[HEAD]["flops"] > 0
    assert parts[OPTIMIZER]["flops"] == 0


def test_the_gpu_decides_what_is_chosen() -> None:
    config, size = load_system("h200_1x", settings=["kernels=eager"]), resize(LARGE, 1, 64)
    _, on_t4 = count_step(config, require_gpu("t4")[0], wikipedia_histogram(), 512, size)
    assert (on_t4["precision"], on_t4["attention"]) == ("fp16", "nested")
    fp8 = config.model_copy(update={"precision": "fp8"})
    with pytest.raises(UsageError, match="precision: found fp8"):
        count_step(fp8, require_gpu("a100")[0], wikipedia_histogram(), 512, size)


def test_a_hopper_gpu_has_attention_by_cudnn_with_the_flops_of_the_model() -> None:
    pytest.importorskip("triton")  # cuDNN's launches are counted as Triton's are
    gpu, rates = require_gpu("h200")
    size = resize(LARGE, 2, 256)
    for precision in ("bf16", "fp8"):
        config = load_system("h200_1x", settings=[f"precision={precision}"])
        found, facts = count_step(config, gpu, wikipedia_histogram(), 30_522, size)
        assert facts["attention"] == "cudnn" and facts["kernel_set"] == "triton" and facts["graphs"]
        counted = summarize(found, rates)
        assert counted["total"]["flops"] == pytest.approx(facts["model_flops"], rel=0.01)
        attention = [kernel for kernel in found if kernel.unit == "cudnn"]
        assert len(attention) == 2 * 2
        forward, backward = sorted({kernel.flops for kernel in attention})
        assert backward == 2 * forward
        units = {kernel.unit for kernel in found if kernel.part == PRODUCTS}
        assert units == {"fp8" if precision == "fp8" else "half"}


def test_more_ranks_cast_what_they_send() -> None:
    size = resize(LARGE, 1, 64)
    base = load_system("dgxa100_n1", settings=["kernels=eager"])
    gpu, _ = require_gpu("a100")
    moved = {}
    for wire in ("fp32", "bf16"):
        config = base.model_copy(update={"gradient_wire": wire})
        found, facts = count_step(config, gpu, wikipedia_histogram(), 512, size)
        assert facts["ranks"] == 8
        moved[wire] = sum(kernel.moved for kernel in found if kernel.part == OPTIMIZER)
    # cast to the wire's type and back: 4 + 2 and 2 + 4 bytes for each parameter
    assert moved["bf16"] - moved["fp32"] == pytest.approx(12 * size.parameters(512), rel=0.01)


def test_a_kernel_takes_the_longer_of_computing_and_moving() -> None:
    rates = ReachableRates({"half": 100.0}, 10.0)
    assert Kernel(PRODUCTS, "mm", 1, 20, 1000.0, "half").seconds(rates) == 10.0
    assert Kernel(PRODUCTS, "mm", 1, 200, 1000.0, "half").seconds(rates) == 20.0
    assert Kernel(ELEMENTS, "add", 1, 20).seconds(rates) == 2.0


@pytest.mark.parametrize("recipe", ["random", "exchanged", "packed", "indexed", "padded"])
def test_recipes(recipe: str) -> None:
    config = load_system("dgxa100_n1", recipe, ["kernels=eager"])
    found, facts = count_step(config, require_gpu("a100")[0], wikipedia_histogram(), 512, resize(LARGE, 1, 64))
    assert facts["attention"] == {"exchanged": "grouped", "padded": "padded"}.get(recipe, "flash")
    assert {kernel.part for kernel in found} == set(PARTS)


def test_adamw_and_phases_are_counted() -> None:
    config = load_system("laptop", "academic", ["kernels=auto"])
    config = config.model_copy(update={"kernels": "eager"})
    found, facts = count_step(config, require_gpu("h100")[0], wikipedia_histogram(), 512, replace(TINY, local_heads=()))
    assert facts["tokens"] <= 128 * facts["sequences"]  # the first phase
    adamw = load_system("laptop", "indexed", ["kernels=eager"])
    assert adamw.optimizer.algorithm == "adamw"
    found, _ = count_step(adamw, require_gpu("h100")[0], wikipedia_histogram(), 512)
    (update,) = {kernel.name for kernel in found if kernel.name.startswith("_fused_adamw")}
    assert update


GPU_SYSTEMS = [name for name in system_names() if load_system(name).launch.device == "cuda"]


@pytest.mark.parametrize("system", GPU_SYSTEMS)
def test_shipped_systems(system: str) -> None:
    config = load_system(system, settings=["kernels=eager"])
    gpu, rates = require_gpu(config.description.accelerator_model_name, system)
    found, facts = count_step(config, gpu, wikipedia_histogram(), 512, resize(LARGE, 1, 64))
    assert facts["ranks"] == config.launch.ranks
    assert {kernel.part for kernel in found} == set(PARTS)
    assert all(kernel.seconds(rates) > 0 for kernel in found)


def test_main_prints_the_count_or_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "config.yaml"
    config = load_system("laptop", settings=["kernels=eager"])
    write_resolved(config.model_copy(update={"seed": 0}), path)
    monkeypatch.setattr(roofline, "end_with_parent", lambda: None)  # for child processes
    for gpu in ("h100", "no such GPU"):
        monkeypatch.setattr("sys.argv", ["roofline", str(path), "--vocabulary", "512", "--gpu", gpu])
        assert roofline.main() == (0 if gpu == "h100" else 2)
        output = capsys.readouterr()
        if gpu != "h100":
            assert gpu in output.err and not output.out
            continue
        counted = json.loads(output.out)
        assert counted["gpu"] == "NVIDIA H100 SXM"
        assert counted["total"]["milliseconds"] > 0
        assert counted["rates"]["flops"]["half"] == pytest.approx(790e12)
