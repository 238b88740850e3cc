"""The source code that made a run: the hash of its files and, where there is a git repository, the commit.

The hash is decisive. It is the same in a container without a repository, and changes as soon as a file is changed,
so that a submission can be made of exactly the code that was run.
"""

import hashlib
import json
import os
import re
import subprocess
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from podium.core.errors import WorkError
from podium.core.files import write_whole
from podium.core.json_files import read_json
from podium.core.paths import CODE_FOLDER

# What a run depends on. systems/ is not among them: the resolved configuration holds what a system says.
CODE = ("benchmarks", "implementations", "podium", "pyproject.toml", "requirements")
BASE_IMAGE = "PODIUM_BASE_IMAGE"  # docker/Dockerfile sets it
# In the package podium of an installation, beside it in a clone.
SHIPPED = ("systems", "docker", "pyproject.toml", "requirements")
NOTICES = ("NOTICE",)  # beside a licence, and none
LICENCES = ("LICENSE", "LICENCE", "LICENSE.txt", "LICENSE.md", "COPYING", *NOTICES)
NO_LICENCE = "there is no licence file, and MLPerf expects openly licensed code"
ADD_LICENCE = "choose a licence and commit its text as LICENSE before submitting"


@dataclass(frozen=True)
class Source:
    """The code of a run."""

    code: str  # `code_hash` of its files
    commit: str | None  # what was checked out, changed or not; None where git could not tell
    resumed: tuple["Source", ...] = ()  # the code of each time that the run was resumed, the first first
    base_image: str | None = None  # of the container, as docker/Dockerfile was given it; None outside of such a one

    @property
    def codes(self) -> tuple[str, ...]:
        """The hashes of all code that ran, in the order of time."""
        return tuple(dict.fromkeys((self.code, *(later.code for later in self.resumed))))


def source_here() -> Source:
    """The code that runs now. The hash in an installation is that of the repository that it was built from."""
    base_image = os.environ.get(BASE_IMAGE) or None
    return Source(code_hash(CODE_FOLDER), commit_of(CODE_FOLDER), base_image=base_image)


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
    """Library → version of everything that a run needs directly: the dependencies and the extra `train`.

    The versions are those of requirements/, beside pyproject.toml, or of pyproject.toml where that has `==`, as in
    older commits. Raises WorkError for a library that neither has.
    """
    project = read_project(pyproject)
    needs = [*project["dependencies"], *project.get("optional-dependencies", {}).get("train", [])]
    locked = locked_versions(pyproject.parent / "requirements")
    found = {}
    for need in needs:
        name, _, exact = need.partition("==")
        name = re.split(r"[\s\[<>=!~;]", name, maxsplit=1)[0]
        version = exact or locked.get(normalized(name))
        if version is None:
            raise WorkError(f"{pyproject.parent}/requirements: has no version of {name}; run `make lock`")
        found[name] = version
    return found


def locked_versions(folder: Path) -> dict[str, str]:
    """Normalized name → version, of all packages in requirements/ that a run needs, torch's CUDA build among them."""
    paths = [folder / name for name in ("run.txt", "torch-cuda.txt")]
    text = "".join(path.read_text(encoding="utf-8") for path in paths if path.is_file())
    return dict(re.findall(r"^([\w.-]+)==(\S+)", text, flags=re.MULTILINE))


def normalized(name: str) -> str:
    """A library's name as package indexes compare it (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def licence_files(folder: Path) -> list[str]:
    """Names of the project's own licence and notices in its folder."""
    return [name for name in LICENCES if (folder / name).is_file()]


def has_licence(folder: Path) -> bool:
    """Whether the project's folder has a licence file; a notice is none."""
    return any(name not in NOTICES for name in licence_files(folder))


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
    write_whole(path, json.dumps(_document(source), indent=2) + "\n")


def _document(source: Source) -> dict[str, Any]:
    document: dict[str, Any] = {"code": source.code, "commit": source.commit}
    if source.base_image is not None:
        document["base_image"] = source.base_image
    if source.resumed:
        document["resumed"] = [_document(one) for one in source.resumed]
    return document


def read_source(path: Path) -> Source | None:
    """Read back what `write_source` wrote; None where there is nothing of the kind, as with runs of older versions."""
    try:
        found = read_json(path)
        return replace(_source(found), resumed=tuple(map(_source, found.get("resumed", []))))
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _source(found: Any) -> Source:
    code, commit, image = found["code"], found["commit"], found.get("base_image")
    if not (isinstance(code, str) and isinstance(commit, str | None) and isinstance(image, str | None)):
        raise ValueError("the hash, the commit or the image is no text")
    return Source(code, commit, base_image=image)


def add_resumed_code(path: Path, here: Source, note: Callable[[str], None]) -> None:
    """Add the code that a run is resumed with to what it was begun with, and say where they differ."""
    began = read_source(path)
    if began is None:
        note(f"{path} is not there, as with runs of older versions: which code began this run is not known")
        return
    write_source(path, replace(began, resumed=(*began.resumed, here)))
    if began.codes != (here.code,):
        note(
            f"This run was begun by {_named(began)} and is resumed by {_named(here)}: the code was changed. {path} "
            "names both"
        )


def _named(source: Source) -> str:
    return f"code {source.code[:12]}" + (f" (commit {source.commit[:12]})" if source.commit else "")


def _files(root: Path) -> Iterator[tuple[str, Path]]:
    """Names in a repository, in their order, and the files below `root`, which may be an installation's folder."""
    installed = (root / "podium" / "systems").is_dir()
    for name in CODE:
        path = root / name
        if path.name in ("pyproject.toml", "requirements") and installed:
            path = root / "podium" / name
        found = sorted(path.rglob("*"), key=lambda file: file.as_posix()) if path.is_dir() else [path]
        for file in found:
            parts = file.relative_to(path).parts
            shipped = installed and name == "podium" and parts[0] in SHIPPED
            hidden = any(part.startswith(".") or part == "__pycache__" for part in parts)
            if file.is_file() and not hidden and not shipped:
                yield "/".join((name, *parts)), file
