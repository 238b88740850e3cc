"""The check of counted times on a CPU: real steps, timed operator by operator."""

import pytest

from implementations.pytorch.bench.roofline import PARTS
from implementations.pytorch.bench.roofline_check import measure, rank_correlation


def test_rank_correlation() -> None:
    assert rank_correlation([1.0, 2.0, 3.0], [10.0, 20.0, 90.0]) == 1.0
    assert rank_correlation([1.0, 2.0, 3.0], [3.0, 2.0, 1.0]) == -1.0
    assert rank_correlation([1.0, 2.0, 3.0, 4.0], [1.0, 2.0, 4.0, 3.0]) == pytest.approx(0.8)


def test_a_real_step_is_counted_and_timed(capsys: pytest.CaptureFixture[str]) -> None:
    measure(layers=1, hidden=64, sequences=2, steps=2, precision="fp32")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("1 layers x 64, 2 sequences") and "n = 2 steps" in lines[0]
    for part in PARTS:
        (line,) = (line for line in lines if line.startswith(f"{part} "))
        counted, measured, ratio = map(float, line.removeprefix(part).split())
        assert counted >= 0 and measured > 0 and ratio > 0
