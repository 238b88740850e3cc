"""Step costs: their fit, their file, and the conditions under which they are valid."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from podium.config.load import load_system
from podium.core.errors import UsageError
from podium.planning.costs import TERMS, StepCosts, find_differences, fit, load_costs, save_costs

COSTS = StepCosts(step=3e-3, token=2e-6, pair=1e-9, masked=5e-6, sequence=1e-5)


def compositions(seed: int, count: int = 12) -> list[tuple[np.ndarray, int]]:
    random = np.random.default_rng(seed)
    return [
        (lengths := random.integers(5, 512, random.integers(2, 40)), int(random.uniform(0.05, 0.3) * lengths.sum()))
        for _ in range(count)
    ]


@given(st.lists(st.sampled_from([0.0, 1e-9, 1e-6, 1e-3]), min_size=5, max_size=5).filter(any), st.integers(0, 50))
@settings(deadline=None, max_examples=50)
def test_fit_recovers_costs_from_exact_times(values: list[float], seed: int) -> None:
    costs = StepCosts(*values)
    steps = [(lengths, masked, costs.seconds(lengths, masked)) for lengths, masked in compositions(seed)]
    found = fit(steps)
    for lengths, masked, seconds in steps:
        assert found.seconds(lengths, masked) == pytest.approx(seconds, rel=1e-4)
    assert found.median_relative_error < 1e-4


def test_each_term_has_its_coefficient() -> None:
    lengths = np.array([10, 20])
    for term, amount in zip(TERMS, (1, 30, 500, 4, 2), strict=True):
        only = StepCosts(**{name: float(name == term) for name in TERMS})
        assert only.seconds(lengths, 4) == amount


def test_no_coefficient_is_negative() -> None:
    """Also where ordinary least squares would have one: times that fall with the number of tokens."""
    steps = [(lengths, masked, 1.0 - 1e-5 * lengths.sum()) for lengths, masked in compositions(3)]
    found = fit(steps)
    assert min(getattr(found, term) for term in TERMS) >= 0
    assert found.median_relative_error < 0.1


def test_fit_tolerates_noise() -> None:
    random = np.random.default_rng(0)
    steps = [(n, m, COSTS.seconds(n, m) * random.uniform(0.97, 1.03)) for n, m in compositions(1, 60)]
    found = fit(steps)
    lengths = np.full(20, 256)
    assert found.seconds(lengths, 700) == pytest.approx(COSTS.seconds(lengths, 700), rel=0.03)
    assert 0.005 < found.median_relative_error < 0.03


def test_too_few_steps_are_an_error() -> None:
    with pytest.raises(ValueError, match="4 steps are too few for 5 coefficients"):
        fit([(lengths, masked, 1.0) for lengths, masked in compositions(0, 4)])


def test_costs_are_saved_with_their_conditions(tmp_path: Path) -> None:
    path = tmp_path / "costs" / "here.json"
    save_costs(COSTS, path, {"system": "here"})
    assert load_costs(path)[0] == COSTS
    assert json.loads(path.read_text(encoding="utf-8"))["measured"] == {"system": "here"}
    assert [file.name for file in path.parent.iterdir()] == ["here.json"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "no step costs could be read"),
        ("{", "no step costs could be read"),
        ('{"seconds": {"step": 1}}', "no step costs could be read"),
        ('{"seconds": null}', "no step costs could be read"),
        ("NEGATIVE", "seconds.pair: found -1.0, allowed are numbers from 0 on"),
        ("NAN", "seconds.pair: found nan, allowed are numbers from 0 on"),
    ],
)
def test_damaged_costs_file_is_an_error(text: str | None, message: str, tmp_path: Path) -> None:
    path = tmp_path / "costs.json"
    if text in ("NEGATIVE", "NAN"):
        save_costs(COSTS, path, {})
        number = "-1.0" if text == "NEGATIVE" else "NaN"
        path.write_text(path.read_text(encoding="utf-8").replace("1e-09", number), encoding="utf-8")
    elif text is not None:
        path.write_text(text, encoding="utf-8")
    with pytest.raises(UsageError, match=f"{message}.*podium bench"):
        load_costs(path)


MEASURED: dict[str, Any] = {
    "recipe": "indexed",
    "attention": "grouped",
    "kernels": "auto",
    "device": "cpu",
    "precision": "bf16",
    "layers": 2,
    "hidden": 128,
    "global_batch_size": 16,
    "ranks": 1,
}


@pytest.mark.parametrize(
    ("settings", "others", "doubts"),
    [
        ([], [], []),
        (
            ["size=large", "optimizer.algorithm=lamb", "hyperparameters=lamb_448"],
            ["layers 2, not 24", "hidden 128, not 1024"],
            [],
        ),
        (["precision=fp32"], [], ["precision bf16, not fp32"]),
        (["precision=bf16"], [], []),
        (
            ["global_batch_size=32", "attention=padded"],
            [],
            ["attention grouped, not padded", "global_batch_size 16, not 32"],
        ),
        (["launch.processes_per_node=2"], [], ["ranks 1, not 2"]),
        (["launch.device=cuda"], ["device cpu, not cuda"], []),
    ],
)
def test_differences_are_listed(settings: list[str], others: list[str], doubts: list[str]) -> None:
    assert find_differences(load_system("laptop", settings=settings), MEASURED) == (others, doubts)


def test_any_gpu_name_counts_as_cuda() -> None:
    others, _ = find_differences(load_system("h200_1x"), {"device": "NVIDIA H200", "layers": 24, "hidden": 1024})
    assert others == []


def test_missing_keys_are_no_differences() -> None:
    assert find_differences(load_system("laptop"), {}) == ([], [])
