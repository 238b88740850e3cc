"""Steps of the same model by every kernel set and by CUDA graphs compared, and what a step must not do on a GPU."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from implementations.pytorch.bench.variants import PodiumRunner
from implementations.pytorch.phase_clock import PhaseClock
from tests.implementations.pytorch.gpu.conftest import Target

pytestmark = pytest.mark.gpu
MakeRunner = Callable[..., PodiumRunner]
Record = Callable[[str, object], None]
GRAPHS = {"kernels": "triton", "attention": "flash", "precision": "bf16", "cuda_graph": "step"}


def train(runner: PodiumRunner) -> tuple[Tensor, dict[str, Tensor], dict[str, Tensor]]:
    """Losses [steps, 2] of a step on each batch, and all weights before and after."""
    weights = {name: p.detach() for name, p in runner.stepper.model.module.named_parameters()}
    before = {name: weight.clone() for name, weight in weights.items()}
    losses = [runner.stepper.take(step, PhaseClock()) for step in runner.steps]
    stacked = torch.stack([torch.stack([loss.masked_lm, loss.next_sentence]) for loss in losses])
    return stacked, before, {name: weight.clone() for name, weight in weights.items()}


def of_updates(found: dict[str, Tensor], expected: dict[str, Tensor], before: dict[str, Tensor]) -> float:
    """‖found − expected‖ / ‖expected − before‖ over all weights."""
    far = sum(float((found[name] - expected[name]).double().square().sum()) for name in expected)
    moved = sum(float((expected[name] - before[name]).double().square().sum()) for name in expected)
    assert moved > 0
    return float((far / moved) ** 0.5)


# Bounds on the difference of losses, relative, and of weights, relative to how far they moved. LAMB's first steps take
# the sign of a gradient, so that rounding of small gradients shows in the weights far more than in the losses.
@pytest.mark.parametrize(
    ("precision", "attention", "loss_bound", "weight_bound"),
    [("fp32", "grouped", 1e-4, 0.02), ("bf16", "auto", 1e-2, 0.5)],
)
@pytest.mark.parametrize("kernels", ["compiled", "triton"])
def test_kernel_sets_train_alike(
    kernels: str,
    precision: str,
    attention: str,
    loss_bound: float,
    weight_bound: float,
    make_runner: MakeRunner,
    record_property: Record,
) -> None:
    """Compared with the eager kernels, over the steps."""
    options: dict[str, Any] = {"precision": precision, "attention": attention}
    expected, before, end = train(make_runner(kernels="eager", **options))
    losses, same_before, weights = train(make_runner(kernels=kernels, **options))
    for name, weight in before.items():
        assert torch.equal(weight, same_before[name]), name
    of_losses, of_weights = float(((losses - expected) / expected).abs().max()), of_updates(weights, end, before)
    record_property("errors", {"losses": of_losses, "weights": of_weights})
    assert of_losses < loss_bound
    assert of_weights < weight_bound


def test_a_graph_is_bitwise_the_step(gpu: torch.device, make_runner: MakeRunner, record_property: Record) -> None:
    """Losses and weights. If two runs without graphs differ, an operator adds in no fixed order, and it shows here."""
    (first, before, one), (again, _, other) = (train(make_runner(**GRAPHS | {"cuda_graph": "none"})) for _ in range(2))
    runner = make_runner(**GRAPHS)
    assert runner.stepper.graphs
    found, _, replayed = train(runner)
    record_property("without_graphs", of_updates(other, one, before))
    record_property("graphs", of_updates(replayed, one, before))
    unequal = [name for name in one if not torch.equal(one[name], other[name])]
    assert torch.equal(first, again) and not unequal, f"two runs without graphs differ in {unequal[:5]}"
    unequal = [name for name in one if not torch.equal(one[name], replayed[name])]
    assert torch.equal(first, found) and not unequal, f"the run with graphs differs in {unequal[:5]}"


@pytest.mark.parametrize("cuda_graph", ["none", "step"])
def test_masks_differ_from_step_to_step(
    cuda_graph: str, target: Target, make_runner: MakeRunner, record_property: Record
) -> None:
    """With a learning rate of 0 and one batch, losses differ by dropout's masks only: at each of them."""
    if cuda_graph == "step" and not target.is_gpu:
        pytest.skip("CUDA graphs need a GPU")
    options = GRAPHS if target.is_gpu else {"kernels": "triton", "attention": "grouped", "precision": "fp32"}
    for dropout in (0.1, 0.0):
        runner = make_runner(**{**options, "cuda_graph": cuda_graph, "dropout": dropout})
        runner.stepper.rates.zero_()
        losses = [float(runner.stepper.take(runner.steps[0], PhaseClock()).masked_lm) for _ in range(4)]
        record_property(f"dropout_{dropout}", losses)
        assert len(set(losses)) == (4 if dropout else 1)


@pytest.fixture
def refused_waits(target: Target) -> Iterator[Callable[[bool], None]]:
    """(on) → make the host's waiting for the device an error, or allow it again."""

    def set_refused(on: bool) -> None:
        if target.is_gpu:
            torch.cuda.set_sync_debug_mode("error" if on else "default")

    yield set_refused
    set_refused(False)


@pytest.mark.parametrize("clipping", ["after", "before", "bucket", None])
@pytest.mark.parametrize(
    ("kernels", "precision", "cuda_graph"),
    [
        ("eager", "bf16", "none"),
        ("compiled", "bf16", "none"),
        ("triton", "bf16", "none"),
        ("triton", "fp16", "none"),
        ("triton", "fp8", "none"),
        ("triton", "bf16", "step"),
    ],
)
def test_the_host_waits_for_nothing_in_a_step(
    kernels: str,
    precision: str,
    cuda_graph: str,
    clipping: Any,
    target: Target,
    make_runner: MakeRunner,
    refused_waits: Callable[[bool], None],
) -> None:
    from podium.config.schema import Clipping

    if clipping != "after" and (kernels, precision, cuda_graph) != ("triton", "bf16", "none"):
        pytest.skip("each way of clipping is tested with one kernel set")
    if not target.is_gpu and (clipping != "after" or precision != "fp16"):
        pytest.skip("on a CPU one combination is enough: nothing waits there")
    runner = make_runner(
        kernels=kernels,
        precision=precision,
        cuda_graph=cuda_graph,
        attention="auto",
        dropout=0.1,
        clipping=clipping and Clipping(max_norm=1.0, when=clipping),
    )
    runner.take(0)
    refused_waits(True)
    runner.take(1)
    refused_waits(False)
    for name, weight in runner.stepper.model.named_parameters():
        assert weight.isfinite().all(), name


def test_waiting_is_refused(gpu: torch.device, refused_waits: Callable[[bool], None]) -> None:
    """Or the test above could not fail."""
    value = torch.ones((), device=gpu)
    refused_waits(True)
    with pytest.raises(RuntimeError, match="synchronizing"):
        float(value)
