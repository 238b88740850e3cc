"""Constants: each is described, the search finds what it should, and the committed ones are what the fit gives."""

import json
from dataclasses import asdict, replace
from math import log
from pathlib import Path

import pytest

from benchmarks.bert.published.reading import read_runs
from podium.planning.prediction.constants import PATH, Constants, load_constants, save_constants
from podium.planning.prediction.fit import SEARCHED, START, compass, fit_constants, log_errors, misses_of
from podium.planning.prediction.published import is_fitted, is_tested, known_samples


def test_every_constant_is_described() -> None:
    about = json.loads(PATH.read_text(encoding="utf-8"))["constants"]
    assert set(about) == set(asdict(START)) - {"misses"}
    for entry in about.values():
        assert entry["unit"]
        assert entry["what"]
        assert entry["source"] in ("fitted", "assumed", "counted")
    assert all(about[name]["source"] == "fitted" for name in SEARCHED)


def test_constants_there_and_back(tmp_path: Path) -> None:
    save_constants(START, tmp_path / "c.json", ["one", "two"])
    assert load_constants(tmp_path / "c.json") == replace(START, evaluation_share=0.33333)
    written, committed = (json.loads(path.read_text(encoding="utf-8")) for path in (tmp_path / "c.json", PATH))
    assert written["fitted_on"] == ["one", "two"]
    for name, entry in committed["constants"].items():
        assert written["constants"][name] == entry | {"value": written["constants"][name]["value"]}


def test_a_file_with_other_constants_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    path.write_text(PATH.read_text(encoding="utf-8").replace('"hop_inside"', '"hope_inside"'), encoding="utf-8")
    with pytest.raises(ValueError, match="hope_inside"):
        load_constants(path)


def test_the_compass_finds_the_least() -> None:
    def loss(constants: Constants) -> float:
        return abs(log(constants.hop_inside / 3e-6)) + abs(log(constants.memory_efficiency / 0.5)) + 1

    found = compass(START, ("hop_inside", "memory_efficiency"), loss)
    assert found.hop_inside == pytest.approx(3e-6, rel=1e-3)
    assert found.memory_efficiency == pytest.approx(0.5, rel=1e-3)
    assert replace(found, hop_inside=START.hop_inside, memory_efficiency=START.memory_efficiency) == START


def test_the_committed_misses_are_those_of_the_back_test() -> None:
    found, committed = misses_of(read_runs(), load_constants()), load_constants().misses
    assert len(found) == len(committed) == 8
    for one, other in zip(found, committed, strict=True):
        assert (one.low, one.high) == pytest.approx((other.low, other.high), abs=2e-4)
        assert replace(one, low=0, high=0) == replace(other, low=0, high=0)


def test_errors_are_of_the_rate() -> None:
    runs = [run for run in read_runs() if is_fitted(run)][:2]
    published = known_samples(read_runs())
    half = replace(load_constants(), sustained_flops_sxm=1e12, sustained_flops_pcie=1e12)
    slow, now = (log_errors(runs, constants, published) for constants in (half, load_constants()))
    assert all(one < -3 for one in slow)
    assert all(abs(one) < 0.1 for one in now)


def test_the_committed_constants_suit_the_fitted_runs_best() -> None:
    """No searched one is better half a percent higher or lower."""
    runs, constants = read_runs(), load_constants()
    fitted, published = [run for run in runs if is_fitted(run)], known_samples(runs)

    def loss(name: str, factor: float) -> float:
        tried = replace(constants, **{name: getattr(constants, name) * factor})
        return sum(abs(error) for error in log_errors(fitted, tried, published))

    for name in SEARCHED:
        assert loss(name, 1) < min(loss(name, 1.005), loss(name, 1 / 1.005)), name


@pytest.mark.exhaustive
def test_the_committed_constants_are_the_fit_of_the_fitted_runs_alone() -> None:
    runs = [run for run in read_runs() if not is_tested(run)]
    found, committed = asdict(fit_constants(runs)), asdict(load_constants())
    del found["misses"]
    for name, value in found.items():
        assert committed[name] == pytest.approx(value, rel=2e-4), name
