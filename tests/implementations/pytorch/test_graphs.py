"""Graphs are destroyed before the process group that their all-reduces refer to, whatever ends the run."""

import gc
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from benchmarks.bert.samples import Sample
from implementations.pytorch.data.batch import RaggedBatch, collate
from implementations.pytorch.distributed import process_group
from implementations.pytorch.distributed.process_group import (
    Processes,
    close_before_destroy,
    init_distributed,
    single_process,
)
from implementations.pytorch.graphs import StepGraphs
from podium.config.schema import RunConfig
from podium.core.errors import StoppedAfterSaving, WorkError
from tests.implementations.pytorch.recorded_graphs import RecordedGraph, use_recorded_graphs

CPU = torch.device("cpu")
Entered = Callable[[RunConfig], AbstractContextManager[Processes]]


@pytest.fixture
def batches(make_samples: Callable[..., list[Sample]]) -> list[RaggedBatch]:
    return [collate(make_samples([30]), shape_step=step) for step in (32, 64)]


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What happens to graphs and to the process group, in order."""
    happened: list[str] = []
    use_recorded_graphs(monkeypatch)
    reset = RecordedGraph.reset
    monkeypatch.setattr(RecordedGraph, "reset", lambda graph: (happened.append("graph reset"), reset(graph)))
    monkeypatch.setattr(dist, "init_process_group", lambda *_, **__: happened.append("group initialised"))
    monkeypatch.setattr(dist, "destroy_process_group", lambda: happened.append("group destroyed"))
    monkeypatch.setattr(dist, "get_rank", lambda: 0)
    monkeypatch.setattr(dist, "get_world_size", lambda: 2)
    monkeypatch.setattr(process_group, "run_store", lambda timeout: None)
    monkeypatch.setattr(process_group, "keep_freed_memory", lambda: None)
    return happened


def make_graphs(batches: list[RaggedBatch]) -> StepGraphs:
    graphs = StepGraphs(lambda batch, numbers: [batch.token_ids.sum() + numbers.sum()], CPU)
    for batch in batches:
        graphs.capture(batch, torch.zeros(2))
    return graphs


@pytest.mark.parametrize("enter", [init_distributed, lambda config: single_process(CPU)], ids=["run, bench", "single"])
@pytest.mark.parametrize(
    "error",
    [
        WorkError("the loss of step 3 is nan"),
        StoppedAfterSaving("asked to stop"),
        torch.OutOfMemoryError("CUDA out of memory"),
        KeyboardInterrupt(),
        None,
    ],
    ids=lambda error: type(error).__name__,
)
def test_graphs_are_destroyed_before_the_process_group(
    enter: Entered,
    error: BaseException | None,
    events: list[str],
    batches: list[RaggedBatch],
    make_config: Callable[..., RunConfig],
) -> None:
    """Although the error's traceback, and this frame, refer to the graphs."""
    found: BaseException | None = None
    graphs = None
    try:
        with enter(make_config()):
            graphs = make_graphs(batches)
            if error is not None:
                raise error
    except BaseException as caught:  # noqa: BLE001 — its traceback is kept until the end of the test
        found = caught
    assert found is error
    assert graphs is not None and len(graphs) == 0
    assert events == ["group initialised", "graph reset", "graph reset", "group destroyed"]


def test_graphs_that_no_longer_exist_are_not_kept(events: list[str], batches: list[RaggedBatch]) -> None:
    with single_process(CPU):
        make_graphs(batches)
        gc.collect()
        events.clear()
    assert events == ["group destroyed"]


def test_an_error_of_closing_does_not_hide_the_reason(
    events: list[str], batches: list[RaggedBatch], capsys: pytest.CaptureFixture[str]
) -> None:
    class Broken:
        def close(self) -> None:
            raise RuntimeError("an illegal memory access was encountered")

    broken = Broken()
    with pytest.raises(WorkError, match="the loss of step 3 is nan"), single_process(CPU):
        close_before_destroy(broken)
        graphs = make_graphs(batches)
        raise WorkError("the loss of step 3 is nan")
    assert events[1:] == ["graph reset", "graph reset", "group destroyed"]
    assert len(graphs) == 0
    assert "Broken: cannot be closed (an illegal memory access was encountered)" in capsys.readouterr().err


