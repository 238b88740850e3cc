"""The source code that made a run: the hash of its files and, where there is a git repository, the commit.

The hash is decisive. It is the same in a container without a repository, and changes as soon as a file is changed,
so that a submission can be made of exactly the code that was run.
"""

import hashlib
import json
import subprocess
import tomllib
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from podium.core.files import write_whole
from podium.core.json_files import read_json
from podium.core.paths import CODE_FOLDER

# What a run depends on. systems/ is not among them: the resolved configuration holds what a system says.
CODE = ("benchmarks", "implementations", "podium", "pyproject.toml")
SHIPPED = ("systems", "docker", "pyproject.toml")  # in the package podium of an installation, beside it in a clone


@dataclass(frozen=True)
class Source:
    """The code of a run."""

    code: str  # `code_hash` of its files
    commit: str | None  # what was checked out, changed or not; None where git could not tell


def source_here() -> Source:
    """The code that runs now. The hash in an installation is that of the repository that it was built from."""
    return Source(code_hash(CODE_FOLDER), commit_of(CODE_FOLDER))


def code_hash(root: Path) -> str:
    """SHA-256 over names and contents of all files of CODE below `root`, caches and hidden files left out."""
    digest = hashlib.sha256()
    for name, path in _files(root):
        content = path.read_bytes()
        digest.update(b"%d %s %d " % (len(name), name.encode(), len(content)))
        digest.update(content)
    return digest.hexdigest()


def read_project(pyproject: Path) -> dict[str, Any]:
    """The `project` table of a pyproject.toml."""
    with pyproject.open("rb") as file:
        return dict(tomllib.load(file)["project"])


def pins(pyproject: Path) -> dict[str, str]:
    """Library → version of everything that pyproject.toml pins for a run: the dependencies and the extra `train`."""
    project = read_project(pyproject)
    needs = [*project["dependencies"], *project.get("optional-dependencies", {}).get("train", [])]
    return {name: version for name, _, version in (need.partition("==") for need in needs)}


def commit_of(root: Path, name: str = "HEAD") -> str | None:
    """The commit of that name in the repository whose top folder is `root`; None where there is none."""
    top = git(root, "rev-parse", "--show-toplevel")
    if top is None or Path(top.decode().strip()).resolve() != root.resolve():
        return None
    commit = git(root, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}")
    return commit.decode().strip() if commit else None


def git(root: Path, *words: str) -> bytes | None:
    """What git prints, asked in that folder; None where it fails or is not installed."""
    try:
        done = subprocess.run(["git", "-C", str(root), *words], capture_output=True, check=False)  # noqa: S607
    except OSError:
        return None
    return done.stdout if done.returncode == 0 else None


def write_source(path: Path, source: Source) -> None:
    """Keep with a run what code made it."""
    write_whole(path, json.dumps(asdict(source), indent=2) + "\n")


def read_source(path: Path) -> Source | None:
    """Read back what `write_source` wrote; None where there is nothing of the kind, as with runs of older versions."""
    try:
        found = read_json(path)
        code, commit = found["code"], found["commit"]
    except (ValueError, KeyError, TypeError):
        return None
    return Source(code, commit) if isinstance(code, str) and isinstance(commit, str | None) else None


def _files(root: Path) -> Iterator[tuple[str, Path]]:
    """Names in a repository, in their order, and the files below `root`, which may be an installation's folder."""
    installed = (root / "podium" / "systems").is_dir()
    for name in CODE:
        path = root / name
        if path.name == "pyproject.toml" and installed:
            path = root / "podium" / name
        found = sorted(path.rglob("*"), key=lambda file: file.as_posix()) if path.is_dir() else [path]
        for file in found:
            parts = file.relative_to(path).parts
            shipped = installed and name == "podium" and parts[0] in SHIPPED
            hidden = any(part.startswith(".") or part == "__pycache__" for part in parts)
            if file.is_file() and not hidden and not shipped:
                yield "/".join((name, *parts)), file
