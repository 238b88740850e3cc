"""The padded vocabulary changes neither losses, accuracies and gradients nor parameters and checkpoints."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from benchmarks.bert.samples import Sample
from benchmarks.bert.store import SampleStore
from implementations.pytorch.build_run import model_options
from implementations.pytorch.checkpointing import RunState
from implementations.pytorch.data.batch import IGNORED, collate
from implementations.pytorch.distributed.process_group import Processes
from implementations.pytorch.kernels.eager import EAGER
from implementations.pytorch.model.bert import BertForPreTraining
from implementations.pytorch.model.decoder import GPU_MULTIPLE, decode_padded, vocabulary_multiple
from implementations.pytorch.model.loss import correct_predictions, loss_sums
from implementations.pytorch.phase_clock import PhaseClock
from implementations.pytorch.precision import autocast
from implementations.pytorch.step import Stepper
from podium.config.schema import Clipping, RunConfig
from podium.planning.batch_plan import TrainingOrder
from tests.implementations.pytorch.data.plain_reader import read_step

CPU = torch.device("cpu")
Models = Callable[..., BertForPreTraining]
Error = Callable[[Tensor, Tensor], float]


def random_inputs(masked: int, vocabulary_size: int, dtype: torch.dtype, seed: int = 0) -> tuple[Tensor, ...]:
    random = torch.Generator().manual_seed(seed)
    shapes = ((masked, 8), (vocabulary_size, 8), (vocabulary_size,))
    inputs = [torch.randn(shape, generator=random, dtype=dtype) for shape in shapes]
    labels = torch.randint(0, vocabulary_size, (masked,), generator=random)
    labels[2::3] = IGNORED
    return *inputs, labels


@settings(max_examples=40, deadline=None)
@given(vocabulary_size=st.integers(1, 200), multiple=st.sampled_from([2, 8, 64]), masked=st.integers(1, 6))
def test_every_vocabulary_size_gives_the_loss_and_gradients_without_padding(
    vocabulary_size: int, multiple: int, masked: int
) -> None:
    x, weight, bias, labels = random_inputs(masked, vocabulary_size, torch.float64)
    inputs = [tensor.requires_grad_() for tensor in (x, weight, bias)]
    logits, expected_logits = decode_padded(x, weight, bias, multiple), F.linear(x, weight, bias)
    assert logits.shape[1] % multiple == 0 <= logits.shape[1] - vocabulary_size < multiple
    torch.testing.assert_close(logits[:, :vocabulary_size], expected_logits)
    assert torch.equal(logits.argmax(1), expected_logits.argmax(1))
    found, expected = (EAGER.cross_entropy(values, labels) for values in (logits, expected_logits))
    torch.testing.assert_close(found, expected)
    expected_gradients = torch.autograd.grad(expected, inputs)
    for one, other in zip(torch.autograd.grad(found, inputs), expected_gradients, strict=True):
        torch.testing.assert_close(one, other)


def test_logits_of_padding_are_minus_infinity_whatever_the_input() -> None:
    x, weight, bias, _ = random_inputs(4, 65, torch.float32)
    logits = decode_padded(1e30 * x, weight, bias - 1e30, 64)
    assert torch.equal(logits[:, 65:], torch.full((4, 63), float("-inf")))


def test_the_weight_gradient_is_added_to_an_existing_one() -> None:
    """In place, which DDP's buckets need, and rounded once, to float32."""
    x, weight, bias, labels = random_inputs(6, 101, torch.float32)
    weight.requires_grad_()
    before = torch.randn(101, 8, generator=torch.Generator().manual_seed(1))
    weight.grad = before.clone()
    address = weight.grad.data_ptr()
    torch.autograd.backward(EAGER.cross_entropy(decode_padded(x.bfloat16(), weight, bias, 64), labels))
    dlogits = torch.zeros(6, 101, dtype=torch.float64)
    logits = F.linear(x.bfloat16(), weight.bfloat16(), bias.bfloat16())
    rows = labels != IGNORED
    dlogits[rows] = (logits.float().softmax(1) - F.one_hot(labels.clamp(min=0), 101)).double()[rows]
    expected = before.double() + dlogits.bfloat16().double().t() @ x.bfloat16().double()
    assert weight.grad.data_ptr() == address
    torch.testing.assert_close(weight.grad.double(), expected, rtol=1e-5, atol=1e-5)


