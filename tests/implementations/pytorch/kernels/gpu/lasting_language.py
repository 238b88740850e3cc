"""Less work for Triton's interpreter: the functions of `triton.language` are replaced once in a process.

Triton replaces them before each kernel, and before each function that a kernel calls: nearly half of its time.
"""

from typing import Any

import triton.language as tl
from triton.runtime import interpreter

replace = interpreter._patch_lang
replaced: set[frozenset[str]] = set()


def replace_once(function: Any) -> Any:
    """Replace them in the modules that a function uses; returns the scope at whose end nothing is restored."""
    values = list(function.__globals__.values())
    modules = frozenset(module.__name__ for module in (tl, tl.core) if any(value is module for value in values))
    if modules not in replaced:
        replace(function)
        replaced.add(modules)
    return interpreter._LangPatchScope()


def install() -> None:
    interpreter._patch_lang = replace_once
