"""Compile every Triton kernel for several GPUs, of which none is needed.

`python -m implementations.pytorch.kernels.gpu.compile_ahead` prints registers, spills, shared memory, theoretical
occupancy and the widest access to global memory of each kernel, at BERT-large's sizes. Each module of this folder lists
its kernels as AHEAD. Triton contains NVIDIA's assembler. Exit codes: 0 all kernels are as intended, 1 not, 2 wrong
usage.

Source of the occupancy: NVIDIA's CUDA C++ programming guide (technical specifications per compute capability) and the
allocation units of its occupancy calculator.
"""

import argparse
import importlib
import inspect
import json
import pkgutil
import re
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import triton
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

import implementations.pytorch.kernels.gpu as package
from implementations.pytorch.kernels.gpu.ahead import Ahead

ARCHITECTURES = (80, 90, 100)  # A100; H100 and H200; B200
BLACKWELL = 100  # has its own assembler in Triton

WARP = 32  # threads
MAX_WARPS, MAX_PROGRAMS, REGISTERS, PARTITIONS = 64, 32, 65536, 4  # of a multiprocessor, on all three architectures
SHARED_MEMORY = {80: 164 * 1024, 90: 228 * 1024, 100: 228 * 1024}  # bytes of a multiprocessor
# Registers are allocated to warps in units of 256. Of shared memory each program has 1 KiB more, for the system, and it
# is allocated in units of 128 bytes.
REGISTER_UNIT, SHARED_RESERVED, SHARED_UNIT = 256, 1024, 128


@dataclass(frozen=True)
class Report:
    """What the machine code of one kernel takes, and what of it is not as intended."""

    kernel: str
    architecture: int
    warps: int
    registers: int  # of a thread
    spill_bytes: int  # stores and loads of a thread
    shared_bytes: int  # of a program
    programs: int  # that fit a multiprocessor
    occupancy: float
    widest_access: int  # bytes
    faults: tuple[str, ...]


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="compile_ahead", description="Compile every Triton kernel without a GPU.")
    parser.add_argument(
        "--arch", type=int, nargs="+", choices=ARCHITECTURES, default=ARCHITECTURES, help="default: all"
    )
    modules = {module.__name__.rpartition(".")[2]: module for module in kernel_modules()}
    parser.add_argument("--module", nargs="+", choices=sorted(modules), default=sorted(modules), help="default: all")
    parser.add_argument("--json", action="store_true", help="print a list of objects instead of a table")
    arguments = parser.parse_args(argv)
    missing = unlisted_kernels(list(modules.values()))
    reports = [
        compile_kernel(entry, architecture)
        for architecture in arguments.arch
        for module in arguments.module
        for entry in _entries(modules[module])
        if entry.capability <= architecture
    ]
    if arguments.json:
        print(json.dumps([asdict(report) for report in reports], indent=1))
    else:
        print(table(reports))
    for name in missing:
        print(f"{name}: found no entry of it in AHEAD of its module; add one", file=sys.stderr)
    for report in reports:
        for fault in report.faults:
            print(f"{report.kernel}, sm_{report.architecture}: {fault}", file=sys.stderr)
    return 1 if missing or any(report.faults for report in reports) else 0


def kernel_modules() -> list[ModuleType]:
    """Return the modules of this folder that contain Triton functions."""
    names = [f"{package.__name__}.{module.name}" for module in pkgutil.iter_modules(package.__path__)]
    modules = [importlib.import_module(name) for name in names if name != f"{package.__name__}.compile_ahead"]
    return [module for module in modules if _triton_functions(module)]


def _entries(module: ModuleType) -> tuple[Ahead, ...]:
    entries: tuple[Ahead, ...] = getattr(module, "AHEAD", ())
    return entries


def _triton_functions(module: ModuleType) -> dict[str, JITFunction[Any]]:
    return {
        name: value
        for name, value in vars(module).items()
        if isinstance(value, JITFunction) and value.__module__ == module.__name__
    }


def unlisted_kernels(modules: list[ModuleType]) -> list[str]:
    """Return the Triton functions that are neither in AHEAD of their module nor used by another Triton function."""
    functions = {(module.__name__, name): f for module in modules for name, f in _triton_functions(module).items()}
    bodies = [inspect.getsource(function.fn).partition("def ")[2] for function in functions.values()]
    # Without the function's own name, which stands first.
    used = {name for body in bodies for name in re.findall(r"\w+", body)[1:]}
    listed = {(module.__name__, entry.kernel.__name__) for module in modules for entry in _entries(module)}
    return sorted(".".join(key) for key in functions if key not in listed and key[1] not in used)


