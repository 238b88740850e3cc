"""Samples to target from accuracy curves, and trainings that end in every way."""

from pathlib import Path
from typing import Any

import pytest

from podium.config.run_folder import RunFolder
from podium.config.schema import RunConfig
from podium.core.errors import UsageError
from podium.tune.objective import Outcome, keep_outcome, kept_outcome, outcome, train


@pytest.mark.parametrize(
    ("curve", "value", "reached"),
    [
        ([(100, 0.3), (200, 0.5), (300, 0.9)], 225.0, True),
        ([(100, 0.3), (200, 0.6)], 200.0, True),  # reached is ≥
        ([(100, 0.8)], 75.0, True),
        ([(100, 0.7), (200, 0.1)], 600 / 7, True),  # the first counts
        ([(100, 0.3), (200, 0.1)], 1500.0, False),
        ([(100, 0.6 - 1e-9)], 1000.0, False),
        ([], 2000.0, False),
    ],
)
def test_samples_to_target(curve: list[tuple[int, float]], value: float, reached: bool) -> None:
    found = outcome(curve, target=0.6, max_samples=1000)
    assert found.value == pytest.approx(value)
    assert found.reached is reached
    assert found.accuracy == max((accuracy for _, accuracy in curve), default=0.0)


def test_what_does_not_reach_the_target_is_worse_than_what_does() -> None:
    reached = outcome([(900, 0.0), (1000, 0.6)], 0.6, 1000)
    almost, hardly = (outcome([(1000, accuracy)], 0.6, 1000) for accuracy in (0.59, 0.1))
    assert reached.value <= 1000 < almost.value < hardly.value < 2000


EVALUATION = (
    'open(folder / \'metrics.jsonl\', \'a\').write(\'{"event": "evaluation", "samples": %d, "accuracy": %s}\\n\')\n'
)


def evaluations(*points: tuple[int, float]) -> str:
    return "".join(EVALUATION % point for point in points)


def test_a_training_is_watched_to_its_end(open_config: RunConfig, tmp_path: Path, as_implementation: Any) -> None:
    as_implementation(evaluations((16, 0.2), (32, 0.92)) + "(folder / 'summary.json').write_text('{}')")
    seen: list[tuple[int, float]] = []
    folder = RunFolder(tmp_path / "new/trial")
    found = train(open_config, folder, lambda samples, accuracy: seen.append((samples, accuracy)))
    assert seen == [(16, 0.2), (32, 0.92)]
    assert found == Outcome(pytest.approx(16 + 16 * 0.52 / 0.72), True, 32, 0.92)
    assert folder.config.is_file()


def test_a_training_that_breaks_off_counts_with_what_it_had(
    open_config: RunConfig, tmp_path: Path, as_implementation: Any
) -> None:
    as_implementation(evaluations((16, 0.36)) + "sys.exit(3)")
    found = train(open_config, RunFolder(tmp_path / "trial"))
    assert (found.reached, found.accuracy, found.samples) == (False, 0.36, 16)
    assert found.value == 1.5 * open_config.max_samples
    assert "ended with exit code 3" in found.failure


def test_a_training_that_cannot_be_is_no_bad_trial(
    open_config: RunConfig, tmp_path: Path, as_implementation: Any
) -> None:
    as_implementation(
        "(folder / 'failure.json').write_text(json.dumps({'exit_code': 2, 'message': 'no such thing'}))\nsys.exit(2)"
    )
    with pytest.raises(UsageError, match="no such thing"):
        train(open_config, RunFolder(tmp_path / "trial"))


def test_outcomes_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "outcome.json"
    assert kept_outcome(path) is None
    one = Outcome(12.5, False, 10, 0.25, "why")
    keep_outcome(one, path)
    assert kept_outcome(path) == one


def test_repeats_count_by_their_mean_with_failures() -> None:
    good, bad = Outcome(5000.0, True, 6000, 0.73), Outcome(24_000.0, False, 20_000, 0.4, "it broke off")
    assert Outcome.of_repeats([good]) == good
    both = Outcome.of_repeats([good, bad])
    assert both == Outcome(14_500.0, False, 26_000, 0.4, "it broke off")
