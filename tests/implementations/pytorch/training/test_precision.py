"""The number format of the matrix products."""

import pytest
import torch

from implementations.pytorch.training.precision import autocast, matmul_peak, resolve_precision

CPU = torch.device("cpu")


@pytest.mark.parametrize("setting", ["fp32", "bf16"])
def test_what_is_set_is_used(setting: str) -> None:
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


@pytest.mark.parametrize(("precision", "dtype"), [("fp32", torch.float32), ("bf16", torch.bfloat16)])
def test_products_are_in_the_precision(precision: str, dtype: torch.dtype) -> None:
    x = torch.ones(4, 4)
    with autocast(precision, CPU):
        assert (x @ x).dtype == dtype
    assert (x @ x).dtype == torch.float32


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_peak_is_measured(precision: str) -> None:
    assert 1e6 < matmul_peak(precision, CPU, width=64, seconds=0.02) < 1e16
