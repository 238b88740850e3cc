"""Metrics: a line per step, one step late, and errors for losses that are not finite."""

import json
import math
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.bert.store import SampleStore
from implementations.pytorch.data.reader import Step
from implementations.pytorch.distributed.process_group import Processes
from implementations.pytorch.metrics import MAX_CONSECUTIVE_SKIPS, Metrics
from implementations.pytorch.step import NotFinite, StepResult
from podium.core.errors import WorkError
from podium.planning.balancing.interface import AssignmentSpec
from podium.planning.batch_plan import TrainingOrder
from tests.implementations.pytorch.data.plain_reader import read_step


@pytest.fixture
def steps(make_store: Callable[..., SampleStore]) -> list[Step]:
    store = make_store(np.arange(5, 25))
    order = TrainingOrder(
        store, seed=0, strategy="indexed", global_batch_size=6, spec=AssignmentSpec(1, 1), accumulation_steps=1
    )
    return [read_step(order, number, 0) for number in range(3)]


def result(
    masked_lm: float,
    next_sentence: float = 6.0,
    norm: float = 0.5,
    rate: float = 0.125,
    taken: float = 1.0,
    finite: float = 1.0,
    work_ms: float = 12.5,
) -> StepResult:
    values = (masked_lm, next_sentence, norm, rate, taken, finite, work_ms)
    return StepResult(*(torch.tensor(value) for value in values))


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_every_step_has_a_line_one_step_late(tmp_path: Path, processes: Processes, steps: list[Step]) -> None:
    path = tmp_path / "new folder" / "metrics.jsonl"
    with Metrics(path, processes) as metrics:
        for number, step in enumerate(steps, start=1):
            metrics.flush()
            metrics.step(number, 6 * number, step, result(30.0 * number, rate=0.125 * number))
            assert [line["step"] for line in lines_of(path)] == list(range(1, number))
        metrics.flush()
        assert [line["step"] for line in lines_of(path)] == [1, 2, 3]
        metrics.flush()
        metrics.write({"event": "evaluation", "accuracy": 0.5})
    lines = lines_of(path)
    assert len(lines) == 4
    for number, (step, line) in enumerate(zip(steps, lines, strict=False), start=1):
        assert line["event"] == "step"
        assert line["samples"] == 6 * number
        assert line["learning_rate"] == 0.125 * number
        assert line["tokens"] == step.global_batch.tokens
        assert line["slots"] == step.micro_batches[0].slots
        assert line["max_over_mean_tokens"] == 1.0
        assert line["masked_lm_loss"] == pytest.approx(30.0 * number / step.global_batch.masked)
        assert line["next_sentence_loss"] == 1.0
        assert line["loss"] == pytest.approx(line["masked_lm_loss"] + 1.0)
        assert line["gradient_norm"] == 0.5


def test_a_step_without_clipping_has_no_norm(tmp_path: Path, processes: Processes, steps: list[Step]) -> None:
    with Metrics(tmp_path / "metrics.jsonl", processes) as metrics:
        metrics.step(1, 6, steps[0], result(1.0, norm=math.nan))
        metrics.flush()
    assert "gradient_norm" not in lines_of(tmp_path / "metrics.jsonl")[0]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("where", ["masked_lm", "next_sentence"])
def test_a_loss_that_is_not_finite_is_an_error_one_step_late(
    tmp_path: Path, processes: Processes, steps: list[Step], bad: float, where: str
) -> None:
    path = tmp_path / "metrics.jsonl"
    with Metrics(path, processes) as metrics:
        metrics.step(1, 6, steps[0], result(1.0))
        metrics.flush()
        metrics.step(2, 12, steps[1], result(**{"masked_lm": 1.0, where: bad}))
        with pytest.raises(NotFinite, match=r"^the loss of step 2 is (nan|inf)$") as caught:
            metrics.flush()
        assert caught.value.global_batch is steps[1].global_batch
    assert [line["step"] for line in lines_of(path)] == [1]


def test_a_gradient_that_is_not_finite_is_an_error(tmp_path: Path, processes: Processes, steps: list[Step]) -> None:
    """On any rank. If the step was skipped for overflow, it is not an error."""
    path = tmp_path / "metrics.jsonl"
    with Metrics(path, processes) as metrics:
        metrics.step(1, 6, steps[0], result(1.0, norm=math.inf, taken=0.0, finite=0.0))
        metrics.flush()
        metrics.step(1, 6, steps[0], result(1.0, finite=0.0))
        with pytest.raises(NotFinite, match=r"^the gradient of step 1 is not finite$") as caught:
            metrics.flush()
        assert caught.value.global_batch is steps[0].global_batch
    assert [line["event"] for line in lines_of(path)] == ["skipped"]


