"""A bounded copy of somebody's package, so that nothing is read from, or written into, what is checked.

Only regular files within limits are copied. Symbolic links are never followed, nothing special is ever opened, and
each of them is a finding.
"""

import os
import stat
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import IO

from benchmarks.errors import UsageError, WorkError
from benchmarks.finding import Finding
from benchmarks.text import is_printable, printable

MAX_FILES = 50_000
"""Files and folders of a whole round are far fewer."""
MAX_FILE_BYTES = 50 << 20
"""As the official repo_checker has it, since Git hosts refuse larger files."""
MAX_TOTAL_BYTES = 2 << 30
MAX_DEPTH = 40
"""Folders within folders."""
MAX_NAME_BYTES = 255

_CHUNK = 1 << 20


@dataclass(frozen=True)
class Limits:
    """How much of a package is copied at most."""

    files: int = MAX_FILES
    file_bytes: int = MAX_FILE_BYTES
    total_bytes: int = MAX_TOTAL_BYTES


@dataclass
class Tally:
    """What was copied so far, and what was not and why."""

    limits: Limits
    files: int = 0
    total_bytes: int = 0
    whole: bool = True
    """False once a limit on all of it was met: nothing was copied from there on."""
    findings: list[Finding] = field(default_factory=list)

    def refuse(self, path: PurePosixPath, rule: str, message: str) -> None:
        self.findings.append(Finding.error(printable(str(path)), rule, message))

    def counts(self, path: PurePosixPath) -> bool:
        """Count one more file or folder; False where it is one too many."""
        self.files += 1
        if self.files <= self.limits.files:
            return True
        return self._too_much(
            path.parent,
            "too_many_files",
            f"there are more than {self.limits.files:,} files and folders up to here; a package of logs, systems and "
            "code is smaller: remove what does not belong to it",
        )

    def grows(self, path: PurePosixPath, size: int) -> bool:
        """Count `size` more bytes; False where they are too many."""
        self.total_bytes += size
        if self.total_bytes <= self.limits.total_bytes:
            return True
        gigabytes = self.limits.total_bytes / (1 << 30)
        return self._too_much(
            path, "too_many_bytes", f"the files up to here are more than {gigabytes:.1f} GiB; remove data and weights"
        )

    def _too_much(self, path: PurePosixPath, rule: str, message: str) -> bool:
        if self.whole:
            self.refuse(path, rule, message + "; nothing of the package was checked")
        self.whole = False
        return False


def copy_tree(source: Path, target: Path, tally: Tally, at: PurePosixPath = PurePosixPath(".")) -> None:
    """Copy what is in the folder `source` to the new folder `target`; `at` is its place within the package.

    Version control's own .git at the top is left out. Raises UsageError where `source` cannot be listed.
    """
    try:
        entries = _entries(source, tally)
    except OSError as error:
        if at == PurePosixPath("."):
            raise UsageError(f"{source}: cannot be read ({error.strerror}); name a folder that may be read") from error
        return tally.refuse(at, "unreadable", f"this folder cannot be read ({error.strerror}); see who may read it")
    target.mkdir(mode=0o700)
    for entry in entries:
        place = at / entry.name
        if at == PurePosixPath(".") and entry.name == ".git":
            continue
        if not tally.counts(place):
            return
        if name_is_good(place, tally):
            _copy_entry(entry, target / entry.name, tally, place)
        if not tally.whole:
            return


def copy_file(source: Path, target: Path, tally: Tally, place: PurePosixPath) -> None:
    """Copy a regular file within the limits; a finding where it is none or cannot be read."""
    try:
        descriptor = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        return tally.refuse(place, "unreadable", f"cannot be read ({error.strerror}); see who may read it")
    with os.fdopen(descriptor, "rb") as file:
        state = os.fstat(file.fileno())
        if not stat.S_ISREG(state.st_mode):
            return tally.refuse(place, "special_file", _SPECIAL)
        if state.st_size > tally.limits.file_bytes:
            return refuse_large(place, state.st_size, tally)
        if not tally.grows(place, state.st_size):
            return
        try:
            with open_new(target) as out:
                pour(file, out, state.st_size)
        except OSError as error:
            raise WorkError(
                f"{printable(str(place))}: cannot be copied to {target.parent} ({error.strerror}); see that "
                "the disk has space, or set TMPDIR"
            ) from error


def refuse_large(place: PurePosixPath, size: int, tally: Tally) -> None:
    limit = tally.limits.file_bytes >> 20
    tally.refuse(
        place,
        "large_file",
        f"has {size / (1 << 20):,.1f} MiB, and files over {limit} MiB are not accepted; remove or reduce it",
    )


def name_is_good(place: PurePosixPath, tally: Tally) -> bool:
    """Whether the last part of `place` is a name that can be copied and shown; a finding where it is not."""
    name, problem = place.name, None
    if not is_printable(name):
        problem = "holds control characters or is not UTF-8"
    elif name in ("", ".", "..") or "/" in name or "\\" in name:
        problem = "is no plain name"
    elif len(os.fsencode(name)) > MAX_NAME_BYTES or len(place.parts) > MAX_DEPTH:
        problem = f"is longer than {MAX_NAME_BYTES} bytes or lies more than {MAX_DEPTH} folders deep"
    if problem:
        tally.refuse(place, "bad_name", f"its name {problem}; give it a name of letters, digits, . - and _")
    return problem is None


def refuse_link(place: PurePosixPath, goal: str, tally: Tally) -> None:
    """A finding about a symbolic link, whichever way it leads."""
    inside = within(place, goal)
    tally.refuse(
        place,
        "link_inside" if inside else "link_outside",
        f"is a symbolic link to {printable(goal)[:200]}, "
        + ("inside the package; put a copy of the file here" if inside else "out of the package; remove it"),
    )


def within(place: PurePosixPath, goal: str) -> bool:
    """Whether a link at `place` that says `goal` stays in the package by its letters."""
    if goal.startswith("/"):
        return False
    depth = len(place.parent.parts)
    for part in PurePosixPath(goal).parts:
        depth += -1 if part == ".." else 1
        if depth < 0:
            return False
    return True


def open_new(target: Path) -> IO[bytes]:
    """Open a file that must not exist yet, for its owner alone."""
    return os.fdopen(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), "wb")


def pour(file: IO[bytes], out: IO[bytes], size: int) -> None:
    """Copy at most `size` bytes, however long the file has become meanwhile."""
    while size > 0 and (piece := file.read(min(size, _CHUNK))):
        out.write(piece)
        size -= len(piece)


_SPECIAL = "is neither a file nor a folder (a pipe, a socket or a device); remove it"


def _entries(source: Path, tally: Tally) -> list[os.DirEntry[str]]:
    """What is in a folder, by name; one more than is allowed at most."""
    with os.scandir(source) as found:
        return sorted(islice(found, max(tally.limits.files - tally.files, 0) + 1), key=lambda entry: entry.name)


def _copy_entry(entry: os.DirEntry[str], target: Path, tally: Tally, place: PurePosixPath) -> None:
    if entry.is_symlink():
        goal = "something unreadable"
        with suppress(OSError):
            goal = str(Path(entry.path).readlink())
        refuse_link(place, goal, tally)
    elif entry.is_dir(follow_symlinks=False):
        copy_tree(Path(entry.path), target, tally, place)
    elif entry.is_file(follow_symlinks=False):
        copy_file(Path(entry.path), target, tally, place)
    else:
        tally.refuse(place, "special_file", _SPECIAL)
