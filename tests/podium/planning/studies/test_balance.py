"""Properties of the balance studies, at a tiny size."""

import numpy as np
import pytest

from benchmarks.bert.lengths import quantiles, wikipedia_histogram
from podium.planning import balance_report
from podium.planning.samplers import apportion
from podium.planning.studies.balance import (
    COMPARED_STRATEGIES,
    cost_variation_within_strata,
    count_per_stratum,
    length_histograms,
    lengths,
    quantile_lengths,
    scaling,
    small_batches,
    spread_histogram,
)
from podium.planning.studies.study import Table, crossing


@pytest.fixture(autouse=True)
def small_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(balance_report, "POOL", 20_000)


def column(table: Table, heading: str) -> list[object]:
    return [row[table.headings.index(heading)] for row in table.rows]


def test_small_batches_refuse_or_cost_more_than_a_global_assignment() -> None:
    study = small_batches(((16, 8), (32, 4), (64, 2)), steps=4)
    balances, slots = study.tables
    for presorted, indexed in zip(column(balances, "presorted"), column(balances, "indexed"), strict=True):
        assert presorted == "refused" or presorted >= indexed  # type: ignore[operator]
    by_shape = dict(zip(column(balances, "ranks × samples"), column(balances, "presorted"), strict=True))
    assert isinstance(by_shape["16 × 8"], float)
    assert by_shape["32 × 4"] == by_shape["64 × 2"] == "refused"
    assert all(isinstance(value, float) for value in column(balances, "node strata"))
    for text in column(slots, "slots"):
        assert ("0" in str(text).split(" ")[0].split("/")) == str(text).endswith("refused")
    for row in slots.rows:
        drawn = np.array(row[2:6], dtype=float) * count_per_stratum(wikipedia_histogram()) / wikipedia_histogram().sum()
        assert drawn.sum() == pytest.approx(1)
    assert "1, 2, 3, 4" in study.findings[0]
    assert not apportion(count_per_stratum(wikipedia_histogram()).astype(np.int64), 4).all()


def test_gain_of_a_global_assignment_grows_with_the_variation_inside_strata() -> None:
    study = lengths(64, (16, 4), points=3, steps=4)
    wide, narrow = (line for line in study.chart.lines if line.joined), study.tables[1]
    (line,) = wide  # with 4 samples a rank Wikipedia's strata are refused
    assert list(line.x) == sorted(line.x)
    assert line.y[0] < 0.5 < line.y[-1]
    assert [row[0] for row in narrow.rows] == [16]
    assert any(finding.startswith("4 samples a rank: presorting refuses") for finding in study.findings)
    for variation, value in zip(column(study.tables[0], "variation"), column(study.tables[0], "gain"), strict=True):
        if isinstance(value, float):  # presorting wins if its strata have samples of one length
            assert (value > -0.001) == (float(variation) > 0.1)  # type: ignore[arg-type]
    assert "refused" in column(study.tables[0], "presorted")


def test_length_histograms_have_the_shapes_of_their_names() -> None:
    found = length_histograms()
    assert all(h.sum() == pytest.approx(1e6) and (h >= 0).all() and not h[:3].any() for h in found.values())
    assert cost_variation_within_strata(found["strata of one length"]) == pytest.approx(0, abs=1e-9)
    assert (
        cost_variation_within_strata(found["strata of two ends"]) > cost_variation_within_strata(found["uniform"]) > 0.1
    )
    assert found["long, few short"][512] > 0.9e6
    middle = np.average(np.arange(513), weights=found["heavy-tailed"])
    assert middle > np.searchsorted(found["heavy-tailed"].cumsum(), 5e5)  # the mean is above the median
    variations = [cost_variation_within_strata(spread_histogram(spread)) for spread in (0.0, 0.5, 1.0)]
    assert variations == sorted(variations)
    assert count_per_stratum(spread_histogram(1.0)) == pytest.approx(count_per_stratum(wikipedia_histogram()))


def test_more_ranks_wait_longer_and_a_small_dataset_repeats_its_samples() -> None:
    study = scaling((8, 64), 16, (100_000, 200_000), steps=4)
    balances, steps, data = study.tables
    for row in balances.rows:
        named = dict(zip(balances.headings, row, strict=True))
        assert named["indexed"] <= min(float(named[name]) for name in COMPARED_STRATEGIES)  # type: ignore[arg-type,operator]
    for heading in ("random", "presorted"):
        near, far = column(balances, heading)
        assert near < far  # type: ignore[operator]
    for random, presorted, indexed in zip(
        *(column(steps, name) for name in ("random", "presorted", "indexed")), strict=True
    ):
        assert random > presorted >= indexed  # type: ignore[operator]
    assert [row[0] for row in data.rows] == [100_000, 200_000]
    for row in data.rows:
        epochs, slowest, fastest, twice = (float(value) for value in row[1:5])  # type: ignore[arg-type]
        assert slowest < epochs < fastest
        assert 0 < twice < 1
    ratios = [float(row[3]) / float(row[2]) for row in data.rows]  # type: ignore[arg-type]
    assert ratios[0] == pytest.approx(ratios[1], rel=0.01)


def test_a_dataset_has_the_lengths_at_its_quantiles() -> None:
    histogram = wikipedia_histogram()
    for count in (1, 7, 1000, 100_003):
        assert np.array_equal(quantile_lengths(histogram, count), quantiles(histogram, count))


def test_crossings() -> None:
    assert crossing((0, 1, 2), (0, 2, 4), 3) == pytest.approx(1.5)
    assert crossing((0, 1), (0, 1), 2) is None
    assert crossing((3, 4), (5, 6), 2) == 3
