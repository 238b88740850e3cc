"""Reading of metrics.jsonl, statistics, and downsampling of curves."""

import json
import math
import random
from pathlib import Path
from statistics import stdev

import numpy as np
import pytest

from podium.report.metrics import (
    BINS,
    MAX_LINE,
    QUANTITIES,
    Curve,
    Distribution,
    Downsampler,
    Evaluation,
    Metrics,
    extremes,
    read_metrics,
    summarise,
)
from tests.podium.report.conftest import evaluation, lines, step


def read(tmp_path: Path, content: str | bytes) -> Metrics:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return read_metrics(path)


def test_steps_evaluations_and_skipped_steps(tmp_path: Path) -> None:
    skipped = {"event": "skipped", "step": 3, "samples": 32}
    found = read(tmp_path, lines([step(1), step(2, tokens=3800), skipped, evaluation(32, 0.25), step(3)]))
    assert (found.steps, found.samples, found.skipped, found.damaged) == (3, 48, 1, 0)
    assert found.padding_share == pytest.approx(1 - (3900 + 3800 + 3900) / 12_000)
    assert found.evaluations == [Evaluation(32, 0.25, 0.6, 2.0)]
    assert set(found.curves) == set(QUANTITIES)
    assert found.curves["masked_lm_loss"].mean.tolist() == pytest.approx([5.99, 5.98, 5.97])
    assert found.curves["padding_share"].mean.tolist() == pytest.approx([0.025, 0.05, 0.025])
    assert found.curves["learning_rate"].at.tolist() == [16, 32, 48]
    assert found.balance.quantiles([0.5, 1.0]) == pytest.approx([1.1, 1.1], rel=1e-4)
    assert not found.unfinished and not found.backwards


def test_missing_file_has_no_steps(tmp_path: Path) -> None:
    found = read_metrics(tmp_path / "metrics.jsonl")
    assert (found.steps, found.curves, found.evaluations, found.damaged) == (0, {}, [], 0)


def test_incomplete_last_line_is_omitted(tmp_path: Path) -> None:
    complete = lines([step(1), step(2)])
    found = read(tmp_path, complete + lines([step(3)])[:-1])
    assert (found.steps, found.unfinished, found.damaged) == (2, True, 0)
    assert not read(tmp_path, complete).unfinished


def test_lines_of_older_versions_lack_keys(tmp_path: Path) -> None:
    line = {"event": "step", "step": 1, "samples": 16, "loss": 7.0}
    found = read(tmp_path, lines([line, {"event": "evaluation", "samples": 16, "accuracy": 0.1}]))
    assert set(found.curves) == {"loss"}
    assert found.padding_share is None and not found.not_finite and not found.balance.total
    assert found.evaluations == [Evaluation(16, 0.1, None, None)]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e101, None, "7", True, [7.0]])
def test_non_finite_values_are_counted_and_omitted_in_curves(tmp_path: Path, value: object) -> None:
    found = read(tmp_path, lines([step(1), step(2, gradient_norm=value), step(3), step(4, gradient_norm=value)]))
    assert found.steps == 4 and found.damaged == 0
    assert found.curves["gradient_norm"].points == 2 and found.curves["loss"].points == 4
    reported = found.not_finite["gradient_norm"]
    assert (reported.count, reported.samples) == (2, 32)
    assert set(found.not_finite) == {"gradient_norm"}


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"\xff\xfe", "is not UTF-8"),
        (b"{", "is not valid JSON"),
        (b"", "is not valid JSON"),
        (b"7", "is not a JSON object"),
        (b"[" * 5_000, "is"),
        (b"[" * 50_000, "has more than"),
        (b"x" * (3 * MAX_LINE), "is longer than"),
        (b'{"event": "stop", "samples": 1}', "has an event other than step"),
        (b'{"event": ["step"], "samples": 1}', "has an event other than step"),
        (b'{"event": "step"}', "has no number of samples"),
        (b'{"event": "step", "samples": -1}', "has no number of samples"),
        (b'{"event": "step", "samples": 1e999}', "has no number of samples"),
        (b'{"event": "step", "samples": ' + b"9" * 5_000 + b"}", "has no number of samples"),
        (
            b'{"event": "evaluation", "samples": 1, "accuracy": 1.5}',
            "is an evaluation whose accuracy is not between 0 and 1",
        ),
        (b'{"event": "evaluation", "samples": 1}', "is an evaluation whose accuracy is not between 0 and 1"),
    ],
)
def test_damaged_lines_are_counted(tmp_path: Path, line: bytes, why: str) -> None:
    one, two = (lines([step(number)]).encode() for number in (1, 2))
    found = read(tmp_path, one + line + b"\n" + two + line + b"\n")
    assert (found.steps, found.damaged, found.first_damaged) == (2, 2, 2)
    assert found.why_damaged.startswith(why)


def test_invalid_token_counts_give_no_padding(tmp_path: Path) -> None:
    steps = [step(1, tokens=5000), step(2, slots=0, tokens=0), step(3, tokens="many"), step(4)]
    found = read(tmp_path, lines(steps))
    assert found.padding_share == pytest.approx(0.025)
    assert found.curves["padding_share"].points == 1 and found.steps == 4


