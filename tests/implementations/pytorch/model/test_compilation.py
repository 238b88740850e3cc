"""Compiled versions of a layer: as many as a process needs, without reaching the limit."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch._dynamo.utils import counters

from benchmarks.bert.sizes import Size
from implementations.pytorch.kernels.eager import EAGER
from implementations.pytorch.model.layer import Gradients, Layer

LIMIT = 3  # instead of PyTorch's 8, since each version takes half a second
DTYPES = (torch.float32, torch.bfloat16)
MODES = ((True, 0.1), (False, 0.0))  # gradients and dropout: training and evaluation


def make_layer(size: Size, use_torch_compile: bool) -> Layer:
    return Layer(
        size,
        0,
        attention="grouped",
        kernels=EAGER,
        use_torch_compile=use_torch_compile,
        gradients=Gradients(),
        scaling=None,
    )


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """torch.compile without code generation, and a low limit."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    torch._dynamo.reset()
    counters.clear()
    with torch._dynamo.config.patch(recompile_limit=LIMIT):
        yield
    torch._dynamo.reset()


def test_all_variants_of_a_layer_are_compiled_in_one_process(compiler: None, small: Size) -> None:
    """One version for each dtype and mode serves all layers and lengths, and their number may exceed the limit."""
    size = replace(small, hidden=16, heads=1, feed_forward=16)
    expected = 0
    for dtype in DTYPES:
        layers = [make_layer(size, use_torch_compile=True).to(dtype) for _ in range(2)]
        for layer in layers:  # LayerNorm is computed in float32
            layer.attention_norm.float()
            layer.output_norm.float()
        for gradients, probability in MODES:
            expected += 1
            for layer, tokens in zip(layers, (12, 7), strict=True):
                x_TD, context_TD = torch.randn(2, tokens, size.hidden, dtype=dtype)
                with torch.set_grad_enabled(gradients):
                    layer.after_attention(layer, x_TD, context_TD, probability)
            assert counters["stats"]["unique_graphs"] == expected
    assert expected == len(DTYPES) * len(MODES) > LIMIT
    assert not counters["graph_break"]
    # fp32, bf16 and fp16; with dropout, without, and in evaluation; weights that are trained, and frozen ones.
    assert torch._dynamo.config.recompile_limit >= 3 * 3 * 2


def test_limit_is_unchanged_without_compilation(compiler: None, small: Size) -> None:
    make_layer(small, use_torch_compile=False)
    assert torch._dynamo.config.recompile_limit == LIMIT
