"""Fixtures of the tests on a GPU: the device, sizes, steps, and results as JSON for tools/gpu_check.py.

With PODIUM_GPU_TESTS=cpu they run on the CPU at tiny sizes, the Triton kernels in Triton's interpreter
(TRITON_INTERPRET=1). That is how the tests are tested; whatever needs a GPU is skipped.
"""

import gc
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from benchmarks.bert.lengths import wikipedia_histogram
from benchmarks.bert.sizes import LARGE, VOCABULARY_SIZE, Size
from implementations.pytorch import build_run
from implementations.pytorch.bench import variants
from implementations.pytorch.bench.variants import PodiumRunner, mixed_lengths
from implementations.pytorch.distributed.process_group import Processes, single_process
from podium.config.load import load_system
from podium.config.schema import RunConfig
from podium.core.errors import UsageError

ON_CPU = os.environ.get("PODIUM_GPU_TESTS") == "cpu"
RESULTS = os.environ.get("PODIUM_GPU_RESULTS")  # a file to which the result of each test is appended, as a JSON line
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # for products that are the same in every run


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Append the result of a test to RESULTS at once, so that it is there whatever happens to the process."""
    if RESULTS is None or (report.when != "call" and report.outcome == "passed"):
        return
    crash = getattr(report.longrepr, "reprcrash", None)
    reason = (
        report.longrepr[2] if isinstance(report.longrepr, tuple) else crash.message if crash else report.longreprtext
    )
    line = {"test": report.nodeid.rpartition("/")[2], "outcome": report.outcome, "seconds": round(report.duration, 3)}
    line |= dict(report.user_properties) | ({"reason": reason[:2000]} if reason else {})
    with Path(RESULTS).open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


@dataclass(frozen=True)
class Target:
    """The device that is tested, and sizes for it: those of BERT-large at 56 sequences, or tiny ones on a CPU."""

    device: torch.device
    size: Size
    vocabulary: int
    tokens: int
    masked: int
    sequences: int
    steps: int

    @property
    def is_gpu(self) -> bool:
        return self.device.type == "cuda"

    def normal(self, *shape: int, seed: int = 0, scale: float = 1.0) -> Tensor:
        """Random float64 numbers on the device, the same for the same seed."""
        generator = torch.Generator(self.device).manual_seed(seed)
        return scale * torch.randn(shape, generator=generator, dtype=torch.float64, device=self.device)

    def integers(self, high: int, count: int, seed: int = 0) -> Tensor:
        return torch.randint(0, high, (count,), generator=torch.Generator().manual_seed(seed)).to(self.device)


@pytest.fixture(scope="session")
def target() -> Target:
    if ON_CPU:
        tiny = replace(LARGE, name="tiny", layers=1, hidden=32, heads=4, feed_forward=48, positions=32)
        return Target(torch.device("cpu"), tiny, 101, tokens=12, masked=6, sequences=2, steps=2)
    two_layers = replace(LARGE, name="two layers", layers=2)
    return Target(
        torch.device("cuda", 0), two_layers, VOCABULARY_SIZE, tokens=14_336, masked=2_304, sequences=56, steps=5
    )


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
        optimizer = base.optimizer.model_copy(update={"warmup_steps": 0})
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
