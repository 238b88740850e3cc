"""Constants: each is described, the search finds a minimum, and the committed values follow from the fit."""

import json
from dataclasses import asdict, replace
from math import log
from pathlib import Path

import pytest

from benchmarks.bert.published.reading import read_runs
from podium.planning.prediction.constants import CONSTANTS_PATH, Constants, load_constants, save_constants
from podium.planning.prediction.fit import (
    FITTED_NAMES,
    INITIAL_CONSTANTS,
    compass_search,
    fit_constants,
    log_errors,
    measure_error_intervals,
)
from podium.planning.prediction.published import is_fitted, is_tested, known_samples


def test_every_constant_is_described() -> None:
    about = json.loads(CONSTANTS_PATH.read_text(encoding="utf-8"))["constants"]
    assert set(about) == set(asdict(INITIAL_CONSTANTS)) - {"error_intervals"}
    for entry in about.values():
        assert entry["unit"]
        assert entry["what"]
        assert entry["source"] in ("fitted", "assumed", "counted")
    assert all(about[name]["source"] == "fitted" for name in FITTED_NAMES)


def test_constants_round_trip(tmp_path: Path) -> None:
    save_constants(INITIAL_CONSTANTS, tmp_path / "c.json", ["one", "two"])
    assert load_constants(tmp_path / "c.json") == replace(INITIAL_CONSTANTS, evaluation_share=0.33333)
    written, committed = (
        json.loads(path.read_text(encoding="utf-8")) for path in (tmp_path / "c.json", CONSTANTS_PATH)
    )
    assert written["fitted_on"] == ["one", "two"]
    for name, entry in committed["constants"].items():
        assert written["constants"][name] == entry | {"value": written["constants"][name]["value"]}


def test_a_file_with_other_constants_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    path.write_text(
        CONSTANTS_PATH.read_text(encoding="utf-8").replace('"hop_inside"', '"hope_inside"'), encoding="utf-8"
    )
    with pytest.raises(ValueError, match="hope_inside"):
        load_constants(path)


def test_compass_search_finds_the_minimum() -> None:
    def loss(constants: Constants) -> float:
        return abs(log(constants.hop_inside / 3e-6)) + abs(log(constants.memory_efficiency / 0.5)) + 1

    found = compass_search(INITIAL_CONSTANTS, ("hop_inside", "memory_efficiency"), loss)
    assert found.hop_inside == pytest.approx(3e-6, rel=1e-3)
    assert found.memory_efficiency == pytest.approx(0.5, rel=1e-3)
    assert (
        replace(found, hop_inside=INITIAL_CONSTANTS.hop_inside, memory_efficiency=INITIAL_CONSTANTS.memory_efficiency)
        == INITIAL_CONSTANTS
    )


def test_committed_error_intervals_match_the_back_test() -> None:
    found, committed = measure_error_intervals(read_runs(), load_constants()), load_constants().error_intervals
    assert len(found) == len(committed) == 8
    for one, other in zip(found, committed, strict=True):
        assert (one.low, one.high) == pytest.approx((other.low, other.high), abs=2e-4)
        assert replace(one, low=0, high=0) == replace(other, low=0, high=0)


def test_log_errors_fall_with_the_predicted_rate() -> None:
    runs = [run for run in read_runs() if is_fitted(run)][:2]
    published = known_samples(read_runs())
    half = replace(load_constants(), sustained_flops_sxm=1e12, sustained_flops_pcie=1e12)
    slow, now = (log_errors(runs, constants, published) for constants in (half, load_constants()))
    assert all(one < -3 for one in slow)
    assert all(abs(one) < 0.1 for one in now)


def test_committed_constants_minimise_the_loss() -> None:
    """Changing a searched constant by half a percent increases the loss."""
    runs, constants = read_runs(), load_constants()
    fitted, published = [run for run in runs if is_fitted(run)], known_samples(runs)

    def loss(name: str, factor: float) -> float:
        tried = replace(constants, **{name: getattr(constants, name) * factor})
        return sum(abs(error) for error in log_errors(fitted, tried, published))

    for name in FITTED_NAMES:
        assert loss(name, 1) < min(loss(name, 1.005), loss(name, 1 / 1.005)), name


@pytest.mark.exhaustive
def test_committed_constants_follow_from_the_fitted_runs_only() -> None:
    runs = [run for run in read_runs() if not is_tested(run)]
    found, committed = asdict(fit_constants(runs)), asdict(load_constants())
    del found["error_intervals"]
    for name, value in found.items():
        assert committed[name] == pytest.approx(value, rel=2e-4), name
