"""tools/carry.py: its lists are what training, bench and the GPU tests import, and each package is locked."""

import ast
import functools
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import packages_distributions, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.conftest import load_script

carry = load_script("tools/carry.py")
ROOT = Path(__file__).resolve().parents[1]
# What runs on a machine without a network: training, `podium bench` and the GPU tests. Python imports the conftest.py
# of each folder above a test, and pytest each test file in the folders that it is started in.
ENTRIES = (
    *("implementations.pytorch.train", "implementations.pytorch.bench.__main__", "podium.cli.__main__"),
    *("podium.cli.bench", "podium.run.progress", "podium.config.load", "podium.launch.single_shutdown"),
)
TESTS = (ROOT / "tests" / "conftest.py", *sorted((ROOT / "tests" / "implementations" / "pytorch").rglob("*.py")))
# Imported in functions, where a setting asks for them.
OPTIONAL = {"apex", "nvidia"}
# Dependencies of packages that no module which is imported here uses.
UNUSED = {"mlperf-logging": {"pandas", "scipy"}}


# Imported packages that are installed with a CUDA build of torch only, and their distributions without dependencies.
NOT_INSTALLED = {"cudnn": ["nvidia-cudnn-frontend"]}


def module_path(name: str) -> Path | None:
    """The file of a module of the project, or None."""
    path = ROOT.joinpath(*name.split("."))
    return next((file for file in (path.with_suffix(".py"), path / "__init__.py") if file.is_file()), None)


def imports(path: Path) -> Iterator[str]:
    """Names of the modules that a file imports, in implementations/ also those that functions import."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    in_functions = path.is_relative_to(ROOT / "implementations")
    lazy = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if node in lazy and not in_functions:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@functools.cache
def imported_packages() -> set[str]:
    """Top-level names of all packages outside the standard library that ENTRIES and TESTS import, at any distance."""
    entries = [module_path(name) for name in ENTRIES]
    assert None not in entries
    left, seen, found = [*TESTS, *(path for path in entries if path)], set[Path](), set[str]()
    while left:
        path = left.pop()
        if path in seen:
            continue
        seen.add(path)
        for name in imports(path):
            inside = module_path(name)
            if inside is not None:
                left.append(inside)
            elif module_path(name.rpartition(".")[0]) is None:
                found.add(name.split(".")[0])
    return found - sys.stdlib_module_names - OPTIONAL - {"implementations", "podium", "benchmarks", "tests", ""}


def needs(distribution: str) -> set[str]:
    """The distributions that one depends on, without extras."""
    markers = {"extra": "", "python_version": "3.12", "python_full_version": "3.12.0"}
    found = [Requirement(text) for text in requires(distribution) or ()]
    names: set[str] = {
        canonicalize_name(need.name) for need in found if need.marker is None or need.marker.evaluate(markers)
    }
    return names - UNUSED.get(distribution, set())


def test_carried_is_what_is_imported_and_not_in_the_image() -> None:
    by_package = packages_distributions()
    left = set[str]()
    for package in imported_packages():
        names: set[str] = {canonicalize_name(name) for name in by_package.get(package, NOT_INSTALLED.get(package, []))}
        assert names, f"{package} is imported: install it, or name its distribution in NOT_INSTALLED"
        left |= names & {"protobuf"} if package == "google" else names
    needed = set[str]()
    while left:
        name = left.pop()
        if name not in needed and name not in carry.IMAGE:
            needed.add(name)
            left |= needs(name) if [name] not in NOT_INSTALLED.values() else set()
    assert needed == set(carry.CARRIED)


def test_the_walk_finds_imports_at_a_distance() -> None:
    found = imported_packages()
    assert found >= {"torch", "triton", "numba", "pydantic", "mlperf_logging", "pytest", "transformers"}
    assert not found & {"optuna", "matplotlib", "jinja2", "scipy"}  # of other commands


def test_every_carried_package_is_locked_with_hashes() -> None:
    lines = carry.locked(carry.CARRIED).replace("\\\n", " ").splitlines()
    assert len(lines) == len(carry.CARRIED) == len(set(carry.CARRIED))
    for name, line in zip(carry.CARRIED, lines, strict=True):
        assert re.fullmatch(rf"{name}==\S+( ; .*?)?( +--hash=sha256:[0-9a-f]{{64}})+", line)
    with pytest.raises(SystemExit, match=r"torch-cuda.txt lack made-up"):
        carry.locked(["pydantic", "made-up"])


def test_documented_number_of_wheels() -> None:
    text = (ROOT / "docs" / "clusters.md").read_text(encoding="utf-8")
    assert re.findall(r"is (\d+) wheels", text) == [str(len(carry.CARRIED))]


def test_gpu_tests_check_what_is_imported() -> None:
    """`./run_tests.sh --gpu` names missing packages before pytest starts, without those of few tests or of bench."""
    (line,) = re.findall(r'packages="(.+)"', (ROOT / "run_tests.sh").read_text(encoding="utf-8"))
    few = {"cudnn", "google", "google_crc32c", "transformers", "pydantic_core"}
    assert set(line.split()) == imported_packages() - few


@pytest.mark.parametrize("outcome", ["done", "pip fails", "too large"])
def test_only_own_wheels_are_replaced_and_only_at_the_end(
    outcome: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = {"pydantic_core-1.0-cp312-cp312-linux.whl", "mine-1.0-py3-none-any.whl", "notes.txt"}
    new = {"pydantic_core-2.0-cp312-cp312-linux.whl", "pluggy-1.0-py3-none-any.whl"}
    for name in old:
        (tmp_path / name).write_bytes(b"old")

    def pip(command: list[str], **_: object) -> "subprocess.CompletedProcess[bytes]":
        for name in new:
            Path(command[command.index("--dest") + 1], name).write_bytes(b"new")
        return subprocess.CompletedProcess(command, outcome == "pip fails")

    monkeypatch.setattr(carry.subprocess, "run", pip)
    if outcome == "done":
        carry.download(tmp_path, "3.12", carry.PLATFORMS)
        left = old - {"pydantic_core-1.0-cp312-cp312-linux.whl"} | new
    else:
        monkeypatch.setattr(carry, "LARGEST_MB", 0)
        with pytest.raises(SystemExit):
            carry.download(tmp_path, "3.12", carry.PLATFORMS)
        left = old
    assert {path.name for path in tmp_path.iterdir()} == left
    assert {path.name for path in tmp_path.iterdir() if path.read_bytes() == b"old"} == left & old


@pytest.mark.parametrize("name", ["file", "file/below"])
def test_a_file_as_folder_is_one_line(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("kept", encoding="utf-8")
    with pytest.raises(SystemExit) as raised:
        carry.download(tmp_path / name, "3.12", carry.PLATFORMS)
    assert raised.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"--folder: {tmp_path / name} cannot be written: {tmp_path / 'file'} is not a folder; name another" in line
