"""Lowest numerical precision of a run by MLPerf's names, from the objects that compute it.

The names are the values of `lowest_numerical_precision_in_*` in mlperf-logging's compliance_checker, training_6.1.0.
"""

from collections.abc import Iterable

import torch

from implementations.pytorch.distributed.gradient_sync import WIRE_TYPES
from implementations.pytorch.kernels.fp8_scaling import FORWARD_DTYPE, GRADIENT_DTYPE
from implementations.pytorch.precision import autocast
from implementations.pytorch.step import Stepper
from podium.mllog.write import NumericalPrecision

MLPERF_NAMES = {
    torch.float64: "fp64",
    torch.float32: "fp32",
    torch.float16: "fp16",
    torch.bfloat16: "bfloat16",
    torch.float8_e4m3fn: "fp8",
    torch.float8_e5m2: "fp8",
}
# The number formats in which PyTorch may multiply float32 matrices, as `fp32_precision` of its backends names them.
FLOAT32_PRODUCTS = {"tf32": "tf32", "bf16": "bfloat16"}


def describe_precision(stepper: Stepper) -> NumericalPrecision:
    """Return the lowest precision in linear layers, in attention and in communication of a stepper's training steps.

    Operands of linear layers have the dtype that the step's autocast gives to activations, or that of the parameters;
    with fp8 scaling those of the encoder are fp8. Attention has the dtype of activations in all backends, also with
    fp8. Ranks send gradients in the communication hook's wire type, and weights, in the first broadcast of DDP and in
    sharded LAMB, in theirs. The hook rounds gradients in a run of one process as well, which sends them to itself.
    """
    model, device = stepper.model.module, stepper.processes.device
    weights = {parameter.dtype for parameter in model.parameters()}
    with autocast(stepper.precision, device):
        is_cast = torch.is_autocast_enabled(device.type)
        activations = torch.get_autocast_dtype(device.type) if is_cast else _lowest(weights)
    products = _product_precision(activations, device)
    fp8 = _lowest([FORWARD_DTYPE, GRADIENT_DTYPE])
    return NumericalPrecision(
        linear=products if model.scaling is None else MLPERF_NAMES[fp8],
        attention=products,
        communication=MLPERF_NAMES[_lowest([WIRE_TYPES[stepper.sync.wire], *weights])],
    )


def _lowest(dtypes: Iterable[torch.dtype]) -> torch.dtype:
    return min(dtypes, key=lambda dtype: dtype.itemsize)


def _product_precision(dtype: torch.dtype, device: torch.device) -> str:
    """Return the precision of matrix products of a dtype, which PyTorch may be set to lower for float32."""
    backend = torch.backends.cuda if device.type == "cuda" else torch.backends.mkldnn
    if dtype == torch.float32 and backend.matmul.fp32_precision in FLOAT32_PRODUCTS:
        return FLOAT32_PRODUCTS[backend.matmul.fp32_precision]
    return MLPERF_NAMES[dtype]