def test_products_with_float32_output_are_accepted_on_other_devices() -> None:
    """Shapes and dtypes only, on tensors without data: the branch that a CPU does not take."""
    weight = torch.empty(101, 8, device="meta", requires_grad=True)
    weight.grad = torch.empty(101, 8, device="meta")
    x = torch.empty(24, 8, dtype=torch.bfloat16, device="meta", requires_grad=True)
    bias = torch.empty(101, device="meta", requires_grad=True)
    logits = decode_padded(x, weight, bias, 64)
    assert (logits.shape, logits.dtype) == ((24, 128), torch.bfloat16)
    torch.autograd.backward(logits, torch.empty_like(logits))
    assert x.grad is not None and bias.grad is not None
    assert (x.grad.dtype, bias.grad.dtype, bias.grad.shape) == (torch.bfloat16, torch.float32, (101,))


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_models_with_and_without_padding_agree(
    precision: str, make_samples: Callable[..., list[Sample]], make_model: Models, relative_error: Error
) -> None:
    """Loss, accuracy and all gradients, summed over two micro-batches."""
    batches = [collate(make_samples(lengths, seed=7), None, 64) for lengths in ([50, 20, 9], [30, 40])]
    gradients: list[dict[str, Tensor | None]] = []
    results: list[list[float]] = []
    for multiple in (1, 64):
        model = make_model(vocabulary_multiple=multiple)
        results.append([])
        for batch in batches:
            with autocast(precision, CPU):
                scores = model(batch)
                sums = loss_sums(scores, batch)
            numbers = sums.masked_lm, sums.next_sentence, *correct_predictions(scores, batch)
            results[-1] += [float(value.detach()) for value in numbers]
            torch.autograd.backward(sums.mean(batch.masked, batch.sequences))
        gradients.append({name: parameter.grad for name, parameter in model.named_parameters()})
    tolerance = 1e-5 if precision == "fp32" else 1e-2
    assert results[1] == pytest.approx(results[0], rel=tolerance)
    for name, expected in gradients[0].items():
        found = gradients[1][name]
        assert found is not None and expected is not None
        assert relative_error(found, expected) < tolerance, name


@pytest.mark.parametrize("algorithm", ["lamb", "adamw"])
def test_a_checkpoint_is_resumed_with_and_without_padding(
    algorithm: str,
    tmp_path: Path,
    processes: Processes,
    make_store: Callable[..., SampleStore],
    make_config: Callable[..., RunConfig],
    make_model: Models,
    make_stepper: Callable[..., Stepper],
    make_order: Callable[[SampleStore, RunConfig], TrainingOrder],
) -> None:
    """Tensors have the vocabulary's rows, LAMB's norms are equal, and runs agree after an exchange of checkpoints."""
    config = make_config(
        global_batch_size=4, clipping=Clipping(max_norm=1.0), optimizer={"algorithm": algorithm, "warmup_steps": 0}
    )
    order = make_order(make_store(np.random.default_rng(0).integers(5, 60, 40)), config)

    def begin(multiple: int) -> Stepper:
        return make_stepper(config, make_model(vocabulary_multiple=multiple))

    def take(stepper: Stepper, numbers: range) -> list[float]:
        results = [stepper.take(read_step(order, number, 0), PhaseClock()) for number in numbers]
        return [float(value) for result in results for value in (result.masked_lm, result.gradient_norm)]

    plain, padded = begin(1), begin(64)
    assert take(padded, range(3)) == pytest.approx(take(plain, range(3)), rel=1e-4)
    states = [stepper.model.module.state_dict() for stepper in (plain, padded)]
    assert {n: t.shape for n, t in states[0].items()} == {n: t.shape for n, t in states[1].items()}
    tensors = [RunState(stepper, processes).rank_tensors() for stepper in (plain, padded)]
    assert {n: t.shape for n, t in tensors[0].items()} == {n: t.shape for n, t in tensors[1].items()}
    path = tmp_path / "weights.pt"
    torch.save([states[1], padded.optimizer.state_dict()], path)
    expected = take(padded, range(3, 6))
    model_state, optimizer_state = torch.load(path)
    plain.model.module.load_state_dict(model_state)
    plain.optimizer.load_state_dict(optimizer_state)
    assert take(plain, range(3, 6)) == pytest.approx(expected, rel=1e-4)


def test_padding_is_for_gpus_only(make_config: Callable[..., Any]) -> None:
    assert model_options(make_config(), "fp32", CPU).vocabulary_multiple == vocabulary_multiple(CPU) == 1
    assert vocabulary_multiple(torch.device("cuda")) == GPU_MULTIPLE == 64


def test_initial_weights_do_not_depend_on_padding(make_model: Models) -> None:
    states = [make_model(vocabulary_multiple=multiple).state_dict() for multiple in (1, 64)]
    assert all(torch.equal(tensor, states[1][name]) for name, tensor in states[0].items())
