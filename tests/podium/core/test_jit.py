"""The cache of compiled code is used only for the sources that the code was compiled from."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
CALLEE = "from podium.core.jit import compiled\n\n\n@compiled\ndef step() -> int:\n    return {}\n"
CALLER = (
    "from benchmarks.callee import step\nfrom podium.core.jit import compiled\n\n\n"
    "@compiled\ndef call() -> int:\n    return step() + 1\n"
)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of podium.core, with a function in one package that calls one in another."""
    shutil.copytree(
        ROOT / "podium" / "core", tmp_path / "podium" / "core", ignore=shutil.ignore_patterns("__pycache__")
    )
    (tmp_path / "benchmarks").mkdir()
    for package in ("benchmarks", "podium"):
        (tmp_path / package / "__init__.py").touch()
    (tmp_path / "benchmarks" / "callee.py").write_text(CALLEE.format(1), encoding="utf-8")
    (tmp_path / "podium" / "caller.py").write_text(CALLER, encoding="utf-8")
    return tmp_path


# Makes each call in a forked process that has imported numba and nothing of Podium: importing numba takes seconds.
CALLS = """
import json, os, sys
import numba

numba.njit(lambda: 0)()  # loads the compiler before the forks
for line in sys.stdin:
    tree, environment = json.loads(line)
    if os.fork() == 0:
        os.chdir(tree)
        os.environ.clear()
        os.environ.update(environment)
        numba.config.reload_config()
        from podium.caller import call
        print(call(), sum(call.stats.cache_hits.values()), flush=True)
        os._exit(0)
    if os.wait()[1]:
        print("failed", flush=True)
"""

Call = Callable[..., tuple[int, int]]


@pytest.fixture(scope="module")
def call(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Call]:
    """(tree, environment) → value that the caller in the tree returns, and number of cache hits."""
    process = subprocess.Popen(
        [sys.executable, "-B", "-c", CALLS],
        cwd=tmp_path_factory.mktemp("cwd"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )

    def run(tree: Path, **environment: str) -> tuple[int, int]:
        assert process.stdin and process.stdout
        process.stdin.write(json.dumps([str(tree), {"PATH": os.environ["PATH"], **environment}]) + "\n")
        process.stdin.flush()
        value, hits = process.stdout.readline().split()
        return int(value), int(hits)

    yield run
    process.communicate()


def test_cache_is_shared_by_copies_and_invalidated_by_changed_callees(call: Call, tree: Path) -> None:
    where = {"XDG_CACHE_HOME": str(tree / "cache"), "HOME": str(tree)}
    assert call(tree, **where) == (2, 0)
    copy = shutil.copytree(tree, tree / "copy", ignore=shutil.ignore_patterns("cache"))
    assert call(copy, **where) == (2, 1)
    # The callee is in another package: the caller's file, and with it numba's cache key, stays the same.
    (copy / "benchmarks" / "callee.py").write_text(CALLEE.format(5), encoding="utf-8")
    assert call(copy, **where) == (6, 0)
    assert not [path for path in tree.rglob("*.nbi") if not path.is_relative_to(tree / "cache")]


def test_cache_is_invalidated_by_changed_constants_of_imported_modules(call: Call, tree: Path) -> None:
    text = "from benchmarks.sizes import LIMIT\n" + CALLER.replace("+ 1", "+ LIMIT")
    (tree / "podium" / "caller.py").write_text(text, encoding="utf-8")
    (tree / "benchmarks" / "sizes.py").write_text("from benchmarks.base import BASE\n\nLIMIT = 2 * BASE\n", "utf-8")
    (tree / "benchmarks" / "base.py").write_text("BASE = 1\n", encoding="utf-8")
    where = {"XDG_CACHE_HOME": str(tree / "cache"), "HOME": str(tree)}
    assert call(tree, **where) == (3, 0)
    assert call(tree, **where) == (3, 1)
    (tree / "benchmarks" / "base.py").write_text("BASE = 5\n", encoding="utf-8")
    assert call(tree, **where) == (11, 0)


def test_cache_writable_by_others_is_not_read(call: Call, tree: Path) -> None:
    """numba's cache files are pickles, which execute code when they are loaded."""
    where = {"NUMBA_CACHE_DIR": str(tree / "cache"), "HOME": str(tree)}
    assert call(tree, **where) == (2, 0)
    (folder,) = (tree / "cache").iterdir()
    folder.chmod(0o777)
    assert call(tree, **where) == (2, 0)


def test_functions_are_compiled_every_time_without_a_cache_folder(call: Call, tree: Path) -> None:
    (tree / "file").touch()
    assert call(tree, XDG_CACHE_HOME=str(tree / "file"), HOME=str(tree)) == (2, 0)
