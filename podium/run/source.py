"""The version of the code that made a run: the hash of its files and, in a git repository, the commit.

The hash is what identifies the code. It is the same in a container without a repository, and every change of a file
changes it, so a submission can be packaged with exactly the code that was run.
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
from podium.core.files import write_atomically
from podium.core.json_files import read_json
from podium.core.paths import CODE_FOLDER

# The hashed files and folders. systems/ is not needed, since the resolved configuration contains a system's settings.
CODE = ("benchmarks", "implementations", "podium", "pyproject.toml", "requirements")
BASE_IMAGE = "PODIUM_BASE_IMAGE"  # an environment variable that docker/Dockerfile sets
# Inside the package podium in an installation, beside it in a clone.
SHIPPED = ("systems", "docker", "pyproject.toml", "requirements")
NOTICES = ("NOTICE",)  # accompany a licence and are none
LICENCES = ("LICENSE", "LICENCE", "LICENSE.txt", "LICENSE.md", "COPYING", *NOTICES)
NO_LICENCE = "there is no licence file, and MLPerf expects openly licensed code"
ADD_LICENCE = "choose a licence and commit its text as LICENSE before submitting"


@dataclass(frozen=True)
class Source:
    """The version of the code of a run."""

    code: str  # `code_hash` of its files
    commit: str | None  # checked out, with or without changes; None outside a git repository
    resumed: tuple["Source", ...] = ()  # the version at each time that the run was resumed, in order
    base_image: str | None = None  # of the container, as passed to docker/Dockerfile; None outside such a container

    @property
    def codes(self) -> tuple[str, ...]:
        """The distinct hashes of all code that ran, in the order of time."""
        return tuple(dict.fromkeys((self.code, *(later.code for later in self.resumed))))


def current_source() -> Source:
    """Return the version of the running code. An installation has the hash of the repository that it was built from."""
    base_image = os.environ.get(BASE_IMAGE) or None
    return Source(code_hash(CODE_FOLDER), commit_of(CODE_FOLDER), base_image=base_image)


def code_hash(root: Path) -> str:
    """Return the SHA-256 over names and contents of all files of CODE below `root`, without caches and hidden files."""
    digest = hashlib.sha256()
    for name, path in _files(root):
        content = path.read_bytes()
        # The lengths make the encoding unambiguous: bytes cannot be moved between a name and a content, or two files.
        digest.update(b"%d %s %d " % (len(name), name.encode(), len(content)))
        digest.update(content)
    return digest.hexdigest()


def read_project(pyproject: Path) -> dict[str, Any]:
    """Return the `project` table of a pyproject.toml."""
    with pyproject.open("rb") as file:
        return dict(tomllib.load(file)["project"])


def pins(pyproject: Path) -> dict[str, str]:
    """Return the version of each library that a run requires directly: the dependencies and the extra `train`.

    The versions are those of requirements/, beside pyproject.toml, or of pyproject.toml where that has `==`, as in
    older commits. Raises WorkError for a library that has neither.
    """
    project = read_project(pyproject)
    requirements = [*project["dependencies"], *project.get("optional-dependencies", {}).get("train", [])]
    locked = locked_versions(pyproject.parent / "requirements")
    found = {}
    for requirement in requirements:
        name, _, exact = requirement.partition("==")
        name = re.split(r"[\s\[<>=!~;]", name, maxsplit=1)[0]
        version = exact or locked.get(normalized(name))
        if version is None:
            raise WorkError(f"{pyproject.parent}/requirements: has no version of {name}; run `make lock`")
        found[name] = version
    return found


def locked_versions(folder: Path) -> dict[str, str]:
    """Return the version of every package of a run in requirements/ by normalized name, torch in its CUDA build."""
    paths = [folder / name for name in ("run.txt", "torch-cuda.txt")]
    text = "".join(path.read_text(encoding="utf-8") for path in paths if path.is_file())
    return dict(re.findall(r"^([\w.-]+)==(\S+)", text, flags=re.MULTILINE))


def normalized(name: str) -> str:
    """Return a library's name as package indexes compare it (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def licence_files(folder: Path) -> list[str]:
    """Return the names of the licence and notice files in the project's folder."""
    return [name for name in LICENCES if (folder / name).is_file()]


def has_licence(folder: Path) -> bool:
    """Whether the project's folder has a licence file; a notice does not count."""
    return any(name not in NOTICES for name in licence_files(folder))


def commit_of(root: Path, name: str = "HEAD") -> str | None:
    """Return the full hash of the commit `name` in the repository whose top folder is `root`; None if there is none."""
    top = git(root, "rev-parse", "--show-toplevel")
    # In an installation below some other repository, git would find that one.
    if top is None or Path(top.decode().strip()).resolve() != root.resolve():
        return None
    # --end-of-options: a user may give a name that begins with a dash, which git must not take for an option.
    commit = git(root, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}")
    return commit.decode().strip() if commit else None


def git(root: Path, *arguments: str) -> bytes | None:
    """Run git in a folder and return its standard output; None if it fails or is not installed."""
    try:
        process = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, check=False)  # noqa: S607
    except OSError:
        return None
    return process.stdout if process.returncode == 0 else None


def write_source(path: Path, source: Source) -> None:
    """Write the version of a run's code as JSON."""
    write_atomically(path, json.dumps(_document(source), indent=2) + "\n")


def _document(source: Source) -> dict[str, Any]:
    document: dict[str, Any] = {"code": source.code, "commit": source.commit}
    if source.base_image is not None:
        document["base_image"] = source.base_image
    if source.resumed:
        document["resumed"] = [_document(later) for later in source.resumed]
    return document


def read_source(path: Path) -> Source | None:
    """Read a file that `write_source` wrote; None if there is no valid one, as for runs of older versions."""
    try:
        document = read_json(path)
        return replace(_parse_source(document), resumed=tuple(map(_parse_source, document.get("resumed", []))))
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _parse_source(document: Any) -> Source:
    code, commit, image = document["code"], document["commit"], document.get("base_image")
    if not (isinstance(code, str) and isinstance(commit, str | None) and isinstance(image, str | None)):
        raise ValueError("the hash, the commit or the image is not a text")
    return Source(code, commit, base_image=image)


def add_resumed_code(path: Path, here: Source, note: Callable[[str], None]) -> None:
    """Append the version of the code that resumes a run to its record, and print a note if the code has changed."""
    first = read_source(path)
    if first is None:
        note(f"{path} does not exist, as for runs of older versions: which code began this run is not known")
        return
    write_source(path, replace(first, resumed=(*first.resumed, here)))
    if first.codes != (here.code,):
        note(
            f"This run was begun by {_format_source(first)} and is resumed by {_format_source(here)}: the code was "
            f"changed. Both versions are recorded in {path}"
        )


def _format_source(source: Source) -> str:
    return f"code {source.code[:12]}" + (f" (commit {source.commit[:12]})" if source.commit else "")


def _files(root: Path) -> Iterator[tuple[str, Path]]:
    """Yield the files of CODE below `root`, each with its path in the repository, in a fixed order.

    In an installation pyproject.toml is inside the package podium, and so are folders that do not belong to CODE.
    """
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
                yield "/".join((name, *parts)), file  # the repository's name, so that both give the same hash