@pytest.mark.parametrize("request_", [{"stop": True}, {"save": True}])
def test_requests_of_a_rank_are_known_one_step_late(
    tmp_path: Path, processes: Processes, steps: list[Step], request_: dict[str, bool]
) -> None:
    with Metrics(tmp_path / "metrics.jsonl", processes) as metrics:
        metrics.step(1, 6, steps[0], result(1.0))
        metrics.flush()
        assert not metrics.stop_requested and not metrics.save_requested and not metrics.pending
        metrics.step(2, 12, steps[1], result(1.0, taken=0.0), **request_)
        assert not metrics.stop_requested and not metrics.save_requested and metrics.pending
        metrics.flush()
        assert (metrics.stop_requested, metrics.save_requested) == ("stop" in request_, "save" in request_)
        metrics.step(2, 12, steps[2], result(1.0))
        metrics.flush()
        assert (metrics.stop_requested, metrics.save_requested) == ("stop" in request_, "save" in request_)


def test_resumed_metrics_append_and_continue_the_count(tmp_path: Path, processes: Processes, steps: list[Step]) -> None:
    """Steps skipped before the run was resumed count too."""
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"event": "step", "step": 6}\n', encoding="utf-8")
    with Metrics(path, processes, skipped=MAX_CONSECUTIVE_SKIPS - 2) as metrics:
        assert metrics.size_bytes == 29
        metrics.step(7, 42, steps[0], result(1.0, taken=0.0))
        metrics.flush()
        assert metrics.skipped == MAX_CONSECUTIVE_SKIPS - 1
        assert metrics.size_bytes == path.stat().st_size > 29
        metrics.step(7, 42, steps[1], result(1.0, taken=0.0))
        with pytest.raises(WorkError, match="40 steps in a row overflowed"):
            metrics.flush()
    assert lines_of(path)[0] == {"event": "step", "step": 6}


def test_only_the_first_rank_writes(tmp_path: Path, processes: Processes, steps: list[Step]) -> None:
    second = Processes(1, 2, processes.device)
    with Metrics(tmp_path / "metrics.jsonl", second) as metrics:
        metrics.step(1, 6, steps[0], result(math.nan))
        with pytest.raises(WorkError):
            metrics.flush()
    assert not (tmp_path / "metrics.jsonl").exists()


def test_a_skipped_step_is_recorded_and_not_an_error(tmp_path: Path, processes: Processes, steps: list[Step]) -> None:
    """Its batch is returned, so that the caller can subtract it; its loss may have any value."""
    path = tmp_path / "metrics.jsonl"
    with Metrics(path, processes) as metrics:
        metrics.step(1, 6, steps[0], result(math.inf, taken=0.0))
        assert metrics.flush() is steps[0].global_batch
        metrics.step(1, 6, steps[1], result(1.0))
        assert metrics.flush() is None
    assert lines_of(path)[0] == {"event": "skipped", "step": 1, "samples": 0}
    assert [line["samples"] for line in lines_of(path)] == [0, 6]


def test_too_many_consecutive_skipped_steps_are_an_error(
    tmp_path: Path, processes: Processes, steps: list[Step]
) -> None:
    with Metrics(tmp_path / "metrics.jsonl", processes) as metrics:
        for number in range(MAX_CONSECUTIVE_SKIPS):
            metrics.step(1, 6, steps[0], result(1.0, taken=0.0))
            if number == 20:  # a step that is taken resets the count
                metrics.flush()
                metrics.step(1, 6, steps[0], result(1.0))
            if number < MAX_CONSECUTIVE_SKIPS - 1:
                metrics.flush()
        metrics.flush()
        for number in range(MAX_CONSECUTIVE_SKIPS - 19):
            metrics.step(1, 6, steps[0], result(1.0, taken=0.0))
            if number < MAX_CONSECUTIVE_SKIPS - 20:
                metrics.flush()
        with pytest.raises(WorkError, match="40 steps in a row overflowed in fp16; lower"):
            metrics.flush()


FULL = Path("/dev/full")  # every write fails with ENOSPC


def test_a_full_disk_is_an_error(processes: Processes) -> None:
    message = r"^/dev/full: the disk is full \(No space left on device\); free some space on it$"
    with pytest.raises(WorkError, match=message), Metrics(FULL, processes) as metrics:
        metrics.write({"event": "evaluation"})


def test_another_error_is_not_hidden_by_an_unwritten_line(processes: Processes) -> None:
    with pytest.raises(WorkError, match="something else"), Metrics(FULL, processes) as metrics:
        with suppress(WorkError):
            metrics.write({"event": "evaluation"})
        raise WorkError("something else")
    with pytest.raises(WorkError, match="the disk is full"), Metrics(FULL, processes) as metrics, suppress(WorkError):
        metrics.write({"event": "evaluation"})


def test_a_path_that_cannot_be_written_is_an_error(tmp_path: Path, processes: Processes) -> None:
    with pytest.raises(WorkError, match=r"be written \(Is a directory\); check its"), Metrics(tmp_path, processes):
        pass
