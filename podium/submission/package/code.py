"""Find the commit whose code made the runs, and write its files into a package."""

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
    """The commit whose code goes into a package."""

    commit: str
    made_the_runs: bool  # whether the runs recorded the hash of this code
    doubt: str  # why that is not known otherwise, for the package's README


def find_code(runs: Sequence[RunLog], records: Mapping[Path, RunRecord], allow_other: bool, root: Path) -> Code:
    """Return the commit whose code made all runs, found by the hash of the code that each run recorded.

    Raises UsageError where the runs did not record it, or files were not committed; with `allow_other` the commit that
    is checked out is returned instead, with the reason as `doubt`.
    """
    head = commit_of(root)
    if head is None:
        raise UsageError(
            f"{root}: is not a git repository with a commit, from which the code of the runs is taken; make the "
            "package in a clone of Podium"
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
            if code_hash_of_commit(commit, root) == source.code:
                return Code(commit, True, "")
        named = f"commit {source.commit[:12]} or of " if source.commit else ""
        doubt = f"the runs were made by code that is not that of {named}the present commit: files had been changed"
    if not allow_other:
        raise UsageError(
            f"the code of the runs: {doubt}; commit the code and make the runs again, or give --allow-other-code: "
            "the package then has the code of the present commit, and its README states this"
        )
    if code_hash_of_commit(head, root) != code_hash(root):
        doubt += "; files had been changed since the present commit when the package was made"
    return Code(head, False, doubt)


def code_hash_of_commit(commit: str, root: Path) -> str:
    """Return the `code_hash` of a commit's files."""
    with tempfile.TemporaryDirectory() as folder:
        unpack(commit, Path(folder), root)
        return code_hash(Path(folder))


def unpack(commit: str, folder: Path, root: Path) -> list[str]:
    """Write a commit's files below a folder; return what is left out: links and names that MLPerf rejects."""
    archive = git(root, "archive", "--format=tar", commit)
    if archive is None:
        raise WorkError(f"{root}: git cannot archive commit {commit}; run `git fsck`")
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
    """Name, version and licence of every library that a run needs, as the installed metadata states it."""
    return [(name, version, _licence(name)) for name, version in pins(project).items()]


def _licence(name: str) -> str:
    """Return a licence by its PEP 639 expression, else by the classifiers, else by the first line of the old field."""
    try:
        fields = metadata.metadata(name)
    except metadata.PackageNotFoundError:
        return "not installed where this package was made"
    classified = [c.rpartition(" :: ")[2] for c in fields.get_all("Classifier", []) if c.startswith("License ::")]
    expressions = fields.get_all("License-Expression", [])
    lines = "\n".join(fields.get_all("License", [])).strip().splitlines()
    return ", ".join(expressions or classified or lines[:1]) or "not stated"
