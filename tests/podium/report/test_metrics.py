"""Lines of metrics.jsonl, whole and damaged.

Numbers that summarise numbers.

Curves stay bounded and hide nothing.
"""

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
    Evaluation,
    Metrics,
    Thinner,
    extremes,
    read_metrics,
    spread,
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


def test_no_file_is_no_steps(tmp_path: Path) -> None:
    found = read_metrics(tmp_path / "metrics.jsonl")
    assert (found.steps, found.curves, found.evaluations, found.damaged) == (0, {}, [], 0)


def test_a_line_that_is_being_written_is_left_for_later(tmp_path: Path) -> None:
    whole = lines([step(1), step(2)])
    found = read(tmp_path, whole + lines([step(3)])[:-1])
    assert (found.steps, found.unfinished, found.damaged) == (2, True, 0)
    assert not read(tmp_path, whole).unfinished


def test_keys_that_older_versions_did_not_write(tmp_path: Path) -> None:
    line = {"event": "step", "step": 1, "samples": 16, "loss": 7.0}
    found = read(tmp_path, lines([line, {"event": "evaluation", "samples": 16, "accuracy": 0.1}]))
    assert set(found.curves) == {"loss"}
    assert found.padding_share is None and not found.not_finite and not found.balance.total
    assert found.evaluations == [Evaluation(16, 0.1, None, None)]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e101, None, "7", True, [7.0]])
def test_what_is_no_finite_number_is_told_and_in_no_curve(tmp_path: Path, value: object) -> None:
    found = read(tmp_path, lines([step(1), step(2, gradient_norm=value), step(3), step(4, gradient_norm=value)]))
    assert found.steps == 4 and found.damaged == 0
    assert found.curves["gradient_norm"].points == 2 and found.curves["loss"].points == 4
    told = found.not_finite["gradient_norm"]
    assert (told.count, told.samples) == (2, 32)
    assert set(found.not_finite) == {"gradient_norm"}


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"\xff\xfe", "is not UTF-8"),
        (b"{", "is no JSON"),
        (b"", "is no JSON"),
        (b"7", "is no JSON object"),
        (b"[" * 5_000, "is"),
        (b"[" * 50_000, "holds more than"),
        (b"x" * (3 * MAX_LINE), "is longer than"),
        (b'{"event": "stop", "samples": 1}', "has an event that is none of step"),
        (b'{"event": ["step"], "samples": 1}', "has an event that is none of step"),
        (b'{"event": "step"}', "has no number of samples"),
        (b'{"event": "step", "samples": -1}', "has no number of samples"),
        (b'{"event": "step", "samples": 1e999}', "has no number of samples"),
        (b'{"event": "step", "samples": ' + b"9" * 5_000 + b"}", "has no number of samples"),
        (b'{"event": "evaluation", "samples": 1, "accuracy": 1.5}', "is an evaluation whose accuracy is no share"),
        (b'{"event": "evaluation", "samples": 1}', "is an evaluation whose accuracy is no share"),
    ],
)
def test_a_damaged_line_is_counted_and_the_others_are_read(tmp_path: Path, line: bytes, why: str) -> None:
    one, two = (lines([step(number)]).encode() for number in (1, 2))
    found = read(tmp_path, one + line + b"\n" + two + line + b"\n")
    assert (found.steps, found.damaged, found.first_damaged) == (2, 2, 2)
    assert found.why_damaged.startswith(why)


def test_tokens_that_make_no_sense_are_no_padding(tmp_path: Path) -> None:
    steps = [step(1, tokens=5000), step(2, slots=0, tokens=0), step(3, tokens="many"), step(4)]
    found = read(tmp_path, lines(steps))
    assert found.padding_share == pytest.approx(0.025)
    assert found.curves["padding_share"].points == 1 and found.steps == 4


def test_samples_that_go_back_are_noticed(tmp_path: Path) -> None:
    assert read(tmp_path, lines([step(1), step(2), evaluation(32, 0.1), step(1), step(2)])).backwards == 4
    assert read(tmp_path, lines([step(2), evaluation(16, 0.1), step(3)])).backwards == 0


