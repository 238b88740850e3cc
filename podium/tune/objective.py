"""The objective of a trial: the accuracies of a training run, and its samples to the target."""

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
from podium.core.text import short_repr
from podium.launch.launch import launch
from podium.run.progress import MetricsReader

# Is told of samples and accuracy; an exception that it raises ends the training.
OnEvaluation = Callable[[int, float], None]


@dataclass(frozen=True)
class Outcome:
    """What came of one training."""

    value: float  # samples to target, or the penalty of one that did not reach it: what is minimised
    reached: bool
    samples: int  # trained on
    accuracy: float  # the best
    failure: str = ""  # what a training that broke off ended with

    @classmethod
    def of_repeats(cls, outcomes: Sequence["Outcome"]) -> "Outcome":
        """Several trainings of the same settings as one outcome, reached where all of them reached the target.

        Its value is their mean, in which one that did not reach the target has its penalty of max_samples or more.
        """
        return cls(
            value=mean(one.value for one in outcomes),
            reached=all(one.reached for one in outcomes),
            samples=sum(one.samples for one in outcomes),
            accuracy=min(one.accuracy for one in outcomes),
            failure=next((one.failure for one in outcomes if one.failure), ""),
        )


def train(config: RunConfig, folder: RunFolder, on_evaluation: OnEvaluation = lambda *_: None) -> Outcome:
    """Train once, as a run does but for its result, and say what came of it. The folder holds the run's side files.

    A training that breaks off, as one that diverges does, counts with the best accuracy that it had. Raises UsageError
    for a configuration that cannot be trained, Interrupted, and what `on_evaluation` raises.
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
    return outcome(curve, config.target_accuracy, config.max_samples, failure)


def outcome(curve: Sequence[tuple[int, float]], target: float, max_samples: int, failure: str = "") -> Outcome:
    """Of samples and accuracy at each evaluation.

    The target counts as reached where the straight line between two evaluations crosses it, the first one beginning at
    no accuracy of no samples: evaluations are so far apart that most settings would tie otherwise. What does not reach
    it takes max_samples and as large a share of them more as its best accuracy is below the target.
    """
    best = max((accuracy for _, accuracy in curve), default=0.0)
    samples = curve[-1][0] if curve else 0
    before = (0, 0.0)
    for point in curve:
        if point[1] >= target:
            share = (target - before[1]) / (point[1] - before[1])
            return Outcome(before[0] + share * (point[0] - before[0]), True, point[0], best, failure)
        before = point
    return Outcome(max_samples * (1 + (target - best) / target), False, samples, best, failure)


def keep_outcome(found: Outcome, path: Path) -> None:
    """As JSON."""
    write_atomically(path, json.dumps(asdict(found)) + "\n")


def kept_outcome(path: Path) -> Outcome | None:
    """What `keep_outcome` wrote; None where it did not. WorkError for anything else."""
    if not path.is_file():
        return None
    try:
        return Outcome(**read_json(path))
    except (ValueError, TypeError) as error:
        raise WorkError(
            f"{path}: holds no outcome of a training ({short_repr(error)}); remove it, and it is made again"
        ) from None
