"""Functions that are compiled to machine code when they are first called, and kept on disk after that.

numba keeps the code of a function as long as its own file does not change, although that code contains other compiled
functions and the constants of other files. So the cache folder is named by a hash of all these sources. It is in the
user's cache folder, or in NUMBA_CACHE_DIR where that is set.
"""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import numba
from numba.core.caching import UserProvidedCacheLocator

from podium.core.files import private_folder, user_cache_folder
from podium.core.paths import CODE_FOLDER
from podium.core.source_hash import modules_with, source_hash

F = TypeVar("F", bound=Callable[..., object])

# What vectorised loops may assume of arithmetic; infinities and NaN keep their meaning.
FAST = {"contract", "reassoc", "arcp", "nsz"}


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


class SourceLocator(UserProvidedCacheLocator):
    """Names a source by its place in the project, so that all copies of the same sources share one cache."""

    @classmethod
    def get_suitable_cache_subpath(cls, py_file: str) -> str:
        if not Path(py_file).is_relative_to(CODE_FOLDER):
            return str(super().get_suitable_cache_subpath(py_file))  # type: ignore[no-untyped-call]
        return ".".join(Path(py_file).relative_to(CODE_FOLDER).with_suffix("").parts)


def _njit(function: F, **options: Any) -> F:
    config: Any = numba.config
    before = config.CACHE_DIR, config.CACHE_LOCATOR_CLASSES
    folder = _cache_folder(Path(config.CACHE_DIR) if config.CACHE_DIR else user_cache_folder() / "numba")
    config.CACHE_DIR, config.CACHE_LOCATOR_CLASSES = str(folder), f"{__name__}.{SourceLocator.__name__}"
    try:
        fast: Any = numba.njit(cache=folder is not None, nogil=True, **options)(function)
    finally:
        config.CACHE_DIR, config.CACHE_LOCATOR_CLASSES = before
    return fast  # type: ignore[no-any-return]


@cache
def _cache_folder(base: Path) -> Path | None:
    """A folder of `base` for these very sources; None where there can be none, and code is compiled every time.

    numba's files are pickles, so a folder that other users may write to is not read either.
    """
    return private_folder(base / sources_hash())


@cache
def sources_hash() -> str:
    """A hash of all sources of this project that compile anything and of all that they import: constants of those
    are in the machine code too."""
    return source_hash([__name__, *modules_with(__name__)])