def test_a_run_of_many_steps_keeps_a_spike(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    with path.open("w") as file:
        for number in range(1, 20_001):
            line = step(number, masked_lm_loss=77.0) if number == 12_345 else step(number)
            file.write(json.dumps(line) + "\n")
    found = read_metrics(path)
    curve = found.curves["masked_lm_loss"]
    assert found.steps == 20_000 and len(curve.at) <= 512
    assert curve.greatest == 77.0 and curve.high_at[curve.high.argmax()] == 16 * 12_345


def test_n_mean_and_sd() -> None:
    over = spread([1.0, 2.0, 6.0])
    assert over is not None
    assert (over.n, over.mean, over.least, over.greatest) == (3, 3.0, 1.0, 6.0)
    assert over.sd == pytest.approx(stdev([1.0, 2.0, 6.0]))
    assert spread([]) is None
    one = spread([4.0])
    assert one is not None and one.sd is None and one.mean == 4.0


def test_quantiles_are_those_of_all_values() -> None:
    numbers = random.Random(1)
    values = [1 + numbers.expovariate(20) for _ in range(5_001)]
    distribution = Distribution()
    for value in values:
        distribution.add(value)
    shares = [0.01, 0.5, 0.95, 1.0]
    exact = np.quantile(values, shares, method="inverted_cdf")
    assert distribution.quantiles(shares) == pytest.approx(exact.tolist(), rel=1e-4)
    assert distribution.total == 5_001


def test_a_distribution_of_nothing_has_no_quantiles() -> None:
    assert Distribution().quantiles([0.5]) == []


def thinned(values: list[float], per_point: int = 16) -> Curve:
    thinner = Thinner()
    for number, value in enumerate(values, 1):
        thinner.add(per_point * number, value)
    curve = thinner.curve()
    assert curve is not None
    return curve


def test_few_points_are_kept_as_they_are() -> None:
    values = [math.sin(number) for number in range(BINS)]
    curve = thinned(values)
    assert curve.whole and curve.points == BINS
    assert curve.mean.tolist() == values == curve.low.tolist() == curve.high.tolist()
    assert curve.at.tolist() == [16.0 * number for number in range(1, BINS + 1)]


@pytest.mark.parametrize("count", [BINS + 1, 1024, 1025, 5_000, 40_001])
def test_many_points_are_bounded_and_keep_extremes_places_and_mean(count: int) -> None:
    numbers = random.Random(count)
    values = [numbers.gauss(5, 1) for _ in range(count)]
    spike, dip = count // 3, 2 * count // 3
    values[spike], values[dip] = 99.0, -99.0
    curve = thinned(values)
    assert BINS / 2 <= len(curve.at) <= BINS
    assert curve.points == count
    assert curve.greatest == 99.0 and curve.least == -99.0
    assert curve.high_at[curve.high.argmax()] == 16 * (spike + 1)
    assert curve.low_at[curve.low.argmin()] == 16 * (dip + 1)
    assert curve.mean_of_all == pytest.approx(sum(values) / count)
    assert (curve.low <= curve.mean).all() and (curve.mean <= curve.high).all()
    assert (np.diff(curve.at) > 0).all()


def test_each_bin_tells_of_its_own_points() -> None:
    curve = thinned([float(number) for number in range(3_000)], per_point=1)
    start = 0
    for place, count in enumerate(curve.size.astype(int)):
        assert curve.low[place] == start and curve.high[place] == start + count - 1
        assert curve.mean[place] == pytest.approx(start + (count - 1) / 2)
        assert curve.at[place] == pytest.approx(start + 1 + (count - 1) / 2, abs=0.5 * count)
        start += count
    assert start == 3_000


def test_values_that_are_missing_count_nowhere() -> None:
    thinner = Thinner()
    for number in range(2_000):
        thinner.add(number, 7.0 if number == 1234 else math.nan)
    once = thinner.curve()
    assert once is not None and once.points == 1 and once.mean.tolist() == [7.0] and once.high_at.tolist() == [1234.0]


def test_a_curve_can_be_thinned_again_for_a_chart() -> None:
    values = [1.0] * 900
    values[700] = 50.0
    curve = thinned(values).at_most(40)
    assert 20 <= len(curve.at) <= 40
    assert curve.greatest == 50.0 and curve.points == 900
    assert curve.high_at[curve.high.argmax()] == 16 * 701
    assert curve.mean_of_all == pytest.approx(sum(values) / 900)
    assert len(thinned(values).at_most(1).at) == 1


def test_no_point_at_all() -> None:
    assert Thinner().curve() is None


def test_of_many_single_points_the_extremes_are_kept() -> None:
    numbers = random.Random(3)
    points = [(100.0 * place, numbers.random()) for place in range(1, 2_001)]
    points[777], points[1_500] = (77_800.0, 5.0), (150_100.0, -5.0)
    kept = extremes(points, 100)
    assert 50 <= len(kept) <= 100 and set(kept) <= set(points)
    assert {points[777], points[1_500]} <= set(kept) and kept == sorted(kept)
    assert extremes(points[:100], 100) == points[:100]
