"""Peaks of accelerators by precision, compared with data sheets."""

import pytest

from podium.planning.accelerators import _OTHER_PEAKS, _TABLE, find_accelerator


@pytest.mark.parametrize(
    ("text", "half", "fp32", "tf32", "fp8"),
    [
        ("NVIDIA T4", 65, 8.1, None, None),
        ("Tesla V100-SXM2-32GB", 125, 15.7, None, None),
        ("NVIDIA A100-SXM4-80GB (400W)", 312, 19.5, 156, None),
        ("NVIDIA H200", 989, 67, 494.5, 1979),
        ("NVIDIA H100-SXM5-80GB", 989, 67, 494.5, 1979),
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
