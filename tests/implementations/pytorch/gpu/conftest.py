"""Fixtures of the tests on a GPU: the device, sizes, steps, and results as JSON for tools/gpu_check.py.

With PODIUM_GPU_TESTS=cpu they run on the CPU at tiny sizes, the Triton kernels in Triton's interpreter
(TRITON_INTERPRET=1). That is how the tests are tested; whatever needs a GPU is skipped.
"""

import gc
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.bert.lengths import wikipedia_histogram
from benchmarks.bert.sizes import LARGE
from implementations.pytorch import build_run
from implementations.pytorch.bench import variants
from implementations.pytorch.bench.gpu_check import RESULTS, write_result
from implementations.pytorch.bench.kernel_cases import Shapes, large_shapes, tiny_shapes
from implementations.pytorch.bench.variants import PodiumRunner, mixed_lengths
from implementations.pytorch.distributed.process_group import Processes, single_process
from podium.config.load import load_system
from podium.config.schema import RunConfig
from podium.core.errors import UsageError

ON_CPU = os.environ.get("PODIUM_GPU_TESTS") == "cpu"
if os.environ.get("TRITON_INTERPRET") == "1":
    from tests.implementations.pytorch.kernels.gpu import lasting_language

    lasting_language.install()
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # for products that are the same in every run


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Write the result of a test at once, so that it is there whatever happens to the process."""
    if RESULTS not in os.environ or (report.when != "call" and report.outcome == "passed"):
        return
    crash = getattr(report.longrepr, "reprcrash", None)
    skipped = isinstance(report.longrepr, tuple)
    reason = report.longrepr[2] if skipped else crash.message if crash else report.longreprtext  # type: ignore[index]
    name = report.nodeid.rpartition("/")[2]
    values = dict(report.user_properties) | ({"reason": reason[:2000]} if reason else {})
    write_result(test=name, outcome=report.outcome, seconds=round(report.duration, 3), **values)


@dataclass(frozen=True)
class Target(Shapes):
    """The device that is tested, and sizes for it: those of BERT-large at 56 sequences, or tiny ones on a CPU."""

    sequences: int
    steps: int

    @property
    def is_gpu(self) -> bool:
        return self.device.type == "cuda"


@pytest.fixture(scope="session")
def target() -> Target:
    if ON_CPU:
        return Target(**vars(tiny_shapes()), sequences=2, steps=2)
    shapes = large_shapes(torch.device("cuda", 0))
    return Target(**vars(replace(shapes, size=replace(LARGE, name="two layers", layers=2))), sequences=56, steps=5)


@pytest.fixture
def gpu(target: Target) -> torch.device:
    """The GPU, for what has no meaning on a CPU."""
    if not target.is_gpu:
        pytest.skip("needs a GPU, even as a rehearsal on the CPU")
    return target.device


@pytest.fixture(autouse=True)
def same_arithmetic(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Products in full float32, and operators that add in a fixed order; memory is given back after each test."""
    if ON_CPU:  # the kernels of a GPU in Triton's interpreter
        monkeypatch.setattr(build_run, "resolve_kernels", lambda setting, device: setting)
        monkeypatch.setattr(variants, "warm_up", lambda *_, **__: None)  # the interpreter is slow
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


@pytest.fixture
def alone(target: Target) -> Iterator[Processes]:
    """A process group with this process as the only rank."""
    with single_process(target.device) as processes:
        yield processes


@pytest.fixture
def make_runner(target: Target, alone: Processes) -> Callable[..., PodiumRunner]:
    """(changes of the configuration of h200_1x) → steps of a model of two layers, warmed up, graphs captured.

    The weights, samples and learning rates are the same in every runner. Skips what this device does not support.
    """

    def make(**changes: Any) -> PodiumRunner:
        base = load_system("h200_1x")
        launch = base.launch.model_copy(update={"device": target.device.type})
        changed = {"warmup_steps": 0, "algorithm": changes.pop("algorithm", base.optimizer.algorithm)}
        optimizer = base.optimizer.model_copy(update=changed)
        config: RunConfig = base.model_copy(
            update={
                "seed": 1,
                "global_batch_size": target.sequences,
                "dropout": 0.0,
                "cuda_graph": "none",
                "launch": launch,
                "optimizer": optimizer,
                "shape_step": None if target.is_gpu else 8,
                **changes,
            }
        )
        count = target.steps * target.sequences
        lengths = mixed_lengths(wikipedia_histogram(), count) if target.is_gpu else np.arange(count) * 3 % 5 + 4
        try:
            return PodiumRunner(config, alone, lengths, target.vocabulary, target.size)
        except UsageError as error:
            pytest.skip(str(error))

    return make
