"""Hash of the sources of a module and of all its imports, as a key of caches of what they compute."""

import hashlib
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from podium.core.paths import CODE_FOLDER, PACKAGES

# `from MODULE import NAMES`, where a name may be a module too, or `import MODULES`. A match inside a string literal is
# harmless: it adds a module to the hash.
IMPORT_STATEMENT = re.compile(
    rb"^[ \t]*(?:from[ \t]+([\w.]+)[ \t]+import[ \t]*(\([^)]*\)|[^\n]*)|import[ \t]+([^\n]*))", re.M
)


def source_hash(modules: Iterable[str], files: Iterable[Path] = ()) -> str:
    """Hash of these modules and of all modules of Podium that they import, directly or indirectly (16 hex digits).

    `files` are data files that they read.
    """
    paths, left = _paths(), list(modules)
    contents = {str(path.relative_to(CODE_FOLDER)): path.read_bytes() for path in files}
    while left:
        name = left.pop()
        if name in paths and name not in contents:
            contents[name] = paths[name].read_bytes()
            left += _imported(contents[name])
    return hashlib.sha256(b"".join(contents[name] for name in sorted(contents))).hexdigest()[:16]


def modules_containing(text: str) -> list[str]:
    """Names of the modules of Podium whose source contains this text."""
    return [name for name, path in _paths().items() if text.encode() in path.read_bytes()]


@cache
def _paths() -> dict[str, Path]:
    """Path of the source of each module, by module name."""
    found = {}
    for package in PACKAGES:
        for path in (CODE_FOLDER / package).rglob("*.py"):
            parts = path.relative_to(CODE_FOLDER).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def _imported(source: bytes) -> list[str]:
    found = []
    for module, names, modules in IMPORT_STATEMENT.findall(source):
        inside = re.findall(r"[\w.]+", (names or modules).decode("ascii", "replace"))
        prefix = f"{module.decode()}." if module else ""
        found += [module.decode(), *(prefix + name for name in inside)]
    return found