def test_closing_twice_is_harmless(events: list[str], batches: list[RaggedBatch]) -> None:
    graphs = make_graphs(batches)
    captured = list(graphs._captured.values())
    assert [t.item() for t in graphs.replay(batches[0], torch.ones(2))] == [batches[0].token_ids.sum() + 2]
    graphs.close()
    graphs.close()
    assert events == ["graph reset", "graph reset"]
    assert all(not each.inputs and not each.outputs for each in captured)
    with pytest.raises(KeyError):
        graphs.replay(batches[0], torch.ones(2))


def test_a_graph_whose_capture_fails_is_destroyed(events: list[str], batches: list[RaggedBatch]) -> None:
    def fail(batch: RaggedBatch, numbers: Tensor) -> list[Tensor]:
        raise torch.OutOfMemoryError("CUDA out of memory")

    graphs = StepGraphs(fail, CPU)
    with pytest.raises(torch.OutOfMemoryError) as caught:
        graphs.capture(batches[0], torch.zeros(2))
    assert caught.tb is not None
    assert events == ["graph reset"]
    assert len(graphs) == 0


def test_graphs_can_share_a_memory_pool(monkeypatch: pytest.MonkeyPatch, batches: list[RaggedBatch]) -> None:
    pools = use_recorded_graphs(monkeypatch)
    first = make_graphs(batches)
    assert pools == [None, "pool"]
    for shared, expected in ((first, "pool"), (None, None)):
        pools.clear()
        StepGraphs(lambda batch, numbers: [], CPU, shared).capture(batches[0], torch.zeros(2))
        assert pools == [expected]


def test_a_shape_that_was_not_captured_is_an_error(events: list[str], batches: list[RaggedBatch]) -> None:
    graphs = make_graphs(batches[:1])
    assert graphs.shapes == [batches[0].shape]
    with pytest.raises(KeyError):
        graphs.replay(batches[1], torch.zeros(2))


def test_streams_are_not_shared_with_callbacks(
    events: list[str], monkeypatch: pytest.MonkeyPatch, make_config: Callable[..., RunConfig]
) -> None:
    """All streams have another priority than those that callbacks of collectives run on (0), and NCCL's the highest."""
    from implementations.pytorch import evaluation
    from implementations.pytorch.evaluation import OverlappedEvaluation
    from implementations.pytorch.model.attention.grouped import side_stream

    made: list[tuple[torch.device, int]] = []
    waits: list[str] = []

    class Stream:
        def __init__(self, device: torch.device, priority: int = 0) -> None:
            self.name, self.priority = str(len(made)), priority
            made.append((device, priority))

        def wait_stream(self, other: Any) -> None:
            waits.append(f"{self.name} waits for {other.name}")

    current = [Stream(torch.device("cpu"))]  # the compute stream
    made.clear()

    @contextmanager
    def use(stream: Any) -> Iterator[None]:
        current.append(stream)
        yield
        current.pop()

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "stream", use)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: current[-1])
    monkeypatch.setattr(torch.cuda, "set_stream", lambda stream: events.append(f"stream {stream.priority} is current"))
    monkeypatch.setattr(evaluation, "cpu_group", lambda: None)
    monkeypatch.setattr(evaluation, "evaluation_sums", lambda *_: waits.append(f"evaluates on {current[-1].name}"))
    monkeypatch.setenv("LOCAL_RANK", "3")
    monkeypatch.delenv("TORCH_NCCL_HIGH_PRIORITY", raising=False)
    config, device = make_config(), torch.device("cuda", 3)
    config = config.model_copy(update={"launch": config.launch.model_copy(update={"device": "cuda"})})
    side_stream.cache_clear()
    with init_distributed(config) as processes:
        assert os.environ["TORCH_NCCL_HIGH_PRIORITY"] == "1"
        assert processes.device == device
        side_stream(device, 0)
        OverlappedEvaluation(torch.nn.Linear(1, 1), processes, "bf16")  # type: ignore[arg-type]
    side_stream.cache_clear()
    assert made == [(device, -1)] * 3
    # The stream of evaluations is the third one that is made.
    assert waits == ["2 waits for 0", "evaluates on 2", "0 waits for 2"]
    assert events == ["stream -1 is current", "group initialised", "group destroyed"]
