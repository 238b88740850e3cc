"""Steps replayed by shape. A fake CUDA graph runs its body again on the captured tensors."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from benchmarks.bert.store import SampleStore
from implementations.pytorch.model.bert import BertForPreTraining
from implementations.pytorch.phase_clock import PhaseClock
from implementations.pytorch.step import StepGraphs, Stepper, StepResult
from podium.config.schema import RunConfig
from podium.planning.balancing.interface import AssignmentSpec
from podium.planning.batch_plan import TrainingOrder, run_shapes
from tests.implementations.pytorch.data.plain_reader import read_step

CPU = torch.device("cpu")


class FakeGraph:
    """A graph whose replay, like a real one's, reads and writes the captured tensors."""

    replay: Callable[[], None]

    def pool(self) -> str:
        return "pool"


@pytest.fixture
def pools(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Memory pools that graphs were captured into, in order."""
    used: list[object] = []

    @contextmanager
    def capturing(
        graph: FakeGraph, pool: object = None, stream: object = None, capture_error_mode: str = "global"
    ) -> Iterator[None]:
        used.append(pool)
        yield

    monkeypatch.setattr(torch.cuda, "CUDAGraph", FakeGraph)
    monkeypatch.setattr(torch.cuda, "graph", capturing)
    return used


def make_replayable(graphs: StepGraphs, body: Callable[..., list[Tensor]]) -> None:
    """Set the replay of every captured fake graph: the body on its static inputs, into its static outputs."""
    for captured in graphs._captured.values():
        batch_of = captured.graph.batch  # type: ignore[attr-defined]

        def replay(captured: Any = captured, batch: Any = batch_of) -> None:
            for output, value in zip(captured.outputs, body(batch, captured.inputs[-1]), strict=True):
                output.copy_(value)

        captured.graph.replay = replay  # type: ignore[method-assign]


@pytest.fixture
def store(make_store: Callable[..., SampleStore]) -> SampleStore:
    return make_store(np.random.default_rng(0).integers(5, 60, 48))


def test_replayed_steps_equal_eager_steps(
    store: SampleStore,
    pools: list[object],
    make_config: Callable[..., RunConfig],
    make_model: Callable[..., BertForPreTraining],
    make_stepper: Callable[..., Stepper],
) -> None:
    """Each batch and its loss weights are copied in, and later replays do not change returned results."""
    config = make_config(global_batch_size=4, optimizer={"warmup_steps": 0})
    order = TrainingOrder(
        store,
        seed=7,
        strategy="indexed",
        global_batch_size=4,
        spec=AssignmentSpec(1, 1),
        accumulation_steps=1,
        shape_step=64,
    )
    shapes = run_shapes(order, 8)
    assert len(shapes.masked_slots) > 1
    steps = [read_step(order, number, 0, shapes.masked_slots) for number in range(8)]
    # Not grouped attention, which real graphs do not support, since the groups' shapes differ from batch to batch.
    stepper = make_stepper(config, make_model(attention="nested"))
    expected = [stepper.take(step, PhaseClock()) for step in steps]

    stepper = make_stepper(config, make_model(attention="nested"))
    captured_batches: list[Any] = []
    body = stepper._graph_body

    def capture_body(batch: Any, weights: Tensor) -> list[Tensor]:
        captured_batches.append(batch)
        return [torch.zeros(()) for _ in fields(StepResult)]

    graphs = StepGraphs(capture_body, CPU)
    for step in steps:
        graphs.capture(step.micro_batches[0], stepper.loss_weights(step)[0])
    assert len(graphs) == len(shapes.masked_slots) == len(captured_batches)
    assert pools == [None] + ["pool"] * (len(graphs) - 1)
    for captured, batch in zip(graphs._captured.values(), captured_batches, strict=True):
        captured.graph.batch = batch  # type: ignore[attr-defined]
        assert all(one is other for one, other in zip(captured.inputs, batch.tensors(), strict=False))
    originals = {t.data_ptr() for step in steps for t in step.micro_batches[0].tensors()}
    assert not originals & {t.data_ptr() for captured in graphs._captured.values() for t in captured.inputs}

    def on_right_lengths(batch: Any, weights: Tensor) -> list[Tensor]:
        """Run the body with the current batch's lengths, which the nested backend reads on the host."""
        return body(batch.__class__(**{**vars(batch), **current}), weights)

    make_replayable(graphs, on_right_lengths)
    stepper.graphs = graphs
    found = []
    for step in steps:
        (now,) = step.micro_batches
        current = {"lengths": now.lengths, "groups": now.groups, "masked_counts": now.masked_counts}
        found.append(stepper.take(step, PhaseClock()))
    for one, other in zip(found, expected, strict=True):
        for name, value in vars(other).items():
            if name != "work_ms":  # which is measured
                torch.testing.assert_close(getattr(one, name), value, rtol=1e-5, atol=1e-6)
