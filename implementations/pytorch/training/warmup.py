"""Everything that a first step has to do once is done before the clock starts, on synthetic data, and undone again."""

import copy
from typing import Any

import torch

from implementations.pytorch.data.loader import Step, TrainingOrder
from implementations.pytorch.data.synthetic import synthetic_batch
from implementations.pytorch.training.evaluation import evaluate
from implementations.pytorch.training.phases import PhaseClock
from implementations.pytorch.training.step import Stepper

WARM_UP_STEPS = 3


def warm_up(stepper: Stepper, order: TrainingOrder, vocabulary: int, steps: int = WARM_UP_STEPS) -> None:
    """Take steps and an evaluation in the shapes of the run's first batches, and undo all that they changed.

    Only the length index of the data is read. Lengths come from the run's own order, so shapes are the run's.
    """
    saved = _state(stepper)
    rank = stepper.processes.rank
    for number in range(steps):
        whole = order.global_batch(number)
        micro_batches = tuple(
            synthetic_batch(order.store, indices, vocabulary, order.slot_width, seed=number)
            for indices in whole.indices[rank]
        )
        stepper.take(Step(micro_batches, whole), PhaseClock())
    evaluate(stepper.model.module, list(micro_batches), stepper.processes, stepper.precision)
    _restore(stepper, saved)


def _state(stepper: Stepper) -> dict[str, Any]:
    return {
        "model": copy.deepcopy(stepper.model.state_dict()),
        "random": torch.get_rng_state(),
        "device_random": torch.cuda.get_rng_state() if stepper.processes.device.type == "cuda" else None,
        "steps": stepper.steps,
        "rates": [group["lr"] for group in stepper.optimizer.param_groups],
    }


def _restore(stepper: Stepper, saved: dict[str, Any]) -> None:
    """An optimizer that has not stepped has no state, so forgetting it is restoring it."""
    stepper.model.load_state_dict(saved["model"])
    stepper.optimizer.state.clear()
    for group, rate in zip(stepper.optimizer.param_groups, saved["rates"], strict=True):
        group.pop("step", None)
        group["lr"] = rate
    stepper.optimizer.zero_grad(set_to_none=False)
    stepper.steps = saved["steps"]
    torch.set_rng_state(saved["random"])
    if saved["device_random"] is not None:
        torch.cuda.set_rng_state(saved["device_random"])
