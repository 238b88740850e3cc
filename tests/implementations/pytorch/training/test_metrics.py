"""Metrics: a line a step, one step late, and the end of a run whose loss is no number."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.bert.store import SampleStore
from benchmarks.errors import WorkError
from implementations.pytorch.data.loader import Step, TrainingOrder
from implementations.pytorch.training.metrics import Metrics
from implementations.pytorch.training.processes import Processes
from implementations.pytorch.training.step import StepResult


@pytest.fixture
def steps(make_store: Callable[..., SampleStore]) -> list[Step]:
    store = make_store(np.arange(5, 25))
    order = TrainingOrder(store, seed=0, strategy="indexed", global_batch_size=6, ranks=1, accumulation_steps=1)
    return [order.read(number, 0) for number in range(3)]


def result(masked_lm: float, next_sentence: float = 6.0, norm: float | None = 0.5) -> StepResult:
    return StepResult(
        torch.tensor(masked_lm), torch.tensor(next_sentence), None if norm is None else torch.tensor(norm)
    )


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_every_step_has_a_line_one_step_late(tmp_path: Path, processes: Processes, steps: list[Step]) -> None:
    path = tmp_path / "new folder" / "metrics.jsonl"
    with Metrics(path, processes) as metrics:
        for number, step in enumerate(steps, start=1):
            metrics.step(number, step, result(30.0 * number), 0.1 * number)
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
        assert line["learning_rate"] == 0.1 * number
        assert line["tokens"] == step.whole.tokens
        assert line["slots"] == step.micro_batches[0].slots
        assert line["max_over_mean_tokens"] == 1.0
        assert line["masked_lm_loss"] == pytest.approx(30.0 * number / step.whole.masked)
        assert line["next_sentence_loss"] == 1.0
        assert line["loss"] == pytest.approx(line["masked_lm_loss"] + 1.0)
        assert line["gradient_norm"] == 0.5


def test_a_step_without_clipping_has_no_norm(tmp_path: Path, processes: Processes, steps: list[Step]) -> None:
    with Metrics(tmp_path / "metrics.jsonl", processes) as metrics:
        metrics.step(1, steps[0], result(1.0, norm=None), 0.1)
        metrics.flush()
    assert "gradient_norm" not in lines_of(tmp_path / "metrics.jsonl")[0]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("where", ["masked_lm", "next_sentence"])
def test_a_loss_that_is_no_number_ends_the_run_one_step_late(
    tmp_path: Path, processes: Processes, steps: list[Step], bad: float, where: str
) -> None:
    path = tmp_path / "metrics.jsonl"
    with Metrics(path, processes) as metrics:
        metrics.step(1, steps[0], result(1.0), 0.1)
        metrics.step(2, steps[1], result(**{"masked_lm": 1.0, where: bad}), 0.1)
        with pytest.raises(WorkError, match=r"the loss of step 2 is (nan|inf); lower optimizer\.learning_rate"):
            metrics.step(3, steps[2], result(1.0), 0.1)
    assert [line["step"] for line in lines_of(path)] == [1]


def test_only_the_first_rank_writes(tmp_path: Path, processes: Processes, steps: list[Step]) -> None:
    second = Processes(1, 2, processes.device)
    with Metrics(tmp_path / "metrics.jsonl", second) as metrics:
        metrics.step(1, steps[0], result(math.nan), 0.1)
        with pytest.raises(WorkError):
            metrics.flush()
    assert not (tmp_path / "metrics.jsonl").exists()
