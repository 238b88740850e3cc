"""The warm-up restores all state, reads no samples, and covers the shapes of the run."""

import copy
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.bert.store import SampleStore
from implementations.pytorch.build_run import GRAPH_WARM_UP_STEPS, warm_up
from implementations.pytorch.distributed.process_group import Processes
from implementations.pytorch.model.bert import BertForPreTraining
from implementations.pytorch.phase_clock import PhaseClock
from implementations.pytorch.step import Stepper
from podium.config.schema import Clipping, RunConfig
from podium.planning.balancing.interface import AssignmentSpec
from podium.planning.batch_plan import TrainingOrder, run_shapes
from tests.implementations.pytorch.data.plain_reader import read_step

Maker = Callable[..., tuple[Stepper, TrainingOrder]]
CASES = pytest.mark.parametrize(
    ("algorithm", "balancing", "accumulation"), [("lamb", "indexed", 2), ("adamw", "random", 1), ("lamb", "padded", 1)]
)


@pytest.fixture
def start(
    make_store: Callable[..., SampleStore],
    make_config: Callable[..., RunConfig],
    make_model: Callable[..., BertForPreTraining],
    make_stepper: Callable[[RunConfig, BertForPreTraining], Stepper],
    make_order: Callable[[SampleStore, RunConfig], TrainingOrder],
) -> Maker:
    """A run as it is before its first step, the same at every call."""
    store = make_store(np.random.default_rng(0).integers(5, 60, 40))

    def begin(algorithm: str, balancing: str, accumulation: int) -> tuple[Stepper, TrainingOrder]:
        config = make_config(
            balancing=balancing,
            global_batch_size=4,
            gradient_accumulation_steps=accumulation,
            clipping=Clipping(max_norm=1.0),
            optimizer={"algorithm": algorithm, "warmup_steps": 0, "learning_rate": 0.01},
        )
        stepper = make_stepper(config, make_model(dropout_probability=0.1))
        torch.manual_seed(3)
        return stepper, make_order(store, config)

    return begin


def parameters_of(stepper: Stepper) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in stepper.model.state_dict().items()}


def assert_equal(found: Any, expected: Any) -> None:
    """Bit for bit, through mappings and sequences."""
    if isinstance(expected, torch.Tensor):
        assert torch.equal(found, expected)
    elif isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for key in expected:
            assert_equal(found[key], expected[key])
    elif isinstance(expected, list | tuple):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_equal(one, other)
    else:
        assert found == expected


@CASES
def test_the_warm_up_restores_all_state(
    start: Maker, algorithm: str, balancing: str, accumulation: int, vocabulary: int
) -> None:
    stepper, order = start(algorithm, balancing, accumulation)
    parameters, random = parameters_of(stepper), torch.get_rng_state()
    groups = copy.deepcopy(stepper.optimizer.state_dict()["param_groups"])
    warm_up(stepper, order, vocabulary)
    assert_equal(parameters_of(stepper), parameters)
    after = stepper.optimizer.state_dict()
    assert all(not tensor.any() for state in after["state"].values() for tensor in state.values())  # the initial state
    for group, before in zip(after["param_groups"], groups, strict=True):
        assert float(group.pop("step", 0)) == 0
        assert_equal(group, before)
    assert torch.equal(torch.get_rng_state(), random)
    assert int(stepper.steps_taken) == 0
    assert stepper.model.training
    assert all(p.grad is None or not p.grad.any() for p in stepper.model.parameters())


@CASES
def test_steps_after_a_warm_up_equal_steps_without(
    start: Maker, algorithm: str, balancing: str, accumulation: int, vocabulary: int
) -> None:
    ends = []
    for warmed in (False, True):
        stepper, order = start(algorithm, balancing, accumulation)
        if warmed:
            warm_up(stepper, order, vocabulary)
        for number in range(2):
            result = stepper.take(read_step(order, number, 0), PhaseClock())
        norm, loss = result.gradient_norm, result.masked_lm
        ends.append((parameters_of(stepper), stepper.optimizer.state_dict(), torch.get_rng_state(), norm, loss))
    assert_equal(ends[1], ends[0])


def test_the_warm_up_reads_no_samples(start: Maker, vocabulary: int) -> None:
    stepper, order = start("lamb", "indexed", 1)
    order.store.paths[0].unlink()
    warm_up(stepper, order, vocabulary)


def test_the_warm_up_uses_the_shapes_of_the_first_batches(
    start: Maker, vocabulary: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    stepper, order = start("lamb", "indexed", 2)
    taken: list[list[tuple[int, ...]]] = []
    take = stepper.take

    def recorded_take(step: Any, phases: PhaseClock) -> Any:
        taken.append([batch.lengths for batch in step.micro_batches])
        return take(step, phases)

    monkeypatch.setattr(stepper, "take", recorded_take)
    warm_up(stepper, order, vocabulary, steps=3)
    assert taken == [[batch.lengths for batch in read_step(order, number, 0).micro_batches] for number in range(3)]


def test_the_warm_up_restores_the_state_of_a_resumed_run(start: Maker, vocabulary: int) -> None:
    stepper, order = start("lamb", "indexed", 1)
    for number in range(2):
        stepper.take(read_step(order, number, 0), PhaseClock())
    before = copy.deepcopy((parameters_of(stepper), stepper.optimizer.state_dict(), int(stepper.steps_taken)))
    warm_up(stepper, order, vocabulary)
    assert_equal((parameters_of(stepper), stepper.optimizer.state_dict(), int(stepper.steps_taken)), before)
    assert int(stepper.steps_taken) == 2


def test_all_ranks_capture_the_shapes_of_all_ranks_in_the_same_order(
    start: Maker, vocabulary: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step and its capture are collectives: one more on a rank would wait for ever."""
    steps = 12
    captured: list[list[tuple[int, ...]]] = [[], []]
    taken = [0, 0]
    used: list[set[tuple[int, ...]]] = [set(), set()]
    for rank in range(2):
        stepper, _ = start("lamb", "random", 1)
        order = TrainingOrder(
            start("lamb", "random", 1)[1].store,
            seed=7,
            strategy="random",
            global_batch_size=4,
            spec=AssignmentSpec(2, 2),
            accumulation_steps=1,
            shape_step=8,
        )
        stepper.processes = Processes(rank, 2, stepper.processes.device)
        take = stepper.take

        def count_step(step: Any, phases: PhaseClock, rank: int = rank, take: Any = take) -> Any:
            taken[rank] += 1
            return take(step, phases)

        monkeypatch.setattr(stepper, "take", count_step)
        graphs = SimpleNamespace(capture=lambda batch, weights, rank=rank: captured[rank].append(batch.shape))
        monkeypatch.setattr(stepper, "use_graphs", lambda graphs=graphs: graphs)
        shapes = run_shapes(order, steps)
        warm_up(stepper, order, vocabulary, graph_shapes=shapes)
        for number in range(steps):
            used[rank].add(read_step(order, number, rank, shapes.masked_slots).micro_batches[0].shape)
    assert used[0] != used[1]
    assert captured[0] == captured[1]
    assert set(captured[0]) == used[0] | used[1]
    assert taken[0] == taken[1] == max(GRAPH_WARM_UP_STEPS, len(captured[0]))
