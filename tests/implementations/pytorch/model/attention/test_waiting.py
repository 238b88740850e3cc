"""Attention backends do not synchronise the host with a device, nor copy the whole batch for each sequence."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.bert.samples import Sample
from implementations.pytorch.data.batch import collate
from implementations.pytorch.kernels.eager import EAGER
from implementations.pytorch.kernels.gpu.common import record_launches
from implementations.pytorch.model.attention import padded as rectangles_module
from implementations.pytorch.model.attention.dispatch import attend

Maker = Callable[..., list[Sample]]


UNPADDED = [(None, 1), (None, 64)]
LAYOUTS = {
    "padded": [*UNPADDED, (96, 64)],
    "grouped": [*UNPADDED, (96, 64)],
    "cudnn": UNPADDED,
    "flash": UNPADDED,
}


class Written(TorchDispatchMode):
    """Count the elements of all results that are not views."""

    elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        results: Any = func(*args, **(kwargs or {}))
        views = any(argument.alias_info and not argument.alias_info.is_write for argument in func._schema.arguments)
        for result in pytree.tree_leaves(results):
            if isinstance(result, Tensor) and not views:
                self.elements += result.numel()
        return results


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("backend", "layout"), [(name, layout) for name in LAYOUTS for layout in LAYOUTS[name]])
def test_no_value_is_read_on_the_host(
    backend: str,
    layout: tuple[int | None, int],
    dtype: torch.dtype,
    make_samples: Maker,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Fake tensors have no values, so reading one raises an error. The code path is that of a GPU."""
    monkeypatch.setattr(rectangles_module, "is_supported", lambda tensor: False)
    batch = collate(make_samples([90, 1, 33, 64, 7]), *layout)
    with FakeTensorMode() as mode, record_launches(lambda *_: None):
        fake = batch.map_tensors(mode.from_tensor)
        qkv = torch.empty(batch.slots, 3, 2, 8, dtype=dtype, requires_grad=True)
        context = attend(qkv, fake, backend=backend, kernels=EAGER, probability=0.1)
        (gradient,) = torch.autograd.grad(context, qkv, torch.empty_like(context))
    assert (context.shape, context.dtype) == ((batch.slots, 16), dtype)
    assert (gradient.shape, gradient.dtype) == (qkv.shape, dtype)


@pytest.mark.parametrize("backend", ["padded", "grouped"])
def test_copies_per_sequence_do_not_grow_with_the_batch(
    backend: str, make_samples: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With in-place copies into a rectangle, row by row, backward would copy the whole rectangle for every row."""
    monkeypatch.setattr(rectangles_module, "is_supported", lambda tensor: False)
    shares = []
    for sequences in (4, 64):
        batch = collate(make_samples([8] * sequences))
        qkv = torch.randn(batch.slots, 3, 2, 8, requires_grad=True)
        with Written() as written:
            context = attend(qkv, batch, backend=backend, kernels=EAGER, probability=0.0)
            torch.autograd.grad(context, qkv, torch.ones_like(context))
        shares.append(written.elements / batch.tokens)
    assert shares[1] < 1.2 * shares[0]
