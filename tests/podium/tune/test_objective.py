"""Samples to target from accuracy curves, and the outcomes of trainings that end or fail."""

from pathlib import Path
from typing import Any

import pytest

from podium.config.run_folder import RunFolder
from podium.config.schema import RunConfig
from podium.core.errors import UsageError
from podium.tune.objective import Outcome, outcome_of_curve, read_outcome, train, write_outcome


@pytest.mark.parametrize(
    ("curve", "value", "reached"),
    [
        ([(100, 0.3), (200, 0.5), (300, 0.9)], 225.0, True),
        ([(100, 0.3), (200, 0.6)], 200.0, True),  # equal counts as reached
        ([(100, 0.8)], 75.0, True),
        ([(100, 0.7), (200, 0.1)], 600 / 7, True),  # the first crossing counts
        ([(100, 0.3), (200, 0.1)], 1500.0, False),
        ([(100, 0.6 - 1e-9)], 1000.0, False),
        ([], 2000.0, False),
    ],
)
def test_samples_to_target(curve: list[tuple[int, float]], value: float, reached: bool) -> None:
    found = outcome_of_curve(curve, target=0.6, max_samples=1000)
    assert found.value == pytest.approx(value)
    assert found.reached is reached
    assert found.accuracy == max((accuracy for _, accuracy in curve), default=0.0)


def test_curves_below_the_target_are_worse_than_those_that_reach_it() -> None:
    reached = outcome_of_curve([(900, 0.0), (1000, 0.6)], 0.6, 1000)
    almost, hardly = (outcome_of_curve([(1000, accuracy)], 0.6, 1000) for accuracy in (0.59, 0.1))
    assert reached.value <= 1000 < almost.value < hardly.value < 2000


EVALUATION = (
    'open(folder / \'metrics.jsonl\', \'a\').write(\'{"event": "evaluation", "samples": %d, "accuracy": %s}\\n\')\n'
)


def evaluations(*points: tuple[int, float]) -> str:
    return "".join(EVALUATION % point for point in points)


def test_evaluations_are_reported_until_the_training_ends(
    open_config: RunConfig, tmp_path: Path, as_implementation: Any
) -> None:
    as_implementation(evaluations((16, 0.2), (32, 0.92)) + "(folder / 'summary.json').write_text('{}')")
    seen: list[tuple[int, float]] = []
    folder = RunFolder(tmp_path / "new/trial")
    found = train(open_config, folder, lambda samples, accuracy: seen.append((samples, accuracy)))
    assert seen == [(16, 0.2), (32, 0.92)]
    assert found == Outcome(pytest.approx(16 + 16 * 0.52 / 0.72), True, 32, 0.92)
    assert folder.config.is_file()


def test_failed_training_has_the_value_of_its_best_accuracy(
    open_config: RunConfig, tmp_path: Path, as_implementation: Any
) -> None:
    as_implementation(evaluations((16, 0.36)) + "sys.exit(3)")
    found = train(open_config, RunFolder(tmp_path / "trial"))
    assert (found.reached, found.accuracy, found.samples) == (False, 0.36, 16)
    assert found.value == 1.5 * open_config.max_samples
    assert "ended with exit code 3" in found.failure


def test_invalid_configuration_is_an_error_and_not_an_outcome(
    open_config: RunConfig, tmp_path: Path, as_implementation: Any
) -> None:
    as_implementation(
        "(folder / 'failure.json').write_text(json.dumps({'exit_code': 2, 'message': 'no such thing'}))\nsys.exit(2)"
    )
    with pytest.raises(UsageError, match="no such thing"):
        train(open_config, RunFolder(tmp_path / "trial"))


def test_outcome_is_written_and_read(tmp_path: Path) -> None:
    path = tmp_path / "outcome.json"
    assert read_outcome(path) is None
    one = Outcome(12.5, False, 10, 0.25, "why")
    write_outcome(one, path)
    assert read_outcome(path) == one


def test_outcome_of_repeats_is_their_mean_with_penalties() -> None:
    good, bad = Outcome(5000.0, True, 6000, 0.73), Outcome(24_000.0, False, 20_000, 0.4, "it broke off")
    assert Outcome.of_repeats([good]) == good
    both = Outcome.of_repeats([good, bad])
    assert both == Outcome(14_500.0, False, 26_000, 0.4, "it broke off")


def test_a_penalty_is_not_described_as_samples_to_the_target() -> None:
    assert (
        Outcome(5924.4, True, 6144, 0.73).describe(0.72) == "5,924 samples to the target (interpolated), 6,144 trained"
    )
    missed = Outcome(946.2, False, 512, 0.1085, "ranks\nfailed").describe(0.72)
    assert missed == ("target not reached in 512 samples, accuracy 0.1085 of 0.72, objective 946; failed: ranks failed")
