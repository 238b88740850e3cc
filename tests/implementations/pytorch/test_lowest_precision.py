"""Lowest precision for the log: read from model, autocast and hook, and compared with the dtypes of actual products."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from mlperf_logging import compliance_checker
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.bert.store import SampleStore
from implementations.pytorch.kernels.eager import EAGER
from implementations.pytorch.lowest_precision import FLOAT32_PRODUCTS, MLPERF_NAMES, describe_precision
from implementations.pytorch.phase_clock import PhaseClock
from podium.mllog.write import DISCLOSED_KEYS
from tests.implementations.pytorch.data.plain_reader import read_step

LINEAR, ATTENTION = ("aten.mm.default", "aten.addmm.default"), ("aten.bmm.default",)


class Products(TorchDispatchMode):
    """Records the dtypes of the operands of matrix products by operator."""

    def __init__(self) -> None:
        super().__init__()
        self.dtypes: dict[str, set[torch.dtype]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if str(func) in LINEAR + ATTENTION:
            found = self.dtypes.setdefault(str(func), set())
            found.update(argument.dtype for argument in args if isinstance(argument, Tensor))
        return func(*args, **(kwargs or {}))

    def lowest(self, operators: tuple[str, ...]) -> torch.dtype:
        found = set().union(*(self.dtypes.get(name, set()) for name in operators))
        return min(found, key=lambda dtype: dtype.itemsize)


@pytest.fixture(autouse=True)
def float32_products() -> Iterator[None]:
    """Restore PyTorch's settings of float32 products."""
    backends = torch.backends.cuda.matmul, torch.backends.mkldnn.matmul
    before = [backend.fp32_precision for backend in backends]
    yield
    for backend, value in zip(backends, before, strict=True):
        backend.fp32_precision = value


@pytest.mark.parametrize("attention", ["grouped", "padded", "nested"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_precision_is_that_of_the_products_of_a_step(
    attention: str,
    precision: str,
    make_config: Any,
    make_model: Any,
    make_stepper: Any,
    make_order: Any,
    make_store: Any,
) -> None:
    store: SampleStore = make_store(np.random.default_rng(0).integers(5, 60, 8))
    config = make_config(global_batch_size=8, attention=attention)
    stepper = make_stepper(config, make_model(attention=attention, kernels=EAGER), precision)
    with Products() as products:
        stepper.take(read_step(make_order(store, config), 0, 0), PhaseClock())
    described = describe_precision(stepper)
    assert described.linear == MLPERF_NAMES[products.lowest(LINEAR)]
    assert described.linear == described.attention == {"fp32": "fp32", "bf16": "bfloat16"}[precision]
    if ATTENTION[0] in products.dtypes:
        assert described.attention == MLPERF_NAMES[products.lowest(ATTENTION)]
    assert described.communication == "fp32"


@pytest.mark.parametrize(
    ("wire", "expected"), [("fp32", "fp32"), ("fp16", "fp16"), ("bf16", "bfloat16"), ("auto", "fp32")]
)
def test_communication_is_the_type_that_the_hook_sends(
    wire: str, expected: str, make_config: Any, make_model: Any, make_stepper: Any, make_order: Any, make_store: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    config = make_config(global_batch_size=8, gradient_wire=wire)
    stepper = make_stepper(config, make_model())
    sent: set[torch.dtype] = set()
    all_reduce = torch.distributed.all_reduce

    def record(tensor: Tensor, *arguments: Any, **options: Any) -> Any:
        sent.add(tensor.dtype)
        return all_reduce(tensor, *arguments, **options)

    monkeypatch.setattr(torch.distributed, "all_reduce", record)
    store: SampleStore = make_store(np.random.default_rng(0).integers(5, 60, 8))
    stepper.take(read_step(make_order(store, config), 0, 0), PhaseClock())
    assert {MLPERF_NAMES[dtype] for dtype in sent} == {expected}
    assert describe_precision(stepper).communication == expected


def test_fp8_is_in_linear_layers_only(make_config: Any, make_model: Any, make_stepper: Any) -> None:
    described = describe_precision(make_stepper(make_config(gradient_wire="bf16"), make_model(fp8=True), "fp8"))
    assert (described.linear, described.attention, described.communication) == ("fp8", "bfloat16", "bfloat16")


@pytest.mark.parametrize(("setting", "name"), [("ieee", "fp32"), ("none", "fp32"), *FLOAT32_PRODUCTS.items()])
def test_float32_products_have_the_precision_that_pytorch_is_set_to(
    setting: str, name: str, make_config: Any, make_model: Any, make_stepper: Any
) -> None:
    stepper = make_stepper(make_config(), make_model())
    torch.backends.mkldnn.matmul.fp32_precision = setting
    described = describe_precision(stepper)
    assert (described.linear, described.attention, described.communication) == (name, name, "fp32")


def test_every_name_is_allowed_by_the_official_ruleset() -> None:
    file = Path(compliance_checker.__file__).parent / "training_6.1.0" / "common.yaml"
    keys = {
        entry["KEY"]["NAME"]: entry["KEY"]
        for entry in yaml.safe_load(file.read_text(encoding="utf-8"))
        if "KEY" in entry
    }
    for key in DISCLOSED_KEYS[:3]:
        for name in {*MLPERF_NAMES.values(), *FLOAT32_PRODUCTS.values()}:
            assert f"'{name}'" in keys[key]["CHECK"]
