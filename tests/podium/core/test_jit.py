"""Compiled code is kept for the sources that it was made from, and for no others."""

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
    """A copy of what compiles, with a function in one package that calls one in another."""
    shutil.copytree(
        ROOT / "podium" / "core", tmp_path / "podium" / "core", ignore=shutil.ignore_patterns("__pycache__")
    )
    (tmp_path / "benchmarks").mkdir()
    for package in ("benchmarks", "podium"):
        (tmp_path / package / "__init__.py").touch()
    (tmp_path / "benchmarks" / "callee.py").write_text(CALLEE.format(1), encoding="utf-8")
    (tmp_path / "podium" / "caller.py").write_text(CALLER, encoding="utf-8")
    return tmp_path


CALLS = """
import json, os, sys
import numba

numba.njit(lambda: 0)()  # so that calls find the compiler loaded
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
"""Makes each call in a process of its own that has imported numba, and nothing of Podium."""

Call = Callable[..., tuple[int, int]]


@pytest.fixture(scope="module")
def call(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Call]:
    """(tree, environment) → what the caller in a tree returns, and how often it was loaded from the cache."""
    process = subprocess.Popen(
        [sys.executable, "-B", "-c", CALLS],
        cwd=tmp_path_factory.mktemp("elsewhere"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )

    def of(tree: Path, **environment: str) -> tuple[int, int]:
        assert process.stdin and process.stdout
        process.stdin.write(json.dumps([str(tree), {"PATH": os.environ["PATH"], **environment}]) + "\n")
        process.stdin.flush()
        value, hits = process.stdout.readline().split()
        return int(value), int(hits)

    yield of
    process.communicate()


def test_compiled_code_is_kept_for_the_sources_that_it_was_made_from(call: Call, tree: Path) -> None:
    where = {"XDG_CACHE_HOME": str(tree / "cache"), "HOME": str(tree)}
    assert call(tree, **where) == (2, 0)
    copy = shutil.copytree(tree, tree / "copy", ignore=shutil.ignore_patterns("cache"))
    assert call(copy, **where) == (2, 1)
    # In another package than its caller, whose own file, and so numba's own key, stays the same.
    (copy / "benchmarks" / "callee.py").write_text(CALLEE.format(5), encoding="utf-8")
    assert call(copy, **where) == (6, 0)
    assert not [path for path in tree.rglob("*.nbi") if not path.is_relative_to(tree / "cache")]


def test_a_constant_of_a_module_that_compiles_nothing_is_in_the_code_too(call: Call, tree: Path) -> None:
    text = "from benchmarks.sizes import LIMIT\n" + CALLER.replace("+ 1", "+ LIMIT")
    (tree / "podium" / "caller.py").write_text(text, encoding="utf-8")
    (tree / "benchmarks" / "sizes.py").write_text("from benchmarks.base import BASE\n\nLIMIT = 2 * BASE\n", "utf-8")
    (tree / "benchmarks" / "base.py").write_text("BASE = 1\n", encoding="utf-8")
    where = {"XDG_CACHE_HOME": str(tree / "cache"), "HOME": str(tree)}
    assert call(tree, **where) == (3, 0)
    assert call(tree, **where) == (3, 1)
    (tree / "benchmarks" / "base.py").write_text("BASE = 5\n", encoding="utf-8")
    assert call(tree, **where) == (11, 0)


def test_a_cache_that_others_may_write_to_is_not_read(call: Call, tree: Path) -> None:
    """numba's files are pickles, which run code when they are loaded."""
    where = {"NUMBA_CACHE_DIR": str(tree / "cache"), "HOME": str(tree)}
    assert call(tree, **where) == (2, 0)
    (folder,) = (tree / "cache").iterdir()
    folder.chmod(0o777)
    assert call(tree, **where) == (2, 0)


def test_without_a_place_for_a_cache_functions_are_compiled_every_time(call: Call, tree: Path) -> None:
    (tree / "file").touch()
    assert call(tree, XDG_CACHE_HOME=str(tree / "file"), HOME=str(tree)) == (2, 0)
