"""Every Triton kernel is compiled for GPUs that are not here: nothing spills, and programs fit a multiprocessor."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

pytest.importorskip("triton")
import triton
import triton.language as tl

from implementations.pytorch.kernels.gpu import norm
from implementations.pytorch.kernels.gpu.ahead import Ahead
from implementations.pytorch.kernels.gpu.compile_ahead import (
    compile_kernel,
    kernel_modules,
    main,
    resident_programs,
    unlisted_kernels,
)

ROOT = Path(__file__).resolve().parents[5]
FOLDER = ROOT / "implementations/pytorch/kernels/gpu"
MODULES = sorted(path.stem for path in FOLDER.glob("*.py") if "@triton.jit" in path.read_text(encoding="utf-8"))
TOOL = "implementations.pytorch.kernels.gpu.compile_ahead"


@pytest.fixture(autouse=True)
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))


@pytest.mark.parametrize("module", MODULES)
def test_kernels_are_as_intended_on_a100_and_h100(
    module: str, start_ranks: Callable[..., None], tmp_path: Path
) -> None:
    """No spills, the intended occupancy and vectorised accesses, by the exit code; one process for each GPU."""
    environment = {"TRITON_CACHE_DIR": str(tmp_path), "TRITON_INTERPRET": "0"}
    start_ranks(TOOL, [["--arch", architecture, "--module", module] for architecture in (80, 90)], [environment] * 2)


def test_every_kernel_has_an_entry() -> None:
    assert unlisted_kernels(kernel_modules()) == []
    assert {module.__name__.rpartition(".")[2] for module in kernel_modules()} == set(MODULES)


@triton.jit
def _part(x):  # type: ignore[no-untyped-def]
    return x * 2.0


@triton.jit
def _double(x_ptr, columns, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    cols = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + cols, mask=cols < columns)
    tl.store(x_ptr + cols, _part(x), mask=cols < columns)


def test_a_kernel_without_an_entry_is_found() -> None:
    """But not the function that it calls."""
    module = ModuleType(__name__)
    vars(module).update(_part=_part, _double=_double)
    assert unlisted_kernels([module]) == [f"{__name__}._double"]
    module.AHEAD = (Ahead(_double, "*bf16 i32", {"BLOCK": 1024}, 4),)  # type: ignore[attr-defined]
    assert unlisted_kernels([module]) == []


def entry_of(name: str) -> Ahead:
    return next(entry for entry in norm.AHEAD if entry.kernel.__name__ == name)


def test_faults_are_reported() -> None:
    """Too few registers, unaligned rows, and an occupancy that cannot be reached."""
    entry = entry_of("_embedding_backward")
    assert compile_kernel(entry, 90).faults == ()
    squeezed = compile_kernel(replace(entry, options={"maxnreg": 24}), 90)
    assert squeezed.spill_bytes > 0 and squeezed.registers <= 24
    assert squeezed.faults[0].startswith(f"spills {squeezed.spill_bytes} bytes")
    double = Ahead(_double, "*bf16 i32", {"BLOCK": 1024}, 4)
    assert compile_kernel(double, 80).faults == ()
    report = compile_kernel(replace(double, aligned=(), occupancy=1.1), 80)
    assert report.faults == (
        "occupancy 100%, intended is 110%",
        "its widest access is 2 bytes, intended are 16",
        "16 accesses of one or two bytes, intended are at most 0",
    )


def test_fp8_kernels_are_compiled_only_where_there_is_fp8(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    entries = entry_of("_embedding_forward"), replace(entry_of("_embedding_backward"), capability=89)
    monkeypatch.setattr(norm, "AHEAD", entries)
    assert main(["--arch", "80", "90", "--module", "norm", "--json"]) == 1  # others have no entry any more
    output = capsys.readouterr()
    compiled = [(report["kernel"], report["architecture"]) for report in json.loads(output.out)]
    forward, backward = "norm.embedding_forward", "norm.embedding_backward"
    assert compiled == [(forward, 80), (forward, 90), (backward, 90)]
    assert "norm._residual_forward: found no entry of it in AHEAD of its module; add one" in output.err


@pytest.mark.parametrize(
    ("registers", "warps", "shared", "architecture", "programs"),
    [
        (32, 8, 0, 80, 8),  # all 64 warps
        (33, 8, 0, 80, 6),  # 40 registers are allocated: 51 warps would fit, 12 in each quarter
        (64, 32, 0, 90, 1),
        (168, 4, 0, 90, 3),
        (255, 8, 0, 100, 1),
        (16, 1, 0, 90, 32),  # programs, not warps
        (32, 4, 48 * 1024, 80, 3),
        (32, 4, 48 * 1024, 90, 4),
        (32, 4, 163 * 1024, 80, 1),
    ],
)
def test_resident_programs(registers: int, warps: int, shared: int, architecture: int, programs: int) -> None:
    assert resident_programs(registers, warps, shared, architecture) == programs


def test_the_table_has_a_line_for_each_kernel_and_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--arch", "90", "100", "--module", "cross_entropy"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines[1:]] == [
        [f"cross_entropy.{name}", f"sm_{architecture}"]
        for architecture in (90, 100)
        for name in ("forward", "backward")
    ]


def test_another_architecture_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--arch", "75"])
    assert caught.value.code == 2 and "invalid choice: 75" in capsys.readouterr().err
