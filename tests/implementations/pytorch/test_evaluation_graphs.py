"""Evaluations replayed by shape, on recorded stand-ins for CUDA graphs: same result, and no effect on training."""

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.bert.store import SampleStore
from implementations.pytorch.data.evaluation import EvaluationPlan
from implementations.pytorch.distributed.process_group import Processes
from implementations.pytorch.evaluation import Accuracy, OverlappedEvaluation, capture_evaluation, evaluate
from implementations.pytorch.graphs import StepGraphs
from implementations.pytorch.kernels.eager import EAGER
from implementations.pytorch.model.bert import BertForPreTraining
from implementations.pytorch.trainer import Trainer
from podium.config.schema import RunConfig
from podium.planning import batch_plan
from podium.planning.balancing.interface import AssignmentSpec
from tests.implementations.pytorch.recorded_graphs import BY_SHAPE, use_recorded_graphs

CPU = torch.device("cpu")
RANKS = 2


@pytest.fixture
def pools(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    monkeypatch.setitem(batch_plan.SHAPE_STEPS, "cuda", 64)  # so that few short samples have several shapes
    return use_recorded_graphs(monkeypatch)


@pytest.fixture
def store(make_store: Callable[..., SampleStore]) -> SampleStore:
    return make_store(np.random.default_rng(0).integers(5, 60, 40))


@pytest.fixture
def model(make_model: Callable[..., BertForPreTraining]) -> BertForPreTraining:
    return make_model(attention=BY_SHAPE, kernels=EAGER, dropout_probability=0.5)


def make_plan(store: SampleStore, for_graphs: bool, ranks: int = RANKS) -> EvaluationPlan:
    return EvaluationPlan(
        store, AssignmentSpec(ranks, ranks), samples=25, local_batch_size=4, slot_width=None, for_graphs=for_graphs
    )


@pytest.mark.parametrize("ranks", [1, 2, 3, 30])
@pytest.mark.parametrize("slot_width", [None, 64])
def test_examples_have_the_shapes_of_all_ranks_batches(
    store: SampleStore, ranks: int, slot_width: int | None, pools: list[object], vocabulary: int
) -> None:
    """Also of ranks without a batch; and each sample is evaluated on one rank, as without graphs."""
    few, plain = (
        EvaluationPlan(
            store,
            AssignmentSpec(ranks, ranks),
            samples=25,
            local_batch_size=4,
            slot_width=slot_width,
            for_graphs=for_graphs,
        )
        for for_graphs in (True, False)
    )
    examples = few.examples(vocabulary)
    shapes = [example.shape for example in examples]
    used = []
    for rank in range(ranks):
        batches = few.read(rank)
        used.append([batch.shape for batch in batches])
        assert [batch.lengths for batch in batches] == [batch.lengths for batch in plain.read(rank)]
        assert all(batch.next_sentence.numel() == min(4, -(-25 // ranks)) for batch in batches)
    assert shapes == sorted({shape for of_rank in used for shape in of_rank}, reverse=True)
    if ranks > 2 and slot_width is None:
        assert len({frozenset(of_rank) for of_rank in used}) > 1, "the test needs ranks with different shapes"
    for example in examples:  # those with the fewest tokens of a shape
        of_shape = [batch for rank in range(ranks) for batch in few.read(rank) if batch.shape == example.shape]
        width = slot_width or 0
        assert min(max(b.tokens, width * b.sequences) for b in of_shape) == max(
            example.tokens, width * example.sequences
        )


def test_captures_read_no_samples(
    store: SampleStore, pools: list[object], model: BertForPreTraining, vocabulary: int
) -> None:
    plan = make_plan(store, for_graphs=True)
    store.paths[0].unlink()
    graphs = capture_evaluation(model, plan.examples(vocabulary), CPU, "fp32")
    assert len(graphs) > 1


def test_replayed_evaluations_equal_eager_ones_and_change_nothing(
    store: SampleStore, pools: list[object], model: BertForPreTraining, processes: Processes, vocabulary: int
) -> None:
    """Neither weights nor random states; and the weights are those of the time of the replay."""
    plan, plain = make_plan(store, True, ranks=1), make_plan(store, False, ranks=1)
    batches = plan.read(0)
    model.register_buffer("history", torch.arange(3.0))
    state, random = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    graphs = capture_evaluation(model, plan.examples(vocabulary), CPU, "fp32")
    assert model.training
    found: list[Accuracy] = []
    for _ in range(2):
        expected = evaluate(model, plain.read(0), processes, "fp32")
        for evaluated in (
            evaluate(model, batches, processes, "fp32", graphs),
            evaluate(model, batches, processes, "fp32"),
        ):
            assert evaluated.sequences == 25
            assert vars(evaluated) == pytest.approx(vars(expected), rel=1e-6)
        found.append(expected)
        assert model.training
        assert torch.equal(torch.get_rng_state(), random)
        assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
        assert all(parameter.grad is None for parameter in model.parameters())
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(0.5)
        state = copy.deepcopy(model.state_dict())
    assert found[0] != found[1]


def test_asynchronous_evaluations_replay_graphs(
    store: SampleStore,
    pools: list[object],
    model: BertForPreTraining,
    processes: Processes,
    vocabulary: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of the copied weights, not into the memory pool of training."""
    plan = make_plan(store, True, ranks=1)
    batches, replayed = plan.read(0), []
    overlapped = OverlappedEvaluation(model, processes, "fp32", plan.examples(vocabulary), use_graphs=True)
    assert pools[0] is None
    replay = StepGraphs.replay

    def record_replay(graphs: StepGraphs, batch: Any, numbers: torch.Tensor) -> list[torch.Tensor]:
        replayed.append(batch.shape)
        return replay(graphs, batch, numbers)

    monkeypatch.setattr(StepGraphs, "replay", record_replay)
    random = torch.get_rng_state()
    for _ in range(2):
        expected = evaluate(model, batches, processes, "fp32")
        overlapped.begin(batches)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(0.5)
        assert vars(overlapped.finish()) == pytest.approx(vars(expected), rel=1e-6)
    assert replayed == [batch.shape for batch in batches] * 2
    assert torch.equal(torch.get_rng_state(), random)


@pytest.mark.parametrize("overlap", ["none", "training"])
def test_the_trainer_captures_evaluations_before_it_reads_samples(
    overlap: str,
    store: SampleStore,
    pools: list[object],
    model: BertForPreTraining,
    processes: Processes,
    vocabulary: int,
    make_config: Callable[..., RunConfig],
    make_stepper: Callable[..., Any],
) -> None:
    config = make_config()
    config = config.model_copy(update={"evaluation": config.evaluation.model_copy(update={"overlap": overlap})})
    trainer = Trainer.__new__(Trainer)
    trainer.config, trainer.processes, trainer.precision = config, processes, "fp32"
    trainer.overlapped, trainer.evaluation_graphs = None, None
    trainer.stepper = make_stepper(config, model)
    trainer.evaluation_plan = make_plan(store, for_graphs=True, ranks=1)
    store.paths[0].unlink()
    trainer.stepper.use_graphs()
    trainer._prepare_evaluation(vocabulary)
    graphs = trainer.evaluation_graphs if trainer.overlapped is None else trainer.overlapped._graphs
    assert (overlap == "training") == (trainer.overlapped is not None)
    assert graphs is not None
    assert graphs.shapes == [example.shape for example in trainer.evaluation_plan.examples(vocabulary)]