def test_decreasing_samples_are_reported(tmp_path: Path) -> None:
    assert read(tmp_path, lines([step(1), step(2), evaluation(32, 0.1), step(1), step(2)])).backwards == 4
    assert read(tmp_path, lines([step(2), evaluation(16, 0.1), step(3)])).backwards == 0


def test_spike_among_many_steps_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    with path.open("w") as file:
        for number in range(1, 20_001):
            line = step(number, masked_lm_loss=77.0) if number == 12_345 else step(number)
            file.write(json.dumps(line) + "\n")
    found = read_metrics(path)
    curve = found.curves["masked_lm_loss"]
    assert found.steps == 20_000 and len(curve.at) <= 512
    assert curve.greatest == 77.0 and curve.high_at[curve.high.argmax()] == 16 * 12_345


def test_statistics() -> None:
    over = summarise([1.0, 2.0, 6.0])
    assert over is not None
    assert (over.n, over.mean, over.least, over.greatest) == (3, 3.0, 1.0, 6.0)
    assert over.sd == pytest.approx(stdev([1.0, 2.0, 6.0]))
    assert summarise([]) is None
    one = summarise([4.0])
    assert one is not None and one.sd is None and one.mean == 4.0


def test_quantiles_of_a_distribution() -> None:
    numbers = random.Random(1)
    values = [1 + numbers.expovariate(20) for _ in range(5_001)]
    distribution = Distribution()
    for value in values:
        distribution.add(value)
    shares = [0.01, 0.5, 0.95, 1.0]
    exact = np.quantile(values, shares, method="inverted_cdf")
    assert distribution.quantiles(shares) == pytest.approx(exact.tolist(), rel=1e-4)
    assert distribution.total == 5_001


def test_empty_distribution_has_no_quantiles() -> None:
    assert Distribution().quantiles([0.5]) == []


def downsample(values: list[float], per_point: int = 16) -> Curve:
    downsampler = Downsampler()
    for number, value in enumerate(values, 1):
        downsampler.add(per_point * number, value)
    curve = downsampler.curve()
    assert curve is not None
    return curve


def test_few_points_are_kept() -> None:
    values = [math.sin(number) for number in range(BINS)]
    curve = downsample(values)
    assert curve.is_exact and curve.points == BINS
    assert curve.mean.tolist() == values == curve.low.tolist() == curve.high.tolist()
    assert curve.at.tolist() == [16.0 * number for number in range(1, BINS + 1)]


@pytest.mark.parametrize("count", [BINS + 1, 1024, 1025, 5_000, 40_001])
def test_downsampling_keeps_extremes_positions_and_mean(count: int) -> None:
    numbers = random.Random(count)
    values = [numbers.gauss(5, 1) for _ in range(count)]
    spike, dip = count // 3, 2 * count // 3
    values[spike], values[dip] = 99.0, -99.0
    curve = downsample(values)
    assert BINS / 2 <= len(curve.at) <= BINS
    assert curve.points == count
    assert curve.greatest == 99.0 and curve.least == -99.0
    assert curve.high_at[curve.high.argmax()] == 16 * (spike + 1)
    assert curve.low_at[curve.low.argmin()] == 16 * (dip + 1)
    assert curve.mean_of_all == pytest.approx(sum(values) / count)
    assert (curve.low <= curve.mean).all() and (curve.mean <= curve.high).all()
    assert (np.diff(curve.at) > 0).all()


def test_each_bin_has_its_points() -> None:
    curve = downsample([float(number) for number in range(3_000)], per_point=1)
    start = 0
    for place, count in enumerate(curve.size.astype(int)):
        assert curve.low[place] == start and curve.high[place] == start + count - 1
        assert curve.mean[place] == pytest.approx(start + (count - 1) / 2)
        assert curve.at[place] == pytest.approx(start + 1 + (count - 1) / 2, abs=0.5 * count)
        start += count
    assert start == 3_000


def test_missing_values_are_omitted() -> None:
    downsampler = Downsampler()
    for number in range(2_000):
        downsampler.add(number, 7.0 if number == 1234 else math.nan)
    once = downsampler.curve()
    assert once is not None and once.points == 1 and once.mean.tolist() == [7.0] and once.high_at.tolist() == [1234.0]


def test_curve_can_be_downsampled_again() -> None:
    values = [1.0] * 900
    values[700] = 50.0
    curve = downsample(values).downsample(40)
    assert 20 <= len(curve.at) <= 40
    assert curve.greatest == 50.0 and curve.points == 900
    assert curve.high_at[curve.high.argmax()] == 16 * 701
    assert curve.mean_of_all == pytest.approx(sum(values) / 900)
    assert len(downsample(values).downsample(1).at) == 1


def test_no_points_give_no_curve() -> None:
    assert Downsampler().curve() is None


def test_extremes_of_many_points_are_kept() -> None:
    numbers = random.Random(3)
    points = [(100.0 * place, numbers.random()) for place in range(1, 2_001)]
    points[777], points[1_500] = (77_800.0, 5.0), (150_100.0, -5.0)
    kept = extremes(points, 100)
    assert 50 <= len(kept) <= 100 and set(kept) <= set(points)
    assert {points[777], points[1_500]} <= set(kept) and kept == sorted(kept)
    assert extremes(points[:100], 100) == points[:100]
