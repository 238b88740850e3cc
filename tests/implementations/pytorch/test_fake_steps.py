"""Steps of every configuration that a GPU may have, on fake tensors: dtypes, shapes, and no host that waits.

The options of the model, and those of what happens to its gradients, are two products: they meet in `.grad` alone.
Every two values of a product are tested together in the default run, and all combinations by `pytest -m exhaustive`.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from typing import Any, get_args

import numpy as np
import pytest
import torch

from benchmarks.bert.samples import Sample
from benchmarks.bert.sizes import Size
from implementations.pytorch.data.batch import RaggedBatch, collate
from implementations.pytorch.data.reader import Step
from implementations.pytorch.distributed.gradient_sync import WIRE_TYPES
from implementations.pytorch.phase_clock import PhaseClock
from implementations.pytorch.precision import COMPUTE_TYPES
from implementations.pytorch.step import Stepper
from podium.config.load import load_system
from podium.config.schema import Clipping, OptimizerSettings, RunConfig
from podium.core.errors import UsageError
from podium.planning.batch_plan import GlobalBatch
from tests.implementations.pytorch.fake_step import (
    BUCKETS,
    CUDA,
    HOPPER,
    RANKS,
    FakeGpu,
    SynchronisationRecorder,
    fake_gpu,
)
from tests.implementations.pytorch.pairwise import pairs_by_default

pytest.importorskip("triton", reason="Triton is not installed")
from implementations.pytorch.kernels.gpu.common import record_launches

LENGTHS = (40, 33, 7, 3)


def offered(settings: Any, key: str, *not_here: str) -> list[str]:
    """The values that a setting may have on a GPU, without those that are chosen by others or not tested here."""
    values = get_args(settings.model_fields[key].annotation)
    return [value for value in values if value not in ("auto", *not_here)]


ATTENTION = offered(RunConfig, "attention", "nested")  # fake tensors have no jagged layout
KERNELS = offered(RunConfig, "kernels", "numba", "compiled")  # what is compiled is the eager code
PRECISIONS = offered(RunConfig, "precision")
LAST_LAYERS = offered(RunConfig, "last_layer")
WIRES = offered(RunConfig, "gradient_wire")
CLIPPINGS = [None, *offered(Clipping, "when")]
ALGORITHMS = offered(OptimizerSettings, "algorithm")


def configuration(**changes: Any) -> RunConfig:
    """A valid configuration of a GPU system. Raises UsageError for one that is not."""
    base = load_system("h200_1x")
    optimizer = base.optimizer.model_copy(update={"algorithm": changes.pop("algorithm", "lamb")})
    changes = {"global_batch_size": len(LENGTHS), "seed": 1, "optimizer": optimizer, **changes}
    return RunConfig.model_validate(base.model_copy(update=changes).model_dump(by_alias=True))


@pytest.fixture
def batch(make_samples: Callable[..., list[Sample]]) -> RaggedBatch:
    return collate(make_samples(LENGTHS), None, 64)


@pytest.fixture
def launched() -> Iterator[list[str]]:
    """Names of the Triton kernels that were launched."""
    names: list[str] = []
    with record_launches(lambda name, *_: names.append(name)):
        yield names


def take_step(gpu: FakeGpu, stepper: Stepper, batch: RaggedBatch, micro_batches: int = 1) -> list[torch.dtype]:
    """Take a step, check what every step must leave, and return the dtypes of the logits."""
    fake, ranks = batch.map_tensors(gpu.mode.from_tensor), stepper.processes.ranks
    samples = len(LENGTHS) * micro_batches * ranks
    whole = GlobalBatch(
        first_sample=0,
        indices=np.arange(samples),
        lengths=np.tile(LENGTHS, micro_batches * ranks),
        masked_counts=np.tile(batch.masked_counts, micro_batches * ranks),
        starts=np.arange(0, samples + 1, len(LENGTHS)),
        micro_batch_slots=np.full((ranks, micro_batches), batch.slots),
    )
    logits: list[torch.dtype] = []
    stepper.model.module.register_forward_hook(lambda *_: logits.append(_[-1].masked_lm.dtype))
    with SynchronisationRecorder() as recorder:
        result = stepper.take(Step((fake,) * micro_batches, whole), PhaseClock())
    assert recorder.operators == []
    for name, value in vars(result).items():
        assert (value.shape, value.dtype) == ((), torch.float32), name
    for name, parameter in stepper.model.module.named_parameters():
        gradient = parameter.grad
        assert gradient is not None and gradient.shape == parameter.shape, name
        assert parameter.dtype == gradient.dtype == torch.float32, name
    return logits


def is_offered(attention: str, precision: str, kernels: str) -> bool:
    """Whether the GPU has these together."""
    return (precision != "fp32" or attention in ("padded", "grouped")) and (precision != "fp8" or kernels == "triton")


MODELS = list(product(ATTENTION, PRECISIONS, KERNELS, LAST_LAYERS))


@pytest.mark.parametrize(
    ("attention", "precision", "kernels", "last_layer"),
    pairs_by_default(row for row in MODELS if is_offered(*row[:3])),
)
def test_a_step_with_any_options_of_the_model(
    attention: str,
    precision: str,
    kernels: str,
    last_layer: str,
    batch: RaggedBatch,
    small: Size,
    vocabulary: int,
    launched: list[str],
) -> None:
    with fake_gpu() as gpu:
        config = configuration(
            attention=attention, kernels=kernels, precision=precision, last_layer=last_layer, algorithm="adamw"
        )
        stepper = gpu.build(config, small, vocabulary)
        assert take_step(gpu, stepper, batch) == [COMPUTE_TYPES[precision]]
    assert kernels != "triton" or any("backward" in name for name in launched)


@pytest.mark.parametrize(
    ("attention", "precision", "kernels"),
    [row for row in product(ATTENTION, PRECISIONS, KERNELS) if not is_offered(*row)],
)
def test_what_the_gpu_does_not_offer_together_is_an_error(
    attention: str, precision: str, kernels: str, small: Size, vocabulary: int
) -> None:
    with fake_gpu() as gpu, pytest.raises(UsageError):
        gpu.build(configuration(attention=attention, kernels=kernels, precision=precision), small, vocabulary)


@pytest.mark.parametrize(
    ("when", "wire", "algorithm", "precision"),
    pairs_by_default(product(CLIPPINGS, WIRES, ALGORITHMS, ("bf16", "fp16"))),
)
def test_a_step_with_any_way_of_a_gradient_to_the_weights(
    when: Any, wire: Any, algorithm: str, precision: str, batch: RaggedBatch, small: Size, vocabulary: int
) -> None:
    """On several ranks; with fp16 there is loss scaling."""
    config = configuration(
        algorithm=algorithm,
        precision=precision,
        clipping=when and Clipping(max_norm=1.0, when=when),
        gradient_wire=wire,
        kernels="eager",
        attention="padded",
    )
    launch = config.launch.model_copy(update={"processes_per_node": RANKS})
    config = config.model_copy(update={"launch": launch, "global_batch_size": RANKS * len(LENGTHS)})
    with fake_gpu() as gpu:
        stepper = gpu.build(config, replace(small, layers=1), vocabulary)
        take_step(gpu, stepper, batch)
        assert gpu.sent == {WIRE_TYPES[wire]}
        assert stepper.scaler.is_enabled() == ("fp16" in (wire, precision))


@pytest.mark.parametrize("kernels", [*KERNELS, "compiled"])
def test_gradients_of_several_micro_batches_are_sent_once(
    kernels: str, batch: RaggedBatch, small: Size, vocabulary: int, launched: list[str]
) -> None:
    config = configuration(kernels=kernels, precision="bf16", attention="flash", gradient_accumulation_steps=2)
    config = config.model_copy(update={"global_batch_size": 2 * len(LENGTHS)})
    with fake_gpu() as gpu:
        stepper = gpu.build(config, replace(small, layers=1), vocabulary)
        assert len(take_step(gpu, stepper, batch, micro_batches=2)) == 2
        assert gpu.reduced == BUCKETS


def test_the_fake_gpu_is_a_hopper_one() -> None:
    with fake_gpu():
        assert torch.cuda.get_device_capability(CUDA) == HOPPER
