"""Decorators that compile functions with numba at their first call and cache the machine code on disk.

numba's cache is invalidated only when the file of the function itself changes, although the machine code contains
other compiled functions and constants from other files. The cache folder is therefore named by a hash of all these
sources. It is in the user's cache folder, or in NUMBA_CACHE_DIR if that is set.
"""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import numba
from numba.core.caching import UserProvidedCacheLocator

from podium.core.files import private_folder, user_cache_folder
from podium.core.paths import CODE_FOLDER
from podium.core.source_hash import modules_containing, source_hash

F = TypeVar("F", bound=Callable[..., object])

# LLVM fast-math flags for vectorised loops, without `ninf` and `nnan`, so that infinities and NaN propagate.
FASTMATH_FLAGS = {"contract", "reassoc", "arcp", "nsz"}


def compiled(function: F) -> F:
    """Compile with numba in nopython mode, without the GIL and with NumPy's division (no test for a zero divisor)."""
    return _njit(function, error_model="numpy")


def compiled_leaf(function: F) -> F:
    """Compile a small function that allocates no array, without reference counting of its array arguments.

    The atomic increments would take longer than drawing a random number does.
    """
    return _njit(function, _nrt=False)


def compiled_inline(function: F) -> F:
    """Compile a function that is inlined into other compiled functions; it is not cached separately."""
    fast: Any = numba.njit(inline="always", fastmath=FASTMATH_FLAGS, error_model="numpy")(function)
    return fast  # type: ignore[no-any-return]


def compiled_parallel(function: F) -> F:
    """Compile with numba, with `numba.prange` loops distributed over threads and fast-math vectorisation."""
    return _njit(function, parallel=True, fastmath=FASTMATH_FLAGS, error_model="numpy")


class SourceLocator(UserProvidedCacheLocator):
    """Cache locator that names a source by its module path, so that copies of the same sources share one cache."""

    @classmethod
    def get_suitable_cache_subpath(cls, py_file: str) -> str:
        if not Path(py_file).is_relative_to(CODE_FOLDER):
            return str(super().get_suitable_cache_subpath(py_file))  # type: ignore[no-untyped-call]
        return ".".join(Path(py_file).relative_to(CODE_FOLDER).with_suffix("").parts)


def _njit(function: F, **options: Any) -> F:
    # numba reads its cache settings when a function is decorated; they are global, and so restored afterwards.
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
    """Return the cache folder below `base` for the current sources; None, for no cache, if it is not private.

    numba's cache files are pickles, which execute code when loaded: another user must not be able to plant one.
    """
    return private_folder(base / sources_hash())


@cache
def sources_hash() -> str:
    """Hash of all modules that use this one and of all their imports, whose constants are in the machine code too."""
    return source_hash([__name__, *modules_containing(__name__)])