def compile_kernel(entry: Ahead, architecture: int) -> Report:
    """Compile a kernel for an architecture (compute capability times ten)."""
    names, kinds = entry.kernel.arg_names, iter(entry.types.split())
    signature = {name: "constexpr" if name in entry.constants else next(kinds) for name in names}
    assert next(kinds, None) is None and set(entry.constants) <= set(names), entry.name
    multiples = {
        (place,): [["tt.divisibility", 16]]
        for place, (name, kind) in enumerate(signature.items())
        if kind.startswith("*") or name in entry.aligned
    }
    constants = {(names.index(name),): value for name, value in entry.constants.items()}
    options = {"num_warps": entry.warps, **(entry.options or {})}
    source = ASTSource(entry.kernel, signature, constants, multiples)
    compiled = triton.compile(source, target=GPUTarget("cuda", architecture, WARP), options=options)
    registers, spills = _assemble(compiled.asm["ptx"], architecture)
    shared = compiled.metadata.shared
    programs = resident_programs(registers, entry.warps, shared, architecture)
    occupancy = programs * entry.warps / MAX_WARPS
    widths = _access_widths(compiled.asm["ptx"])
    narrow = sum(width <= 2 for width in widths)
    faults = {
        f"spills {spills} bytes of registers; use more warps or a smaller block": spills > 0,
        f"occupancy {occupancy:.0%}, intended is {entry.occupancy:.0%}": occupancy < entry.occupancy,
        f"its widest access is {max(widths, default=0)} bytes, intended are {entry.widest_access}": (
            max(widths, default=0) < entry.widest_access
        ),
        f"{narrow} accesses of one or two bytes, intended are at most {entry.narrow_accesses}": (
            narrow > entry.narrow_accesses
        ),
    }
    return Report(
        entry.name, architecture, entry.warps, registers, spills, shared, programs, occupancy, max(widths, default=0),
        tuple(fault for fault, found in faults.items() if found),
    )  # fmt: skip


def _assemble(ptx: str, architecture: int) -> tuple[int, int]:
    """Return registers and bytes of spills of a thread, which the assembler reports on request only."""
    assembler = knobs.nvidia.ptxas_blackwell if architecture >= BLACKWELL else knobs.nvidia.ptxas
    target = re.search(r"^\.target (\w+)", ptx, re.MULTILINE)
    assert target is not None
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "kernel.ptx")
        path.write_text(ptx, encoding="utf-8")
        command = [assembler.path, "-v", f"--gpu-name={target[1]}", path, "-o", path.with_suffix(".cubin")]
        output = subprocess.run(command, check=True, capture_output=True, text=True).stderr
    registers, spills = re.search(r"Used (\d+) registers", output), re.findall(r"(\d+) bytes spill", output)
    assert registers is not None and spills, output
    return int(registers[1]), sum(map(int, spills))


def _access_widths(ptx: str) -> list[int]:
    """Return the bytes of each instruction that reads or writes global memory, for one thread."""
    accesses = re.findall(r"\b(?:ld|st)\.global\S*?(?:\.v(\d))?\.[bfus](\d+)\b", ptx)
    return [int(count or 1) * int(bits) // 8 for count, bits in accesses]


def resident_programs(registers: int, warps: int, shared: int, architecture: int) -> int:
    """Return how many programs fit a multiprocessor, by warps, registers of a thread and bytes of shared memory."""
    registers_of_warp = _round_up(registers * WARP, REGISTER_UNIT)
    warps_by_registers = REGISTERS // PARTITIONS // registers_of_warp * PARTITIONS
    shared_of_program = _round_up(shared + SHARED_RESERVED, SHARED_UNIT)
    return min(
        MAX_PROGRAMS,
        MAX_WARPS // warps,
        warps_by_registers // warps,
        SHARED_MEMORY[architecture] // shared_of_program,
    )


def _round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit


def table(reports: list[Report]) -> str:
    """Return a table with one line for each kernel and architecture."""
    width = max((len(report.kernel) for report in reports), default=0)
    lines = [f"{'kernel':{width}}  arch    warps  registers  spills B  shared B  programs  occupancy  widest B"]
    lines += [
        f"{r.kernel:{width}}  sm_{r.architecture:<4} {r.warps:5}  {r.registers:9}  {r.spill_bytes:8}  "
        f"{r.shared_bytes:8}  {r.programs:8}  {r.occupancy:9.0%}  {r.widest_access:8}"
        for r in reports
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
