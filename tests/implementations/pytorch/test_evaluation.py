"""Evaluation: averages over all masked tokens, without dropout, and the model is in training mode afterwards.

Asynchronous evaluation: of a copy of the weights, known to all ranks after the same step, without changing any step.
"""

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from benchmarks.bert.samples import Sample
from benchmarks.bert.store import SampleStore
from implementations.pytorch import evaluation
from implementations.pytorch.data.batch import RaggedBatch, collate
from implementations.pytorch.data.evaluation import evaluation_batches
from implementations.pytorch.distributed.process_group import Processes
from implementations.pytorch.evaluation import Accuracy, OverlappedEvaluation, evaluate
from implementations.pytorch.model.bert import BertForPreTraining
from implementations.pytorch.phase_clock import PhaseClock
from implementations.pytorch.step import Stepper
from podium.config.schema import RunConfig
from podium.core.errors import WorkError
from podium.planning.balancing.interface import AssignmentSpec
from podium.planning.batch_plan import TrainingOrder
from tests.implementations.pytorch.data.plain_reader import read_step


@pytest.mark.parametrize("attention", ["grouped", "padded"])
def test_accuracy_is_averaged_over_tokens_not_batches(
    attention: str,
    processes: Processes,
    make_samples: Callable[..., list[Sample]],
    make_model: Callable[..., BertForPreTraining],
) -> None:
    samples = make_samples([60, 50, 40, 9, 8, 7, 6, 5, 5])
    model = make_model(attention, dropout_probability=0.5)
    right = next_sentence_right = masked = 0
    loss = 0.0
    model.eval()
    for sample in samples:  # one by one, without padding
        with torch.no_grad():
            scores = model(collate([sample]))
        labels = torch.from_numpy(sample.masked_token_ids.astype("int64")[: len(sample.masked_positions)])
        right += int((scores.masked_lm.argmax(1) == labels).sum())
        next_sentence_right += int(scores.next_sentence.argmax()) == sample.next_sentence_label
        loss += float(F.cross_entropy(scores.masked_lm, labels, reduction="sum"))
        masked += len(labels)
    model.train()
    batches = [collate(part, 60 if attention == "padded" else None, 64) for part in (samples[:2], samples[2:])]
    found = evaluate(model, batches, processes, "fp32")
    assert found.masked_lm == pytest.approx(right / masked)
    assert found.next_sentence == pytest.approx(next_sentence_right / len(samples))
    assert found.masked_lm_loss == pytest.approx(loss / masked, rel=1e-5)
    assert found.sequences == len(samples)
    assert model.training
    assert all(module.training for module in model.modules())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_perfect_model_has_accuracy_one(
    processes: Processes, make_samples: Callable[..., list[Sample]], vocabulary: int
) -> None:
    """Padding of the shape counts neither as correct nor as wrong."""
    from implementations.pytorch.data.batch import RaggedBatch
    from implementations.pytorch.model.bert import ModelOptions, Scores

    class Perfect(torch.nn.Module):
        model_options = ModelOptions()

        def forward(self, batch: RaggedBatch) -> Scores:
            labels = batch.masked_labels.clamp(min=0)
            return Scores(F.one_hot(labels, vocabulary).float(), F.one_hot(batch.next_sentence, 2).float())

    batches = [collate(make_samples([50, 9], seed), None, 64) for seed in range(2)]
    found = evaluate(Perfect(), batches, processes, "fp32")
    assert (found.masked_lm, found.next_sentence, found.sequences) == (1.0, 1.0, 4)


Models = Callable[..., BertForPreTraining]
RANKS = 2


@pytest.fixture
def store(make_store: Callable[..., SampleStore]) -> SampleStore:
    return make_store(np.random.default_rng(0).integers(5, 60, 40))


@pytest.fixture
def batches(store: SampleStore) -> list[RaggedBatch]:
    return evaluation_batches(store, 0, AssignmentSpec(1, 1), samples=20, local_batch_size=6, slot_width=None)


def wait_for_accuracy(overlapped: OverlappedEvaluation) -> Accuracy:
    end = time.monotonic() + 60
    while (accuracy := overlapped.poll()) is None:
        assert time.monotonic() < end
        time.sleep(0.005)
    return accuracy


