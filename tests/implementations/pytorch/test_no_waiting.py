"""No operator in a step synchronises with the device, so the host runs ahead and a step can be a CUDA graph."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.bert.store import SampleStore
from implementations.pytorch.kernels.cpu.kernel_set import NUMBA
from implementations.pytorch.kernels.eager import EAGER
from implementations.pytorch.kernels.interface import Kernels
from implementations.pytorch.model.bert import BertForPreTraining
from implementations.pytorch.phase_clock import PhaseClock
from implementations.pytorch.step import Stepper
from podium.config.schema import Clipping, RunConfig
from podium.planning.batch_plan import TrainingOrder
from tests.implementations.pytorch.data.plain_reader import read_step
from tests.implementations.pytorch.fake_step import SynchronisationRecorder


@pytest.mark.parametrize(
    "synchronise",
    [
        lambda x: x.sum().item(),
        lambda x: float(x[0]),
        lambda x: x.nonzero(),
        lambda x: x[x > 0],
        lambda x: 1 if x.sum() else 0,
    ],
)
def test_synchronisation_is_detected(synchronise: Callable[[torch.Tensor], object]) -> None:
    with SynchronisationRecorder() as recorder:
        synchronise(torch.arange(1.0, 2.0))
    assert recorder.operators


@pytest.mark.parametrize("algorithm", ["lamb", "adamw"])
@pytest.mark.parametrize("kernels", [EAGER, NUMBA])
@pytest.mark.parametrize(
    ("precision", "accumulation", "when", "wire"),
    [
        ("fp32", 2, "after", "fp32"),
        ("bf16", 1, "after", "bf16"),
        ("fp16", 1, "after", "fp16"),
        ("fp16", 2, "bucket", "fp16"),
        ("fp32", 1, "before", "fp32"),
    ],
)
def test_no_step_synchronises_with_the_device(
    algorithm: str,
    kernels: Kernels,
    precision: str,
    accumulation: int,
    when: Any,
    wire: str,
    make_store: Callable[..., SampleStore],
    make_config: Callable[..., RunConfig],
    make_model: Callable[..., BertForPreTraining],
    make_stepper: Callable[..., Stepper],
    make_order: Callable[[SampleStore, RunConfig], TrainingOrder],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.Tensor, "tolist", lambda *_: pytest.fail("tolist in a step"))
    store = make_store(np.random.default_rng(0).integers(5, 60, 40))
    config = make_config(
        global_batch_size=4,
        gradient_accumulation_steps=accumulation,
        clipping=Clipping(max_norm=1.0, when=when),
        gradient_wire=wire,
        optimizer={"algorithm": algorithm, "warmup_steps": 0},
    )
    stepper = make_stepper(config, make_model(dropout_probability=0.1, kernels=kernels), precision)
    order = make_order(store, config)
    for number in range(2):  # DDP builds its buckets in these steps
        stepper.take(read_step(order, number, 0), PhaseClock())
    with SynchronisationRecorder() as recorder:
        result = stepper.take(read_step(order, 2, 0), PhaseClock())
    assert recorder.operators == []
    assert all(tensor.dim() == 0 for tensor in vars(result).values())
