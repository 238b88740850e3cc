"""Functions compiled by numba when they are first called, and cached on disk.

numba's cache of a function is valid as long as the function's own file does not change, although the code of other
functions is inlined. So the cache lies in a folder of the function's package that is named for a hash of all of its
compiled sources.
"""

import hashlib
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import numba

F = TypeVar("F", bound=Callable[..., object])

FAST = {"contract", "reassoc", "arcp", "nsz"}
"""What vectorised loops may assume of arithmetic; infinities and NaN keep their meaning."""


def compiled(function: F) -> F:
    """Compile with numba, without Python objects, the interpreter's lock and a test of every divisor for 0."""
    return _njit(function, error_model="numpy")


def compiled_leaf(function: F) -> F:
    """As `compiled`, for small functions that make no array: they do not count the references to those they get.

    Counting is atomic and takes longer than drawing a random number does.
    """
    return _njit(function, _nrt=False)


def compiled_inline(function: F) -> F:
    """As `compiled`, for a part of other compiled functions that is written into them; no code of its own is kept."""
    fast: Any = numba.njit(inline="always", fastmath=FAST, error_model="numpy")(function)
    return fast  # type: ignore[no-any-return]


def compiled_parallel(function: F) -> F:
    """As `compiled`, with the iterations of `numba.prange` dealt out to threads, and arithmetic that vectorises."""
    return _njit(function, parallel=True, fastmath=FAST, error_model="numpy")


def _njit(function: F, **options: Any) -> F:
    given = numba.config.CACHE_DIR  # type: ignore[attr-defined]
    package = sys.modules[function.__module__.partition(".")[0]]
    numba.config.CACHE_DIR = given or str(_folder_for_sources(Path(package.__path__[0])))  # type: ignore[attr-defined]
    try:
        fast: Any = numba.njit(cache=True, nogil=True, **options)(function)
    finally:
        numba.config.CACHE_DIR = given  # type: ignore[attr-defined]
    return fast  # type: ignore[no-any-return]


@cache
def _folder_for_sources(package: Path) -> Path:
    """Named by a hash of the package's sources that compile anything."""
    digest = hashlib.sha256()
    for source in sorted(package.rglob("*.py")):
        content = source.read_bytes()
        if b"podium.core.jit" in content:
            digest.update(content)
    return package / "__pycache__" / f"compiled-{digest.hexdigest()[:16]}"
