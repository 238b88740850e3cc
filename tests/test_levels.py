"""Imports run to lower levels only, and never in a circle; where torch may be imported."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("benchmarks", "podium", "implementations")
LEVELS = (
    ("podium.core",),
    ("benchmarks",),
    ("podium.config", "podium.html"),
    ("podium.mllog", "podium.planning", "podium.launch"),
    ("implementations", "podium.run"),
    ("podium.doctor", "podium.tune"),
    ("podium.submission",),
    ("podium.comparison", "podium.report"),
    ("podium.system_files",),
    ("podium.cli",),
)
LEVEL = {part: number for number, parts in enumerate(LEVELS) for part in parts}
CORE_LIBRARIES = {"numba", "rich", "yaml"}
BENCHMARK_LIBRARIES = {"numpy", "numba", "h5py", "tokenizers", "safetensors", "google", "google_crc32c"}
CONFIG_LIBRARIES = {"numpy", "pydantic", "pydantic_core", "yaml"}
IMPLEMENTATION_LIBRARIES = {
    "numpy",
    "torch",
    "safetensors",
    "numba",
    "llvmlite",
    "apex",
    "cudnn",
    "nvidia",
    "triton",
    "transformers",
}
# What a part may import; the other parts may import anything but torch.
LIBRARIES = {
    "podium.core": CORE_LIBRARIES,
    "benchmarks": BENCHMARK_LIBRARIES,
    "podium.config": CONFIG_LIBRARIES,
    "podium.mllog": CONFIG_LIBRARIES | {"mlperf_logging", "scipy"},
    "implementations": IMPLEMENTATION_LIBRARIES,
}


def name_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {name_of(path): path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))}


def part_of(module: str) -> str | None:
    """The part that a module belongs to; None for `podium` itself, which every part imports and which is empty."""
    top = ".".join(module.split(".")[:2]) if module.startswith("podium.") else module.partition(".")[0]
    return None if top == "podium" else top


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
    top, part = imported.partition(".")[0], part_of(importer)
    if top in sys.stdlib_module_names:
        return True
    if top in PACKAGES:
        other = part_of(imported)
        return (
            part == other
            or other is None
            or (part is not None and LEVEL[other] < LEVEL[part] and other != "implementations")
        )
    return top in LIBRARIES[part] if part in LIBRARIES else part is not None and top != "torch"


def violations(module: str, source: str, is_package: bool = False) -> list[str]:
    return [imported for imported in imports(module, source, is_package) if not is_allowed(module, imported)]


@cache
def sources() -> dict[str, list[str]]:
    """The modules that each module imports."""
    return {
        module: list(imports(module, path.read_text(encoding="utf-8"), path.name == "__init__.py"))
        for module, path in MODULES.items()
    }


def test_every_module_has_a_level() -> None:
    assert {part_of(module) for module in MODULES} - {None} == set(LEVEL)


def test_imports_run_to_lower_levels() -> None:
    wrong = {module: [one for one in found if not is_allowed(module, one)] for module, found in sources().items()}
    assert {module: found for module, found in wrong.items() if found} == {}


def test_there_are_no_circles() -> None:
    own = {module: {one for one in found if one in MODULES and one != module} for module, found in sources().items()}
    try:
        TopologicalSorter(own).prepare()
    except CycleError as error:
        pytest.fail(" <- ".join(error.args[1]))


@pytest.mark.parametrize(
    ("module", "source", "found"),
    [
        ("benchmarks.bert.rules", "import torch", ["torch"]),
        ("benchmarks.bert.rules", "import numpy, h5py, json\nfrom benchmarks.bert import sizes", []),
        ("benchmarks.bert.rules", "def f():\n    from podium.config import schema", ["podium.config.schema"]),
        ("benchmarks.bert.rules", "from podium.core.errors import UsageError", []),
        ("benchmarks.bert.rules", "import pydantic", ["pydantic"]),
        ("podium.core.files", "from benchmarks.bert import rules", ["benchmarks.bert.rules"]),
        ("podium.config.schema", "from podium.run.data import with_data", ["podium.run.data"]),
        ("podium.config.schema", "from podium import run, config", ["podium.run"]),
        ("podium.config.schema", "from ..run.data import with_data", ["podium.run.data"]),
        ("podium.config.schema", "import torch.distributed as dist", ["torch.distributed"]),
        ("podium.config.schema", "import typer", ["typer"]),
        ("podium.config.schema", "from podium.html.page import Page", ["podium.html.page"]),
        ("podium.planning.costs", "from podium.mllog.run import Run", ["podium.mllog.run"]),
        ("podium.planning.costs", "import torch", ["torch"]),
        ("podium", "from podium import launch", ["podium.launch"]),
        ("implementations.pytorch.train", "from podium.launch.launch import launch", []),
        ("implementations.pytorch.train", "from podium.run.run_set import run_set", ["podium.run.run_set"]),
        ("implementations.pytorch.train", "import torch\nimport podium.config\nfrom podium import mllog", []),
        ("implementations.pytorch.train", "import rich", ["rich"]),
        ("podium.run.run_set", "if True:\n    import implementations.pytorch", ["implementations.pytorch"]),
        ("podium.run.run_set", "def f():\n    import torch", ["torch"]),
        ("podium.run.run_set", "import importlib\nimportlib.import_module('torch.nn')", ["torch.nn"]),
        ("podium.run.run_set", "__import__('implementations')", ["implementations"]),
        ("podium.run.run_set", "import rich, benchmarks.bert.rules, podium.config.schema\nfrom . import data", []),
        ("podium.cli.main", "from implementations.pytorch import describe", ["implementations.pytorch.describe"]),
    ],
)
def test_this_test_can_fail(module: str, source: str, found: list[str]) -> None:
    assert violations(module, source) == found


WITHOUT_TORCH = """
import sys

class Refused:
    def find_spec(self, name, *_):
        if name.partition(".")[0] in ("torch", "implementations"):
            raise ImportError(f"{name} is not to be imported here")

sys.meta_path.insert(0, Refused())
import """


def test_the_harness_runs_without_torch() -> None:
    """All of it, `podium.planning` included, which the trainer calls as well."""
    names = [name for name in MODULES if part_of(name) != "implementations" and not name.endswith("__main__")]
    assert any(name.startswith("podium.planning.") for name in names)
    command = [sys.executable, "-c", WITHOUT_TORCH + ", ".join(names)]
    assert subprocess.run(command, cwd=ROOT, check=False).returncode == 0
