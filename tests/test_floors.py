"""Imports run downward only: benchmarks, then podium.config and podium.mllog, then implementations, then the rest."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("benchmarks", "podium", "implementations")
CONTRACT = ("podium.config", "podium.mllog")
GROUND_LIBRARIES = {"numpy", "numba", "h5py", "tokenizers", "safetensors", "google", "google_crc32c"}
CONTRACT_LIBRARIES = {"numpy", "pydantic", "pydantic_core", "yaml", "mlperf_logging"}
IMPLEMENTATION_LIBRARIES = {
    "numpy",
    "torch",
    "safetensors",
    "numba",
    "llvmlite",
    "apex",
    "nvidia",
    "triton",
    "transformers",
}


def name_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {name_of(path): path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))}


def within(module: str, package: str) -> bool:
    return module == package or module.startswith(package + ".")


def floor_of(module: str) -> int:
    if within(module, "benchmarks"):
        return 1
    if module == "podium" or any(within(module, package) for package in CONTRACT):
        return 2  # `podium` itself, since whoever imports podium.config runs it too
    return 3 if within(module, "implementations") else 4


def imports(module: str, source: str, is_package: bool = False) -> Iterator[str]:
    """Every module that a source imports: anywhere, also relative ones and importlib's with a literal name."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = module.split(".")[: len(module.split(".")) - node.level + is_package]
                base = ".".join([*above, *filter(None, [node.module])])
            for alias in node.names:
                below = f"{base}.{alias.name}"
                yield below if below in MODULES else base
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            function = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if function in ("import_module", "__import__") and isinstance(node.args[0].value, str):
                yield node.args[0].value


def is_allowed(importer: str, imported: str) -> bool:
    top = imported.partition(".")[0]
    if top in sys.stdlib_module_names:
        return True
    floor = floor_of(importer)
    if top in PACKAGES:
        below = floor_of(imported)
        return below in {1: (1,), 2: (1, 2), 3: (1, 2, 3), 4: (1, 2, 4)}[floor]
    if floor == 4:
        return top != "torch"
    return top in {1: GROUND_LIBRARIES, 2: CONTRACT_LIBRARIES, 3: IMPLEMENTATION_LIBRARIES}[floor]


def violations(module: str, source: str, is_package: bool = False) -> list[str]:
    return [imported for imported in imports(module, source, is_package) if not is_allowed(module, imported)]


@pytest.mark.parametrize("module", MODULES)
def test_imports_run_downward(module: str) -> None:
    path = MODULES[module]
    assert violations(module, path.read_text(encoding="utf-8"), path.name == "__init__.py") == []


def test_every_floor_has_modules() -> None:
    assert {floor_of(module) for module in MODULES} == {1, 2, 3, 4}


@pytest.mark.parametrize(
    ("module", "source", "found"),
    [
        ("benchmarks.bert.rules", "import torch", ["torch"]),
        ("benchmarks.bert.rules", "import numpy, h5py, json\nfrom benchmarks.bert import sizes", []),
        ("benchmarks.bert.rules", "def f():\n    from podium.config import RunConfig", ["podium.config"]),
        ("benchmarks.bert.rules", "import pydantic", ["pydantic"]),
        ("podium.config.model", "from podium.data import with_data", ["podium.data"]),
        ("podium.config.model", "from podium import data, mllog", ["podium.data"]),
        ("podium.config.model", "from ..data import with_data", ["podium.data"]),
        ("podium.config.model", "import torch.distributed as dist", ["torch.distributed"]),
        ("podium.config.model", "import typer", ["typer"]),
        ("podium", "from podium import launching", ["podium.launching"]),
        ("implementations.pytorch.train", "from podium.launching import launch", ["podium.launching"]),
        ("implementations.pytorch.train", "import torch\nimport podium.config\nfrom podium import mllog", []),
        ("implementations.pytorch.train", "import rich", ["rich"]),
        ("podium.running", "if True:\n    import implementations.pytorch", ["implementations.pytorch"]),
        ("podium.running", "def f():\n    import torch", ["torch"]),
        ("podium.running", "import importlib\nimportlib.import_module('torch.nn')", ["torch.nn"]),
        ("podium.running", "__import__('implementations')", ["implementations"]),
        ("podium.running", "import rich, benchmarks.bert.rules, podium.config.model\nfrom . import data", []),
    ],
)
def test_this_test_can_fail(module: str, source: str, found: list[str]) -> None:
    assert violations(module, source) == found


def test_the_harness_runs_without_torch() -> None:
    names = [module for module in MODULES if floor_of(module) in (1, 2, 4)]
    check = f"import sys, {', '.join(names)}; sys.exit('torch' in sys.modules or 'implementations' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], cwd=ROOT, check=False).returncode == 0
