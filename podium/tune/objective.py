"""Objective of a trial: samples to the target accuracy, from the accuracies of a training run."""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean

from podium.config.load import write_resolved
from podium.config.run_folder import RunFolder
from podium.config.schema import RunConfig
from podium.core.errors import WorkError
from podium.core.files import make_folder, write_atomically
from podium.core.json_files import read_json
from podium.core.text import one_line, short_repr
from podium.launch.launch import launch
from podium.run.progress import MetricsReader

# Called with samples and accuracy at each evaluation; an exception that it raises ends the training.
OnEvaluation = Callable[[int, float], None]


@dataclass(frozen=True)
class Outcome:
    """Result of one training, or of several repeats of it."""

    value: float  # the objective, minimised: samples to target, interpolated, or a penalty if it was not reached
    reached: bool
    samples: int  # trained on
    accuracy: float  # best over evaluations
    failure: str = ""  # error message of a training that failed

    def describe(self, target: float) -> str:
        """What was observed, and what the objective is: an interpolated crossing of the target, or a penalty."""
        if self.reached:
            return f"{self.value:,.0f} samples to the target (interpolated), {self.samples:,} trained"
        failed = f"; failed: {one_line(self.failure)}" if self.failure else ""
        return (
            f"target not reached in {self.samples:,} samples, accuracy {self.accuracy:.4f} of {target:g}, objective "
            f"{self.value:,.0f}{failed}"
        )

    @classmethod
    def of_repeats(cls, outcomes: Sequence["Outcome"]) -> "Outcome":
        """Combine trainings with the same settings: reached if all of them reached the target.

        The value is their mean, including the penalties (max_samples or more) of those that did not reach it.
        """
        return cls(
            value=mean(one.value for one in outcomes),
            reached=all(one.reached for one in outcomes),
            samples=sum(one.samples for one in outcomes),
            accuracy=min(one.accuracy for one in outcomes),
            failure=next((one.failure for one in outcomes if one.failure), ""),
        )


def train(config: RunConfig, folder: RunFolder, on_evaluation: OnEvaluation = lambda *_: None) -> Outcome:
    """Train once, as `podium run` does but without a result file. The run's other files are written to `folder`.

    A training that fails, for example by divergence, is valued by its best accuracy so far. Raises UsageError for a
    configuration that cannot be trained, Interrupted, and any exception of `on_evaluation`.
    """
    assert config.target_accuracy is not None and config.seed is not None
    make_folder(folder.path)
    write_resolved(config, folder.config)
    reader, curve = MetricsReader(folder.metrics), list[tuple[int, float]]()

    def tick() -> None:
        for line in reader.lines():
            if line["event"] == "evaluation":
                curve.append((int(line["samples"]), float(line["accuracy"])))
                on_evaluation(*curve[-1])

    failure = ""
    try:
        launch(config, folder, "train", [], tick)
    except WorkError as error:
        failure = str(error)
    return outcome_of_curve(curve, config.target_accuracy, config.max_samples, failure)


def outcome_of_curve(curve: Sequence[tuple[int, float]], target: float, max_samples: int, failure: str = "") -> Outcome:
    """Compute the outcome of a curve of samples and accuracy at each evaluation.

    The target is reached where the straight line between two evaluations crosses it; the curve starts at (0, 0). A
    curve that does not reach the target has the value max_samples · (1 + (target − best accuracy) / target).
    """
    # Interpolated, since evaluations are so far apart that most settings would tie otherwise.
    best = max((accuracy for _, accuracy in curve), default=0.0)
    samples = curve[-1][0] if curve else 0
    before = (0, 0.0)
    for point in curve:
        if point[1] >= target:
            share = (target - before[1]) / (point[1] - before[1])
            return Outcome(before[0] + share * (point[0] - before[0]), True, point[0], best, failure)
        before = point
    return Outcome(max_samples * (1 + (target - best) / target), False, samples, best, failure)


def write_outcome(found: Outcome, path: Path) -> None:
    """Write the outcome as JSON, atomically."""
    write_atomically(path, json.dumps(asdict(found)) + "\n")


def read_outcome(path: Path) -> Outcome | None:
    """Read what `write_outcome` wrote; None if the file does not exist. Raises WorkError for a damaged file."""
    if not path.is_file():
        return None
    try:
        return Outcome(**read_json(path))
    except (ValueError, TypeError) as error:
        raise WorkError(
            f"{path}: is not the outcome of a training ({short_repr(error)}); remove the file to repeat the training"
        ) from None
