"""Peaks of accelerators by precision, compared with data sheets."""

import pytest

from podium.core.errors import UsageError
from podium.planning.accelerators import (
    _MEMORY_BANDWIDTHS,
    _OTHER_PEAKS,
    _TABLE,
    PRODUCT_UNITS,
    ReachableRates,
    find_accelerator,
    require_gpu,
    require_rates,
)
from podium.planning.hardware import FP8_CAPABILITY


@pytest.mark.parametrize(
    ("text", "half", "fp32", "tf32", "fp8"),
    [
        ("NVIDIA T4", 65, 8.1, None, None),
        ("Tesla V100-SXM2-32GB", 125, 15.7, None, None),
        ("NVIDIA A100-SXM4-80GB (400W)", 312, 19.5, 156, None),
        ("NVIDIA H200", 989, 67, 494.5, 1979),
        ("NVIDIA H100-SXM5-80GB", 989, 67, 494.5, 1979),
        ("NVIDIA B200", 2250, 75, 1125, 4500),
        ("Habana Gaudi2", 432, None, None, None),
    ],
)
def test_peaks(text: str, half: float, fp32: float, tf32: float | None, fp8: float | None) -> None:
    kind = find_accelerator(text)
    assert kind is not None
    peaks = (kind.peak_flops, kind.fp32_flops, kind.tf32_flops, kind.fp8_flops)
    assert peaks == tuple(None if peak is None else peak * 1e12 for peak in (half, fp32, tf32, fp8))


def test_other_peaks_are_ordered_by_precision() -> None:
    halves = {name: half for _, name, half in _TABLE}
    assert set(_OTHER_PEAKS) <= set(halves)
    for name, (fp32, tf32, fp8) in _OTHER_PEAKS.items():
        half = halves[name]
        assert half is not None
        assert fp32 is not None and fp32 < half
        assert tf32 is None or fp32 < tf32 < half
        assert fp8 is None or 1.9 * half < fp8 < 2.1 * half


@pytest.mark.parametrize(
    ("text", "name", "half", "fp8", "flash", "cudnn", "terabytes"),
    [
        ("h200", "NVIDIA H200", 790, 1050, 125.5, 251.0, 4.3),
        ("h100", "NVIDIA H100 SXM", 790, 1050, 125.5, 251.0, 3.0),
        ("NVIDIA A100-SXM4-80GB", "NVIDIA A100 SXM", 249.2, None, 86.2, 86.2, 1.83),
    ],
)
def test_reachable_rates(
    text: str, name: str, half: float, fp8: float | None, flash: float, cudnn: float, terabytes: float
) -> None:
    kind, rates = require_gpu(text)
    assert kind.name == name
    assert rates.bytes_per_second / 1e12 == pytest.approx(terabytes, abs=0.005)
    assert rates.flops["half"] / 1e12 == pytest.approx(half, abs=0.05)
    assert rates.flops.get("fp8") == (None if fp8 is None else pytest.approx(fp8 * 1e12))
    assert rates.flops["flash"] / 1e12 == pytest.approx(flash, abs=0.05)
    assert rates.flops["cudnn"] / 1e12 == pytest.approx(cudnn, abs=0.1)


@pytest.mark.parametrize("name", _MEMORY_BANDWIDTHS)
def test_every_allowed_gpu_has_the_rates_of_its_precisions(name: str) -> None:
    kind, rates = require_gpu(name.removeprefix("NVIDIA ").lower())
    assert kind.name in (name, f"{name} SXM")
    assert kind.compute_capability is not None
    for precision in ("auto", *PRODUCT_UNITS):
        if precision != "fp8" or kind.compute_capability >= FP8_CAPABILITY:
            require_rates(kind, rates, precision)


def test_a_precision_without_a_rate_is_refused() -> None:
    kind, rates = require_gpu("h200")
    lacking = ReachableRates({"half": rates.flops["half"]}, rates.bytes_per_second)
    require_rates(kind, lacking, "auto")
    with pytest.raises(
        UsageError, match=r"precision: found fp8, .* on NVIDIA H200 .* allowed there are auto, bf16, fp16$"
    ):
        require_rates(kind, lacking, "fp8")


@pytest.mark.parametrize("name", ["foo", "xxH200yy", "my h200", "h100 h200", ""])
def test_names_of_gpus_are_matched_whole(name: str) -> None:
    with pytest.raises(UsageError, match=f"--gpu: found '{name}'; allowed are T4, .*H200.*; name one of them"):
        require_gpu(name)


@pytest.mark.parametrize("name", ["V100", "GH200", "AMD MI300X"])
def test_a_known_gpu_without_bandwidth_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match=f"--gpu: found '{name}', which is known .* its memory bandwidth is not in"):
        require_gpu(name)


def test_the_name_of_a_description_may_have_more_words() -> None:
    assert require_gpu("8 x NVIDIA H200, water-cooled", "mine")[0].name == "NVIDIA H200"
    with pytest.raises(UsageError, match=r"mine: description.accelerator_model_name: found 'foo'; name .* with --gpu"):
        require_gpu("foo", "mine")


@pytest.mark.parametrize(
    "name", ["H2000", "NVIDIA A1000", "NVIDIA RTX A1000", "B2000", "RTX A50000", "RTX 40900", "TPU-v50", "Ascend 9100"]
)
def test_a_longer_number_is_another_model(name: str) -> None:
    assert find_accelerator(name) is None
