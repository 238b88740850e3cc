"""Selection of the attention backend: by the table, after a check on the device, and the same on all ranks."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from implementations import pytorch
from implementations.pytorch.distributed.process_group import Processes
from implementations.pytorch.model.attention import selection
from implementations.pytorch.model.attention.check import Deviations
from implementations.pytorch.model.attention.cudnn_varlen import missing_package
from implementations.pytorch.model.attention.selection import resolve_attention
from implementations.pytorch.precision import COMPUTE_TYPES
from podium.config.load import SYSTEMS, load_system
from podium.core.errors import UsageError
from podium.planning.accelerators import find_accelerator
from podium.planning.hardware import ATTENTION_CHOICES, attention_candidates, expected_attention

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
RIGHT = Deviations(context=0.004, gradient=0.004, kept=0.01, mask=0.01, finite=True, spare=0.0)
Gpu = Callable[..., list[str]]


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    """(capability, backends whose check fails) → simulates such a GPU; returns the list of backends checked so far."""
    monkeypatch.setattr(selection, "_failures", {})

    def simulate(capability: tuple[int, int], failing: tuple[str, ...] = ()) -> list[str]:
        checked: list[str] = []

        def measure(backend: str, *_: Any) -> Deviations:
            checked.append(backend)
            if backend in failing:
                raise RuntimeError(f"no {backend} kernel\nand more lines")
            return RIGHT

        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "GPU 1")
        monkeypatch.setattr(selection, "missing_package", lambda: None)
        monkeypatch.setattr(selection, "measure_deviations", measure)
        return checked

    return simulate


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize(
    ("capability", "half"),
    [
        ((7, 0), "nested"),
        ((7, 5), "nested"),
        ((8, 0), "flash"),
        ((8, 6), "flash"),
        ((8, 9), "flash"),
        ((9, 0), "cudnn"),
        ((10, 0), "flash"),
        ((10, 3), "flash"),
        ((12, 0), "flash"),
    ],
)
def test_auto_is_the_tables_backend(
    capability: tuple[int, int], half: str, dtype: torch.dtype, gpu: Gpu, capsys: pytest.CaptureFixture[str]
) -> None:
    checked = gpu(capability)
    expected = "nested" if dtype == torch.float32 else half
    assert resolve_attention("auto", CUDA, dtype) == expected
    assert resolve_attention("auto", CUDA, dtype) == expected
    assert checked == ([] if expected == "nested" else [expected])  # once, and only what is used
    assert resolve_attention("auto", CPU, dtype) == "grouped"
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("failing", "chosen"), [(("cudnn",), "flash"), (("flash",), "cudnn"), (("cudnn", "flash"), "nested")]
)
def test_a_failed_check_selects_the_next_backend_and_is_reported(
    failing: tuple[str, ...], chosen: str, gpu: Gpu, capsys: pytest.CaptureFixture[str]
) -> None:
    gpu((9, 0), failing)
    assert resolve_attention("auto", CUDA, torch.bfloat16) == chosen
    assert resolve_attention("auto", CUDA, torch.bfloat16) == chosen
    lines = capsys.readouterr().err.splitlines()
    if chosen == "cudnn":
        assert not lines
        return
    assert len(lines) == len(failing)  # once each
    assert lines[0] == (
        "attention: auto is not cudnn, but flash: its check on GPU 1 failed: RuntimeError: no cudnn kernel"
    )


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"context": 0.5}, r"the context deviates from padded attention in float32 \(0.5, allowed are at most 0.02\)"),
        ({"gradient": float("nan")}, r"the gradient deviates from padded attention in float32 \(nan"),
        ({"finite": False}, "some results are not finite"),
        ({"spare": 1e-6}, "the gradient of spare slots is not zero"),
        ({"kept": 0.5}, "dropout does not keep the mean"),
        ({"mask": 1.0}, "there is no dropout, or forward and backward have different masks"),
    ],
)
@pytest.mark.parametrize("backend", ["cudnn", "flash"])
def test_a_configured_backend_with_wrong_results_is_an_error(
    backend: str, wrong: dict[str, Any], reason: str, gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu((9, 0))
    monkeypatch.setattr(selection, "measure_deviations", lambda *_: Deviations(**{**vars(RIGHT), **wrong}))
    with pytest.raises(UsageError, match=f"attention: found {backend}, but its check on GPU 1 failed: {reason}"):
        resolve_attention(backend, CUDA, torch.bfloat16)


@pytest.mark.parametrize("setting", ["auto", "cudnn"])
def test_a_missing_package_is_named(
    setting: str, gpu: Gpu, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    gpu((9, 0))
    monkeypatch.setattr(selection, "missing_package", missing_package)
    monkeypatch.setitem(sys.modules, "cudnn", None)  # as if it were not installed
    if setting == "auto":
        assert resolve_attention("auto", CUDA, torch.bfloat16) == "flash"
        message = capsys.readouterr().err
    else:
        with pytest.raises(UsageError) as caught:
            resolve_attention("cudnn", CUDA, torch.bfloat16)
        message = str(caught.value)
    assert "package nvidia-cudnn-frontend cannot be imported" in message
    assert "install it with `pip install nvidia-cudnn-frontend`" in message


class Ranks:
    """A process group in which another rank reports `other` (1: its check failed)."""

    def __init__(self, other: int, first: bool = True) -> None:
        self.other, self.first, self.calls = other, first, 0

    def all_reduce_max(self, number: int) -> int:
        self.calls += 1
        return max(self.other, number)


@pytest.mark.parametrize("first", [True, False])
def test_a_backend_that_fails_on_one_rank_is_used_on_none(
    first: bool, gpu: Gpu, capsys: pytest.CaptureFixture[str]
) -> None:
    gpu((9, 0))
    ranks = Ranks(other=1, first=first)
    assert resolve_attention("auto", CUDA, torch.bfloat16, cast(Processes, ranks)) == "nested"
    assert ranks.calls == 2  # cudnn, flash
    error = capsys.readouterr().err
    assert ("auto is not cudnn, but flash: the check failed on another rank" in error) is first
    # Later calls need no collective operation and agree with the first.
    assert resolve_attention("auto", CUDA, torch.bfloat16) == "nested"
    with pytest.raises(UsageError, match="the check failed on another rank; allowed here are auto, padded"):
        resolve_attention("cudnn", CUDA, torch.bfloat16, cast(Processes, ranks))
    assert ranks.calls == 2


def test_ranks_whose_checks_pass_agree(gpu: Gpu) -> None:
    gpu((9, 0))
    ranks = Ranks(other=0)
    assert resolve_attention("auto", CUDA, torch.bfloat16, cast(Processes, ranks)) == "cudnn"
    assert ranks.calls == 1


@pytest.mark.parametrize("backend", ["cudnn", "flash"])
def test_variable_length_attention_on_unsupported_devices_is_an_error(backend: str, gpu: Gpu) -> None:
    checked = gpu((9, 0))
    with pytest.raises(UsageError, match=f"found {backend} with bfloat16 on cpu, but it needs bf16 or fp16 on"):
        resolve_attention(backend, CPU, torch.bfloat16)
    with pytest.raises(UsageError, match="allowed here are auto, padded, grouped, nested"):
        resolve_attention(backend, CUDA, torch.float32)
    resolve_attention(backend, CUDA, torch.float16)
    assert checked == [backend]
    gpu((7, 5))
    with pytest.raises(UsageError, match=r"with float16 on cuda of compute capability 7\.5, but it .* 8\.0 or more"):
        resolve_attention(backend, CUDA, torch.float16)


@pytest.mark.parametrize("backend", ["padded", "grouped", "nested"])
def test_other_backends_run_on_every_device_without_a_check(backend: str, gpu: Gpu) -> None:
    checked = gpu((7, 5))
    assert resolve_attention(backend, CPU, torch.float32) == backend
    assert resolve_attention(backend, CUDA, torch.float16) == backend
    assert not checked


def test_rows_of_the_table_are_sorted_and_end_with_a_backend_that_needs_no_check() -> None:
    capabilities = [row.capability for row in ATTENTION_CHOICES]
    assert capabilities == sorted(capabilities)
    assert all(row.backends[-1] == "nested" and row.evidence for row in ATTENTION_CHOICES)
    assert attention_candidates(None, half=True) == ("flash", "nested")


SYSTEM_NAMES = sorted(path.stem for path in SYSTEMS.glob("*.yaml"))
RECIPES = Path(pytorch.__file__).parent / "recipes"
RECIPE_NAMES = sorted(path.stem for path in RECIPES.glob("*.yaml"))


@pytest.mark.parametrize("system", SYSTEM_NAMES)
@pytest.mark.parametrize("recipe", RECIPE_NAMES)
def test_the_expected_backend_of_every_system_and_recipe_is_the_resolved_one(
    system: str, recipe: str, gpu: Gpu
) -> None:
    try:
        config = load_system(system, recipe)
    except UsageError:
        pytest.skip("the recipe needs hyper-parameters that the system does not have")
    kind = find_accelerator(config.description.accelerator_model_name)
    device = torch.device(config.launch.device)
    if device.type == "cuda":
        assert kind is not None and kind.compute_capability is not None
        gpu(kind.compute_capability)
    precision = config.precision if config.precision != "auto" else "bf16" if device.type == "cuda" else "fp32"
    assert resolve_attention(config.attention, device, COMPUTE_TYPES[precision]) == expected_attention(config)
