"""Everything that a first step has to do once is done before the clock starts, on synthetic data, and undone again."""

import copy
from typing import Any

import torch

from implementations.pytorch.data.batch_plan import TrainingOrder
from implementations.pytorch.data.shapes import RunShapes
from implementations.pytorch.data.synthetic import synthetic_step
from implementations.pytorch.training.evaluation import evaluate
from implementations.pytorch.training.phases import PhaseClock
from implementations.pytorch.training.step import Stepper

WARM_UP_STEPS = 3
GRAPH_WARM_UP_STEPS = 11
"""What DDP wants to have seen before a graph is captured: it settles its buckets in the first steps."""


def warm_up(
    stepper: Stepper,
    order: TrainingOrder,
    vocabulary: int,
    steps: int = WARM_UP_STEPS,
    graph_shapes: RunShapes | None = None,
) -> None:
    """Take steps and an evaluation in the shapes of the run's first batches, and undo all that they changed.

    With `graph_shapes` a CUDA graph is captured for every shape of the run, and the stepper then replays them. Only the
    length index of the data is read. Lengths come from the run's own order, so shapes are the run's.
    """
    saved, processes = _state(stepper), stepper.processes
    numbers = list(graph_shapes.examples.values()) if graph_shapes else list(range(steps))
    masked_slots = graph_shapes.masked_slots if graph_shapes else None
    examples = [synthetic_step(order, number, processes.rank, vocabulary, masked_slots) for number in numbers]
    if graph_shapes:  # ranks differ in shapes but wait for each other in every step, so all take equally many
        steps = max(GRAPH_WARM_UP_STEPS, processes.most(len(examples)))
    for number in range(steps):
        stepper.take(examples[number % len(examples)], PhaseClock())
    evaluate(stepper.model.module, list(examples[0].micro_batches), processes, stepper.precision)
    if graph_shapes:
        graphs = stepper.use_graphs()
        for example in examples:
            graphs.capture(example.micro_batches[0], stepper.loss_weights(example)[0])
    _restore(stepper, saved)


def _state(stepper: Stepper) -> dict[str, Any]:
    return {
        "model": copy.deepcopy(stepper.model.state_dict()),
        "optimizer": copy.deepcopy(stepper.optimizer.state_dict()["state"]),
        "group_steps": [copy.deepcopy(group.get("step")) for group in stepper.optimizer.param_groups],
        "rates": [group["lr"].clone() for group in stepper.optimizer.param_groups],
        "scaler": stepper.scaler.state_dict(),
        "taken": stepper.taken.clone(),
        "random": torch.get_rng_state(),
        "device_random": torch.cuda.get_rng_state() if stepper.processes.device.type == "cuda" else None,
    }


@torch.no_grad()
def _restore(stepper: Stepper, saved: dict[str, Any]) -> None:
    """In place, since graphs use these very tensors. What did not exist before is zero, as it would begin."""
    stepper.model.load_state_dict(saved["model"])
    optimizer = stepper.optimizer
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for number, parameter in enumerate(parameters):
        before = saved["optimizer"].get(number, {})
        for key, value in optimizer.state[parameter].items():
            value.copy_(before.get(key, torch.zeros_like(value)))
    for group, steps, rate in zip(optimizer.param_groups, saved["group_steps"], saved["rates"], strict=True):
        if "step" in group:
            group["step"].copy_(torch.zeros_like(group["step"]) if steps is None else steps)
        group["lr"].copy_(rate)
    optimizer.zero_grad(set_to_none=False)
    stepper.scaler.load_state_dict(saved["scaler"])
    stepper.taken.copy_(saved["taken"])
    torch.set_rng_state(saved["random"])
    if saved["device_random"] is not None:
        torch.cuda.set_rng_state(saved["device_random"])
