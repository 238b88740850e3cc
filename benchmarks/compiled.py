"""Functions that are compiled to machine code when they are first called, and kept on disk after that.

numba keeps the code of a function as long as its own file does not change, though it has that of other functions
inside. So what is kept lies in a folder that is named for the sources of all compiled functions together.
"""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numba

F = TypeVar("F", bound=Callable[..., object])


def compiled(function: F) -> F:
    """Compile with numba, without Python objects and without the interpreter's lock."""
    return _njit(function)


def compiled_leaf(function: F) -> F:
    """As `compiled`, for small functions that make no array: they do not count the references to those they get.

    Counting is atomic and takes longer than drawing a random number does.
    """
    return _njit(function, _nrt=False)


def _njit(function: F, **options: Any) -> F:
    fast: Any = numba.njit(cache=True, nogil=True, **options)(function)
    return fast  # type: ignore[no-any-return]


def _folder_for_these_sources(package: Path) -> Path:
    digest = hashlib.sha256()
    for source in sorted(package.rglob("*.py")):
        content = source.read_bytes()
        if b"benchmarks.compiled" in content:
            digest.update(content)
    return package / "__pycache__" / f"compiled-{digest.hexdigest()[:16]}"


if not numba.config.CACHE_DIR:  # type: ignore[attr-defined]
    numba.config.CACHE_DIR = str(  # type: ignore[attr-defined]
        _folder_for_these_sources(Path(__file__).parent)
    )
