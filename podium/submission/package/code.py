"""The code of a commit as files of a package, and the choice of the commit: the one whose code made the runs."""

import io
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from podium.core.errors import UsageError, WorkError
from podium.core.files import make_folder
from podium.mllog.run import RunLog
from podium.run.records import RunRecord
from podium.run.source import code_hash, commit_of, git, pins


@dataclass(frozen=True)
class Code:
    """The code that goes into a package."""

    commit: str
    made_the_runs: bool  # whether the runs recorded this very code
    doubt: str  # otherwise what is known instead, as the package's README tells it


def code_of(runs: Sequence[RunLog], records: Mapping[Path, RunRecord], allow_other: bool, root: Path) -> Code:
    """The commit whose code made all of the runs.

    Where it cannot be had, because the runs did not record it, or the files were not as committed: UsageError, or with
    `allow_other` the commit checked out now, with the doubt said.
    """
    head = commit_of(root)
    if head is None:
        raise UsageError(
            f"{root}: is no git repository with a commit, so that the code of the runs cannot be taken from one; make "
            "the package where Podium was cloned"
        )
    sources = {records[run.path].source if run.path in records else None for run in runs}
    if None in sources:
        doubt = "at least one run did not record which code made it"
    elif len({source.code for source in sources if source}) > 1:
        doubt = "the runs were not all made by the same code"
    else:
        (source,) = sources
        assert source is not None
        for commit in filter(None, (source.commit and commit_of(root, source.commit), head)):
            if archived_hash(commit, root) == source.code:
                return Code(commit, True, "")
        named = f"commit {source.commit[:12]} or of " if source.commit else ""
        doubt = f"the runs were made by code that is not that of {named}the present commit: files had been changed"
    if not allow_other:
        raise UsageError(
            f"the code of the runs: {doubt}; commit what is run and make the runs again, or give --allow-other-code: "
            "the package then holds the present commit, and its README says this"
        )
    if archived_hash(head, root) != code_hash(root):
        doubt += "; files had been changed since the present commit when the package was made"
    return Code(head, False, doubt)


def archived_hash(commit: str, root: Path) -> str:
    """What `code_hash` is of the files of a commit."""
    with tempfile.TemporaryDirectory() as folder:
        unpack(commit, Path(folder), root)
        return code_hash(Path(folder))


def unpack(commit: str, folder: Path, root: Path) -> list[str]:
    """Write a commit's files below a folder, and return the links and names that MLPerf's repositories do not take."""
    archive = git(root, "archive", "--format=tar", commit)
    if archive is None:
        raise WorkError(f"{root}: git cannot archive commit {commit}; see `git fsck`")
    left_out = []
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        for member in files:
            if member.isdir() or member.name == "pax_global_header":
                continue
            parts = Path(member.name).parts
            if not member.isfile() or any(part.startswith(".") or " " in part for part in parts):
                left_out.append(member.name)
                continue
            assert not member.name.startswith("/") and ".." not in parts
            path = folder / member.name
            make_folder(path.parent)
            content = files.extractfile(member)
            assert content is not None
            path.write_bytes(content.read())
            path.chmod(0o755 if member.mode & 0o100 else 0o644)
    return left_out


def third_party(project: Path) -> list[tuple[str, str, str]]:
    """Name, version and licence of every library that a run needs, as its installed metadata states it."""
    return [(name, version, _licence(name)) for name, version in pins(project).items()]


def _licence(name: str) -> str:
    """By PEP 639, else by the classifiers, else by the first line of the old field."""
    try:
        told = metadata.metadata(name)
    except metadata.PackageNotFoundError:
        return "not installed where this package was made"
    classified = [c.rpartition(" :: ")[2] for c in told.get_all("Classifier", []) if c.startswith("License ::")]
    expressions = told.get_all("License-Expression", [])
    lines = "\n".join(told.get_all("License", [])).strip().splitlines()
    return ", ".join(expressions or classified or lines[:1]) or "not stated"
