"""Resolved precision, autocast, and the measured peak of matrix products."""

import pytest
import torch

from implementations.pytorch.precision import autocast, matmul_peak, resolve_precision
from podium.core.errors import UsageError

CPU, GPU = torch.device("cpu"), torch.device("cuda")


@pytest.mark.parametrize("setting", ["fp32", "bf16", "fp16"])
def test_a_configured_precision_is_used(setting: str) -> None:
    assert resolve_precision(setting, CPU) == setting


@pytest.mark.parametrize(
    ("avx512", "amx", "expected"), [(True, False, "bf16"), (False, True, "bf16"), (False, False, "fp32")]
)
def test_auto_is_bf16_where_the_processor_has_it(
    avx512: bool, amx: bool, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: avx512)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: amx)
    assert resolve_precision("auto", CPU) == expected


@pytest.mark.parametrize(("in_hardware", "expected"), [(True, "bf16"), (False, "fp16")])
def test_auto_is_fp16_on_a_gpu_that_only_emulates_bf16(
    in_hardware: bool, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: in_hardware or including_emulation)
    assert resolve_precision("auto", GPU) == expected


def test_bf16_is_an_error_on_a_gpu_that_only_emulates_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: including_emulation)
    with pytest.raises(UsageError, match="precision: found bf16, which this GPU only emulates"):
        resolve_precision("bf16", GPU)


@pytest.mark.parametrize(
    ("capability", "multiplies"), [((7, 0), False), ((8, 0), False), ((8, 9), True), ((9, 0), True), ((10, 0), True)]
)
def test_fp8_needs_a_gpu_that_multiplies_it(
    capability: tuple[int, int], multiplies: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    if multiplies:
        assert resolve_precision("fp8", GPU) == "fp8"
    else:
        with pytest.raises(UsageError, match="precision: found fp8, which this cuda device does not support"):
            resolve_precision("fp8", GPU)


@pytest.mark.parametrize(
    ("precision", "dtype"),
    [("fp32", torch.float32), ("bf16", torch.bfloat16), ("fp16", torch.float16), ("fp8", torch.bfloat16)],
)
def test_autocast_multiplies_in_the_precision(precision: str, dtype: torch.dtype) -> None:
    x = torch.ones(4, 4)
    with autocast(precision, CPU):
        assert (x @ x).dtype == dtype
    assert (x @ x).dtype == torch.float32


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_peak_is_measured(precision: str) -> None:
    assert 1e6 < matmul_peak(precision, CPU, width=64, seconds=0.02) < 1e16


@pytest.mark.parametrize(
    ("precision", "dtype"), [("fp32", torch.float32), ("fp16", torch.float16), ("fp8", torch.bfloat16)]
)
def test_the_peak_is_the_fastest_product_of_random_numbers(
    precision: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a fake clock: products take 4, 2, 3, 5, … seconds, and 20 seconds are allowed."""
    seconds, now, operands = iter([4.0, 2.0, 3.0, 5.0, 6.0, 7.0]), [0.0], []

    def multiply(a: torch.Tensor, b: torch.Tensor) -> None:
        operands.extend((a, b))
        now[0] += next(seconds)

    monkeypatch.setattr(torch, "matmul", multiply)
    monkeypatch.setattr("time.perf_counter", lambda: now[0])
    assert matmul_peak(precision, CPU, width=16, seconds=20.0) == 2 * 16**3 / 2.0
    assert len(operands) == 2 * 5
    for operand in operands:
        assert (operand.dtype, operand.shape) == (dtype, (16, 16))
        assert 0.5 < float(operand.float().std()) < 1.5
        assert abs(float(operand.float().mean())) < 0.5