def test_asynchronous_evaluation_is_of_the_copied_weights(
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
        assert wait_for_accuracy(overlapped) == expected
        assert not overlapped.running
    assert model.training
    assert overlapped.seconds > 0
    assert evaluate(model, batches, processes, "fp32") != expected
    overlapped.begin(batches)
    assert overlapped.finish() == evaluate(model, batches, processes, "fp32")
    assert overlapped.poll() is None


def test_steps_during_an_evaluation_are_the_same_bit_for_bit(
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
    for evaluates in (False, True):
        stepper, order = make_stepper(config, make_model(dropout_probability=0.1)), make_order(store, config)
        overlapped = OverlappedEvaluation(stepper.model.module, processes, "fp32")
        torch.manual_seed(3)
        for number in range(12):
            stepper.take(read_step(order, number, 0), PhaseClock())
            if evaluates and (accuracy := overlapped.poll()) is not None:
                accuracies.append(accuracy)
            if evaluates and not overlapped.running:
                overlapped.begin(batches)
        if overlapped.running:
            accuracies.append(overlapped.finish())
        ends.append([p.detach().clone() for p in stepper.model.parameters()])
    assert accuracies
    assert all(torch.equal(one, other) for one, other in zip(*ends, strict=True))


def test_polls_do_not_wait_for_the_evaluation(
    processes: Processes, make_model: Models, batches: list[RaggedBatch], monkeypatch: pytest.MonkeyPatch
) -> None:
    released, sums = threading.Event(), evaluation.evaluation_sums
    overlapped = OverlappedEvaluation(make_model(), processes, "fp32")

    def blocked_sums(*arguments: Any) -> torch.Tensor:
        assert released.wait(60)
        assert threading.current_thread().name == "evaluation"
        return sums(*arguments)

    monkeypatch.setattr(evaluation, "evaluation_sums", blocked_sums)
    overlapped.begin(batches)
    assert [overlapped.poll() for _ in range(5)] == [None] * 5
    with pytest.raises(AssertionError, match="one at a time"):
        overlapped.begin(batches)
    released.set()
    assert wait_for_accuracy(overlapped).sequences == 20


@pytest.mark.parametrize("take", [wait_for_accuracy, OverlappedEvaluation.finish])
def test_errors_of_the_evaluation_are_raised_in_training(
    processes: Processes,
    make_model: Models,
    batches: list[RaggedBatch],
    monkeypatch: pytest.MonkeyPatch,
    take: Callable[[OverlappedEvaluation], Accuracy],
) -> None:
    def fail(*_: Any) -> None:
        raise WorkError("out of memory")

    overlapped = OverlappedEvaluation(make_model(), processes, "fp32")
    monkeypatch.setattr(evaluation, "evaluation_sums", fail)
    overlapped.begin(batches)
    with pytest.raises(WorkError, match="out of memory"):
        take(overlapped)


@pytest.fixture(scope="module")
def ranks(
    tmp_path_factory: pytest.TempPathFactory, write_store: Callable[..., Path], start_ranks: Callable[..., None]
) -> list[dict[str, Any]]:
    """Results of two processes, of which the second evaluates more slowly."""
    folder = tmp_path_factory.mktemp("overlap")
    shard = write_store(folder / "store", np.random.default_rng(0).integers(5, 60, 24))
    worker = Path(__file__).with_name("overlap_worker.py")
    outs = [folder / f"{rank}.json" for rank in range(RANKS)]
    start_ranks(worker, [(shard, folder / "rendezvous", rank, RANKS, out) for rank, out in enumerate(outs)])
    return [json.loads(out.read_text(encoding="utf-8")) for out in outs]


@pytest.mark.slow
def test_all_ranks_get_the_accuracy_after_the_same_step(ranks: list[dict[str, Any]]) -> None:
    one, two = ranks
    assert one["polls"] == two["polls"] > 2  # the first rank waits for the second
    for key in ("polled", "finished", "expected"):
        assert one[key] == two[key]
        assert one[key]["sequences"] == 12
        assert one[key] == pytest.approx(one["expected"], rel=1e-6)


@pytest.mark.slow
def test_an_error_on_one_rank_is_raised_on_all(ranks: list[dict[str, Any]]) -> None:
    assert ranks[1]["message"] == "out of memory"
    assert ranks[0]["message"].startswith("an evaluation during training failed on another rank")
