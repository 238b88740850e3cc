"""Imports run downward only: benchmarks, podium.config and podium.mllog, planning, implementations, then the rest.

Planning stands beside implementations: they and the rest of podium import it, and it imports neither torch nor them.
"""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("benchmarks", "podium", "implementations")
CONTRACT = ("podium.config", "podium.mllog")
PLANNING = (
    "podium.planning.costs",
    "podium.planning.balance_report",
    "implementations.pytorch.data.balancing",
    "podium.planning.batch_plan",
    "podium.planning.batch_plan",
    "podium.planning.samplers",
    "implementations.pytorch.data.packing",
    "podium.planning.samplers",
    "podium.planning.samplers",
    "podium.planning.batch_plan",
    "podium.planning.samplers",
    "podium.planning.tensor_partition",
    "podium.planning.prediction",
)
GROUND_LIBRARIES = {"numpy", "numba", "h5py", "tokenizers", "safetensors", "google", "google_crc32c"}
PLANNING_LIBRARIES = {"numpy", "numba"}
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


def is_code(path: Path) -> bool:
    """Not a package's file that holds no more than its docstring."""
    return len(ast.parse(path.read_text(encoding="utf-8")).body) > 1


def within(module: str, package: str) -> bool:
    return module == package or module.startswith(package + ".")


def floor_of(module: str) -> int:
    if within(module, "benchmarks"):
        return 1
    if module == "podium" or any(within(module, package) for package in CONTRACT):
        return 2  # `podium` itself, since whoever imports podium.config runs it too
    if any(within(module, package) for package in PLANNING):
        return 3
    return 4 if within(module, "implementations") else 5


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
        return below in {1: (1,), 2: (1, 2), 3: (1, 2, 3), 4: (1, 2, 3, 4), 5: (1, 2, 3, 5)}[floor]
    if floor == 5:
        return top != "torch"
    libraries = {1: GROUND_LIBRARIES, 2: CONTRACT_LIBRARIES, 3: PLANNING_LIBRARIES, 4: IMPLEMENTATION_LIBRARIES}
    return top in libraries[floor]


def violations(module: str, source: str, is_package: bool = False) -> list[str]:
    return [imported for imported in imports(module, source, is_package) if not is_allowed(module, imported)]


def import_without_torch(modules: list[str]) -> str:
    """What a fresh interpreter that cannot import torch prints when it imports these modules: nothing if it can."""
    check = f"import sys; sys.modules['torch'] = None; import {', '.join(modules)}"
    return subprocess.run([sys.executable, "-c", check], cwd=ROOT, check=False, capture_output=True, text=True).stderr


@pytest.mark.parametrize("module", MODULES)
def test_imports_run_downward(module: str) -> None:
    path = MODULES[module]
    assert violations(module, path.read_text(encoding="utf-8"), path.name == "__init__.py") == []


def test_every_floor_has_modules() -> None:
    assert {floor_of(module) for module in MODULES} == {1, 2, 3, 4, 5}


@pytest.mark.parametrize(
    ("module", "source", "found"),
    [
        ("benchmarks.bert.rules", "import torch", ["torch"]),
        ("benchmarks.bert.rules", "import numpy, h5py, json\nfrom benchmarks.bert import sizes", []),
        ("benchmarks.bert.rules", "def f():\n    from podium.config.schema import RunConfig", ["podium.config"]),
        ("benchmarks.bert.rules", "import pydantic", ["pydantic"]),
        ("podium.config.schema", "from podium.run.data import with_data", ["podium.run.data"]),
        (
            "podium.config.schema",
            "from podium.run import data; from podium.mllog import write as mllog",
            ["podium.run.data"],
        ),
        ("podium.config.schema", "from ..data import with_data", ["podium.run.data"]),
        ("podium.config.schema", "import torch.distributed as dist", ["torch.distributed"]),
        ("podium.config.schema", "import typer", ["typer"]),
        ("podium", "from podium.launch import launch as launching", ["podium.launch.launch"]),
        ("implementations.pytorch.train", "from podium.launch.launch import launch", ["podium.launch.launch"]),
        (
            "implementations.pytorch.train",
            "import torch\nimport podium.config\nfrom podium.mllog import write as mllog",
            [],
        ),
        ("implementations.pytorch.train", "import rich", ["rich"]),
        ("podium.planning.prediction.plan", "import torch", ["torch"]),
        (
            "podium.planning.batch_plan",
            "from implementations.pytorch.data.batch import collate",
            ["implementations.pytorch.data.batch"],
        ),
        ("podium.run.run_set", "from podium.planning.prediction.plan import Plan", []),
        ("podium.run.run_set", "if True:\n    import implementations.pytorch", ["implementations.pytorch"]),
        ("podium.run.run_set", "def f():\n    import torch", ["torch"]),
        ("podium.run.run_set", "import importlib\nimportlib.import_module('torch.nn')", ["torch.nn"]),
        ("podium.run.run_set", "__import__('implementations')", ["implementations"]),
        ("podium.run.run_set", "import rich, benchmarks.bert.rules, podium.config.schema\nfrom . import data", []),
    ],
)
def test_this_test_can_fail(module: str, source: str, found: list[str]) -> None:
    assert violations(module, source) == found


def test_the_harness_runs_without_torch() -> None:
    names = [module for module in MODULES if floor_of(module) in (1, 2, 3, 5)]
    forbidden = {"torch", *(module for module, path in MODULES.items() if floor_of(module) == 4 and is_code(path))}
    check = f"import sys, {', '.join(names)}; print(*{forbidden} & set(sys.modules))"
    assert subprocess.check_output([sys.executable, "-c", check], cwd=ROOT, text=True).split() == []


def test_planning_runs_without_torch() -> None:
    assert import_without_torch([module for module in MODULES if floor_of(module) == 3]) == ""


def test_an_import_of_torch_would_be_found() -> None:
    assert "torch" in import_without_torch(["implementations.pytorch.data.batch"])
