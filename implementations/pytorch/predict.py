"""Predict a run's time-to-train: `python -m implementations.pytorch.predict CONFIG FOLDER`.

CONFIG is a resolved configuration; FOLDER/summary.json gets the prediction. `podium predict SYSTEM` starts it.
One process, whatever the system's ranks; no torch, no GPU. Exit codes: 0 done, 1 it failed, 2 wrong use (for both
FOLDER/failure.json has the sentence).
"""

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.errors import PodiumError, UsageError
from benchmarks.files import write_whole
from benchmarks.processes import end_with_parent
from implementations.pytorch.prediction.configured import plan_of_config
from implementations.pytorch.prediction.constants import Constants, load_constants
from implementations.pytorch.prediction.plan import Plan
from implementations.pytorch.prediction.predicting import Prediction, predict
from implementations.pytorch.prediction.scaling import published_points, scale
from podium.config import RunFolder, load_resolved

MOST_GPUS = 1 << 17


def main() -> int:
    parser = argparse.ArgumentParser(prog="implementations.pytorch.predict", description=__doc__)
    parser.add_argument("config", type=Path, help="a resolved configuration, as `podium predict` writes it")
    parser.add_argument("folder", type=Path, help="where to write the prediction")
    parser.add_argument("--costs", type=Path, help="step costs, as `podium bench` writes them")
    parser.add_argument("--scale", help="numbers of GPUs, such as 8,64,1024")
    arguments = parser.parse_args()
    end_with_parent()
    folder = RunFolder(arguments.folder)
    try:
        constants = load_constants()
        plan = plan_of_config(load_resolved(arguments.config), arguments.costs, constants)
        result = as_json(predict(plan, constants))
        result |= _about(plan)
        asked = arguments.scale is not None
        result["scale"] = _scale(plan, _numbers(arguments.scale), constants) if asked else []
        result["published"] = published_points() if asked else []
        write_whole(folder.summary, json.dumps(result, indent=2) + "\n")
    except PodiumError as error:
        print(error, file=sys.stderr)
        folder.tell_failure(error)
        return error.exit_code
    return 0


def as_json(prediction: Prediction) -> dict[str, Any]:
    """The prediction by the names that `podium predict --json` prints."""
    return {
        "seconds": prediction.seconds,
        "low": prediction.low,
        "high": prediction.high,
        "split": asdict(prediction.split),
        "samples_to_target": prediction.samples_to_target,
        "step_milliseconds": prediction.step_milliseconds,
        "sequences_per_second": prediction.sequences_per_second,
        "unsure": list(prediction.unsure),
    }


def _about(plan: Plan) -> dict[str, Any]:
    machine = plan.machine
    return {
        "ranks": machine.ranks,
        "processor": machine.processor,
        "global_batch_size": plan.global_batch_size,
        "balancing": plan.strategy,
    }


def _scale(plan: Plan, gpus: list[int], constants: Constants) -> list[dict[str, Any]]:
    return [
        {
            "gpus": scaled.gpus,
            "global_batch_size": scaled.global_batch_size,
            "accumulation_steps": scaled.accumulation_steps,
            **as_json(scaled.prediction),
        }
        for scaled in scale(plan, gpus, constants)
    ]


def _numbers(text: str) -> list[int]:
    """Whole numbers between commas, in rising order, each once."""
    try:
        numbers = sorted({int(word) for word in text.split(",")})
    except ValueError:
        numbers = []
    if not numbers or numbers[0] < 1 or numbers[-1] > MOST_GPUS:
        raise UsageError(f"--scale: found {text}, allowed are numbers of GPUs up to {MOST_GPUS:,}, such as 8,64,1024")
    return numbers


if __name__ == "__main__":
    sys.exit(main())
