"""Evaluation beside training: of the weights as they were, known to all ranks after the same step, no step changed."""

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.bert.store import SampleStore
from benchmarks.errors import WorkError
from implementations.pytorch.data.batch import RaggedBatch
from implementations.pytorch.data.batch_plan import TrainingOrder
from implementations.pytorch.data.evaluation import evaluation_batches
from implementations.pytorch.data.reading import read_step
from implementations.pytorch.model.bert import BertForPreTraining
from implementations.pytorch.training import overlapping
from implementations.pytorch.training.evaluation import Accuracy, evaluate
from implementations.pytorch.training.overlapping import OverlappedEvaluation
from implementations.pytorch.training.phases import PhaseClock
from implementations.pytorch.training.processes import Processes
from implementations.pytorch.training.step import Stepper
from podium.config import RunConfig

Models = Callable[..., BertForPreTraining]
RANKS = 2


@pytest.fixture
def store(make_store: Callable[..., SampleStore]) -> SampleStore:
    return make_store(np.random.default_rng(0).integers(5, 60, 40))


@pytest.fixture
def batches(store: SampleStore) -> list[RaggedBatch]:
    return evaluation_batches(store, samples=20, rank=0, ranks=1, local_batch_size=6, slot_width=None)


def waited_for(overlapped: OverlappedEvaluation) -> Accuracy:
    end = time.monotonic() + 60
    while (accuracy := overlapped.poll()) is None:
        assert time.monotonic() < end
        time.sleep(0.005)
    return accuracy


def test_it_is_of_the_weights_as_they_were(
    processes: Processes, make_model: Models, batches: list[RaggedBatch]
) -> None:
    model = make_model(dropout_probability=0.5)
    overlapped = OverlappedEvaluation(model, processes, "fp32", batches[:1])
    for _ in range(2):
        expected = evaluate(model, batches, processes, "fp32")
        overlapped.begin(batches)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(0.9)
        assert overlapped.running
        assert waited_for(overlapped) == expected
        assert not overlapped.running
    assert model.training
    assert overlapped.seconds > 0
    assert evaluate(model, batches, processes, "fp32") != expected
    overlapped.begin(batches)
    assert overlapped.finish() == evaluate(model, batches, processes, "fp32")
    assert overlapped.poll() is None


def test_steps_are_the_same_bit_for_bit_with_one_beside_them(
    store: SampleStore,
    batches: list[RaggedBatch],
    processes: Processes,
    make_config: Callable[..., RunConfig],
    make_model: Models,
    make_stepper: Callable[[RunConfig, BertForPreTraining], Stepper],
    make_order: Callable[[SampleStore, RunConfig], TrainingOrder],
) -> None:
    config = make_config(global_batch_size=4)
    ends, accuracies = [], []
    for beside in (False, True):
        stepper, order = make_stepper(config, make_model(dropout_probability=0.1)), make_order(store, config)
        overlapped = OverlappedEvaluation(stepper.model.module, processes, "fp32")
        torch.manual_seed(3)
        for number in range(12):
            stepper.take(read_step(order, number, 0), PhaseClock())
            if beside and (accuracy := overlapped.poll()) is not None:
                accuracies.append(accuracy)
            if beside and not overlapped.running:
                overlapped.begin(batches)
        if overlapped.running:
            accuracies.append(overlapped.finish())
        ends.append([p.detach().clone() for p in stepper.model.parameters()])
    assert accuracies
    assert all(torch.equal(one, other) for one, other in zip(*ends, strict=True))


def test_training_goes_on_meanwhile(
    processes: Processes, make_model: Models, batches: list[RaggedBatch], monkeypatch: pytest.MonkeyPatch
) -> None:
    held, sums = threading.Event(), overlapping.evaluation_sums
    overlapped = OverlappedEvaluation(make_model(), processes, "fp32")

    def hold(*arguments: Any) -> torch.Tensor:
        assert held.wait(60)
        assert threading.current_thread().name == "evaluation"
        return sums(*arguments)

    monkeypatch.setattr(overlapping, "evaluation_sums", hold)
    overlapped.begin(batches)
    assert [overlapped.poll() for _ in range(5)] == [None] * 5
    with pytest.raises(AssertionError, match="one at a time"):
        overlapped.begin(batches)
    held.set()
    assert waited_for(overlapped).sequences == 20


@pytest.mark.parametrize("take", [waited_for, OverlappedEvaluation.finish])
def test_what_goes_wrong_beside_training_is_raised_in_it(
    processes: Processes,
    make_model: Models,
    batches: list[RaggedBatch],
    monkeypatch: pytest.MonkeyPatch,
    take: Callable[[OverlappedEvaluation], Accuracy],
) -> None:
    def fail(*_: Any) -> None:
        raise WorkError("out of memory")

    overlapped = OverlappedEvaluation(make_model(), processes, "fp32")
    monkeypatch.setattr(overlapping, "evaluation_sums", fail)
    overlapped.begin(batches)
    with pytest.raises(WorkError, match="out of memory"):
        take(overlapped)


@pytest.fixture(scope="module")
def ranks(
    tmp_path_factory: pytest.TempPathFactory, write_store: Callable[..., Path], start_ranks: Callable[..., None]
) -> list[dict[str, Any]]:
    """What each of two processes was told, of which the second evaluates more slowly."""
    folder = tmp_path_factory.mktemp("overlap")
    shard = write_store(folder / "store", np.random.default_rng(0).integers(5, 60, 24))
    worker = Path(__file__).with_name("overlap_worker.py")
    outs = [folder / f"{rank}.json" for rank in range(RANKS)]
    start_ranks(worker, [(shard, folder / "rendezvous", rank, RANKS, out) for rank, out in enumerate(outs)])
    return [json.loads(out.read_text(encoding="utf-8")) for out in outs]


@pytest.mark.slow
def test_all_ranks_know_the_same_after_the_same_step(ranks: list[dict[str, Any]]) -> None:
    one, two = ranks
    assert one["polls"] == two["polls"] > 2  # the first waits for the second's
    for key in ("polled", "finished", "expected"):
        assert one[key] == two[key]
        assert one[key]["sequences"] == 12
        assert one[key] == pytest.approx(one["expected"], rel=1e-6)


@pytest.mark.slow
def test_what_goes_wrong_on_one_rank_ends_all(ranks: list[dict[str, Any]]) -> None:
    assert ranks[1]["words"] == "out of memory"
    assert ranks[0]["words"].startswith("an evaluation beside training failed on another rank")
