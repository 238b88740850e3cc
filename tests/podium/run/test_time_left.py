"""Time left of a run: from earlier runs, published ones, the accuracy so far, or the maximum of samples."""

import json
from pathlib import Path
from typing import Any

import pytest

from podium.config.load import load_system, write_resolved
from podium.config.run_folder import RunFolder
from podium.config.schema import RunConfig
from podium.run.time_left import TimeLeft, expected_samples

SET = "2026-11-21_10-00-00_000001"


@pytest.fixture
def config() -> RunConfig:
    """The laptop's: an evaluation every 2,048 samples, at most 60,000."""
    return load_system("laptop", settings=["evaluation.interval_samples=2048", "max_samples=60000"])


def follow(config: RunConfig, expected: float | None, *evaluations: tuple[float, float], samples: float) -> TimeLeft:
    """An estimate after a hundred samples a second, up to `samples`."""
    now = [0.0]
    left = TimeLeft(config, expected, clock=lambda: now[0])
    left.add_step(1)
    for one in evaluations:
        left.add_evaluation(*one)
    now[0] = (samples - 1) / 100
    left.add_step(samples)
    return left


def test_samples_of_earlier_runs_give_the_time_left(config: RunConfig) -> None:
    left = follow(config, 10_000, samples=4_240)
    assert left.samples_to_target()[0] == 10_240  # at the next evaluation
    assert left.text() == "about 1:00 left"


def test_accuracy_is_extrapolated_where_the_run_has_passed_the_earlier_ones(config: RunConfig) -> None:
    left = follow(config, 4_000, (2_048, 0.2), (4_096, 0.5), samples=4_144)
    assert left.samples_to_target() == (6_144, "{} or more left")
    assert left.text() == "0:20 or more left"


def test_accuracy_is_extrapolated_where_nothing_is_known(config: RunConfig) -> None:
    known = (2_048, 0.12), (4_096, 0.32)
    assert follow(config, None, *known, samples=5_000).text() == "at most 9:10 left"  # two are too few
    assert follow(config, None, *known, (6_144, 0.52), samples=6_192).text() == "0:20 or more left"


@pytest.mark.parametrize("accuracy", [0.3, 0.32])
def test_accuracy_that_does_not_rise_leaves_the_maximum(config: RunConfig, accuracy: float) -> None:
    left = follow(config, 4_000, (4_096, 0.32), (6_144, accuracy), samples=6_200)
    assert left.samples_to_target() == (60_000, "at most {} left")


def test_run_without_a_target_ends_at_its_maximum(config: RunConfig) -> None:
    without = config.model_copy(update={"target_accuracy": None})
    assert follow(without, None, samples=59_000).text() == "about 0:10 left"


def test_hours_are_written_as_such(config: RunConfig) -> None:
    long = config.model_copy(update={"max_samples": 1_000_000, "target_accuracy": None})
    assert follow(long, None, samples=100_000).text() == "about 2:30:00 left"


def test_the_rate_of_the_last_minutes_counts(config: RunConfig) -> None:
    """A run that becomes ten times slower, as on a machine that others begin to use."""
    now = [0.0]
    left = TimeLeft(config.model_copy(update={"target_accuracy": None, "max_samples": 20_000}), None, lambda: now[0])
    for samples in range(0, 10_001, 100):
        now[0] = samples / 100
        left.add_step(samples)
    assert left.text() == "about 1:40 left"
    for samples in range(10_100, 15_001, 100):
        now[0] = 100 + (samples - 10_000) / 10
        left.add_step(samples)
    assert left.text() == "about 8:20 left", "not 3:20, by the mean of the whole run"


def test_nothing_is_stated_before_the_second_step(config: RunConfig) -> None:
    left = TimeLeft(config, 10_000)
    assert left.text() == ""
    left.add_step(16)
    assert left.text() == ""


def add_run(runs: Path, number: int, config: RunConfig, samples: int, reached: bool = True) -> Path:
    folder = RunFolder(runs / "laptop" / SET / f"run_{number}")
    folder.path.mkdir(parents=True)
    write_resolved(config.model_copy(update={"seed": number}), folder.config)
    document: dict[str, Any] = {"reached_target": reached, "samples": samples}
    folder.summary.write_text(json.dumps(document), encoding="utf-8")
    return folder.path


def test_expected_samples_are_the_median_of_runs_with_the_same_settings(config: RunConfig, tmp_path: Path) -> None:
    other = config.model_copy(update={"global_batch_size": 32})
    add_run(tmp_path, 0, config, 8_192)
    add_run(tmp_path, 1, config, 12_288)
    add_run(tmp_path, 2, config, 10_240)
    add_run(tmp_path, 3, config, 60_000, reached=False)
    add_run(tmp_path, 4, other, 20_000)
    own = add_run(tmp_path, 5, config, 30_000)
    assert expected_samples(config, tmp_path, own) == 10_240
    assert expected_samples(other, tmp_path, own) == 20_000


def test_without_earlier_runs_known_samples_of_the_model_are_expected(config: RunConfig, tmp_path: Path) -> None:
    found = expected_samples(config, tmp_path)
    assert found and 5_000 < found < 20_000
    assert expected_samples(config.model_copy(update={"target_accuracy": 0.6}), tmp_path) is None
    assert expected_samples(config.model_copy(update={"target_accuracy": None}), tmp_path) is None


def test_a_resumed_run_has_no_rate_before_its_second_step(config: RunConfig) -> None:
    """Steps from before it was resumed are read at once, and nothing is known of their times."""
    now = [0.0]
    left = TimeLeft(config, 10_000, lambda: now[0])
    left.add_step(16)
    now[0] = 5.0
    left.add_step(4_048, restarted=True)
    assert (left.text(), left.samples_per_second) == ("", None)
    now[0] = 6.0
    left.add_step(4_148)
    assert left.samples_per_second == 100
