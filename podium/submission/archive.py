"""Bounded, isolated copies of a package from a folder or an archive, so that a check leaves the original unchanged.

Nothing is read from, or written into, the original while it is checked. Only regular files within limits are copied.
Symbolic links are never followed, special files are never opened, and each of them is a finding. An archive is
unpacked under the same rules, and its size is bounded before anything is unpacked.
"""

import gzip
import io
import lzma
import os
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path, PurePosixPath
from posixpath import normpath
from typing import IO, Any, cast

from podium.core.errors import UsageError, WorkError
from podium.core.finding import Finding
from podium.core.text import is_printable, printable

MAX_DEPTH = 40  # folders within folders
MAX_NAME_BYTES = 255

_CHUNK = 1 << 20


@dataclass(frozen=True)
class Limits:
    """How much of a package is copied at most."""

    files: int = 50_000  # and folders; those of a whole round are far fewer
    file_bytes: int = 50 << 20  # as the official repo_checker has it, since Git hosts refuse larger files
    total_bytes: int = 2 << 30


@dataclass
class Tally:
    """What was copied so far, and what was not and why."""

    limits: Limits
    files: int = 0
    total_bytes: int = 0
    whole: bool = True  # False once a limit on all of it was met: nothing was copied from there on
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
    message = f"has {size / (1 << 20):,.1f} MiB, and files over {limit} MiB are not accepted; remove or reduce it"
    tally.refuse(place, "large_file", message)


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
    return not goal.startswith("/") and ".." not in PurePosixPath(normpath(place.parent / goal)).parts


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


MAX_READ = 16 << 20  # the most that is taken from an archive at once: a directory of 50,000 files fits, a bomb does not
MAX_XZ_MEMORY = 256 << 20  # what decompressing .xz may take: twice what its highest preset needs
MAX_HEADER_BYTES = 16 << 10  # of a tar's header for names and times of one member, or of those for all members
MAX_HEADERS = 8  # of them one after another
_HEADERS = (
    *(tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE),
    *(tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK),
)
SLACK = 256 << 20  # bytes of headers in a decompressed tar, beyond the files

_BROKEN = (
    tarfile.TarError,
    zipfile.BadZipFile,
    lzma.LZMAError,
    zlib.error,
    EOFError,
    OSError,
    RuntimeError,  # a zip with a password
    MemoryError,
    NotImplementedError,
    ValueError,
    OverflowError,
)


def is_archive(path: Path) -> bool:
    """Whether a file's name says that it is an archive that can be unpacked."""
    return _opener(path) is not None


def archive_stem(path: Path) -> str:
    """The archive's name without what says that it is one; "package" where nothing is left."""
    name = path.name
    for suffix in sorted(_OPENERS, key=len, reverse=True):
        name = name.removesuffix(suffix)
    return name if name.strip(".") else "package"


def unpack(archive: Path, target: Path, tally: Tally) -> None:
    """Unpack an archive to the new folder `target`; what is not unpacked is a finding of the tally."""
    target.mkdir(mode=0o700)
    opener = _opener(archive)
    assert opener is not None
    try:
        with opener(archive, tally) as members:
            for member in members:
                if not tally.counts(PurePosixPath(member.name)):
                    return
                place = _place(member.name, tally)
                if place is not None:
                    _unpack_member(member, place, target, tally)
                if not tally.whole:
                    return
    except _BROKEN as error:
        tally.whole = False
        words = printable(str(error) or type(error).__name__)[:200]
        message = f"the archive cannot be unpacked ({words}); nothing of the package was checked: make it anew"
        tally.refuse(PurePosixPath("."), "bad_archive", message)


@dataclass(frozen=True)
class _Member:
    """One entry of an archive of either kind; of a link, `goal` is what it says."""

    name: str
    mode: int
    size: int
    goal: str | None
    read: Callable[[], IO[bytes]]


def _place(name: str, tally: Tally) -> PurePosixPath | None:
    """Where a member belongs within the package; a finding and None where it is out of it, or has a bad name."""
    plain = name.rstrip("/")
    path = PurePosixPath(plain)  # drops "." and "//"
    if plain in ("", "."):
        return None
    if path.is_absolute() or ".." in path.parts or "\\" in plain:
        tally.refuse(
            path,
            "member_outside",
            "the archive would write this outside of the package's folder; nothing was written there, make it anew",
        )
        return None
    for depth in range(len(path.parts)):
        if not name_is_good(PurePosixPath(*path.parts[: depth + 1]), tally):
            return None
    return path


def _unpack_member(member: _Member, place: PurePosixPath, target: Path, tally: Tally) -> None:
    if member.goal is not None:
        return refuse_link(place, member.goal, tally)
    if not (stat.S_ISREG(member.mode) or stat.S_ISDIR(member.mode)):
        return tally.refuse(place, "special_file", "is neither a file nor a folder; make the archive without it")
    goal = target / place
    try:
        if stat.S_ISDIR(member.mode):
            return goal.mkdir(mode=0o700, parents=True, exist_ok=True)
        if member.size > tally.limits.file_bytes:
            return refuse_large(place, member.size, tally)
        if not tally.grows(place, member.size):
            return
        goal.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        out = open_new(goal)
    except (FileExistsError, NotADirectoryError):
        return tally.refuse(
            place, "member_twice", "the archive holds this twice, or once as a file and once as a folder; make it anew"
        )
    with out, member.read() as file:
        pour(file, out, member.size)


@contextmanager
def _tar(path: Path, tally: Tally, decompress: Callable[[Path], Any]) -> Iterator[Iterator[_Member]]:
    limit = tally.limits.total_bytes + SLACK
    with (
        decompress(path) as stream,
        tarfile.open(fileobj=cast(Any, _Bounded(stream, limit)), mode="r:", tarinfo=_bounded_headers()) as tar,
    ):

        def members() -> Iterator[_Member]:
            while (info := tar.next()) is not None:
                cast(Any, tar).members.clear()  # it would keep each with all of its headers
                kind = stat.S_IFREG if info.isreg() else stat.S_IFDIR if info.isdir() else 0
                goal = info.linkname if info.issym() or info.islnk() else None
                yield _Member(info.name, kind, info.size, goal, cast(Any, partial(tar.extractfile, info)))

        yield members()


def _bounded_headers() -> type[tarfile.TarInfo]:
    """TarInfo for one archive that refuses sparse members and headers without end, before any of them is read."""
    before, in_all = 0, 0  # headers since the last member, and bytes of those that are for all members

    class Bounded(tarfile.TarInfo):
        def _proc_member(self, archive: tarfile.TarFile) -> Any:
            nonlocal before, in_all
            if self.type == tarfile.GNUTYPE_SPARSE:
                return self._refuse_sparse()
            if self.type not in _HEADERS:
                before = 0
                return super()._proc_member(archive)  # type: ignore[misc]
            before += 1
            in_all += self.size if self.type == tarfile.XGLTYPE else 0
            if before > MAX_HEADERS or max(self.size, in_all) > MAX_HEADER_BYTES:
                raise ValueError(f"it has headers of more than {MAX_HEADER_BYTES >> 10} KiB, or very many at once")
            return super()._proc_member(archive)  # type: ignore[misc]

        def _refuse_sparse(self, *_: Any) -> Any:
            raise ValueError("it holds a file with holes (sparse); make it without --sparse")

        _proc_gnusparse_00 = _proc_gnusparse_01 = _proc_gnusparse_10 = _refuse_sparse

    return Bounded


@contextmanager
def _zip(path: Path, tally: Tally) -> Iterator[Iterator[_Member]]:
    with path.open("rb") as stream, zipfile.ZipFile(cast(IO[bytes], _Bounded(stream, 1 << 62))) as archive:

        def members() -> Iterator[_Member]:
            for info in archive.infolist():
                mode = info.external_attr >> 16
                kind = stat.S_IFDIR if info.is_dir() else mode if stat.S_IFMT(mode) else stat.S_IFREG
                goal = None
                if stat.S_ISLNK(mode):
                    with archive.open(info) as file:
                        goal = os.fsdecode(file.read(4096))
                yield _Member(info.filename, kind, info.file_size, goal, partial(archive.open, info))

        yield members()


class _Bounded:
    """A file of which nobody takes much at once, and nothing beyond `limit` bytes from its start."""

    def __init__(self, file: IO[bytes], limit: int) -> None:
        self._file, self._limit = file, limit

    def read(self, size: int | None = -1) -> bytes:
        taken = self._file.read(MAX_READ + 1 if size is None or size < 0 else min(size, MAX_READ + 1))
        if len(taken) > MAX_READ:
            raise ValueError(f"one header of it is over {MAX_READ >> 20} MiB")
        if self._file.tell() > self._limit:
            raise ValueError(f"it decompresses to more than {self._limit / (1 << 30):.1f} GiB")
        return taken

    def seek(self, offset: int, whence: int = 0) -> int:
        if whence == 0 and offset > self._limit:
            raise ValueError(f"it claims more than {self._limit / (1 << 30):.1f} GiB")
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()

    def seekable(self) -> bool:
        return True

    def close(self) -> None:
        pass


class _Xz(io.RawIOBase):
    """An .xz file as a stream that takes bounded memory; it is only ever read and sought forward."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._file = path.open("rb")
        self._decompressor = lzma.LZMADecompressor(memlimit=MAX_XZ_MEMORY)
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = 0) -> int:
        if whence == 1:
            offset += self._position
        if whence == 2 or offset < self._position:
            raise OSError("a compressed tar is read forward alone")
        while self._position < offset and self.read(min(offset - self._position, 1 << 20)):
            pass
        return self._position

    def readinto(self, buffer: Any) -> int:
        piece = b""
        while not piece and len(buffer):
            if self._decompressor.eof:
                rest = self._decompressor.unused_data or self._file.read(1 << 16)
                if not rest.strip(b"\0"):
                    break
                self._decompressor = lzma.LZMADecompressor(memlimit=MAX_XZ_MEMORY)
                piece = self._decompressor.decompress(rest, len(buffer))
                continue
            more = self._file.read(1 << 16) if self._decompressor.needs_input else b""
            if self._decompressor.needs_input and not more:
                raise EOFError("it ends before its end")
            piece = self._decompressor.decompress(more, len(buffer))
        buffer[: len(piece)] = piece
        self._position += len(piece)
        return len(piece)

    def close(self) -> None:
        self._file.close()
        super().close()


_gz = partial(_tar, decompress=gzip.open)
_xz = partial(_tar, decompress=lambda path: io.BufferedReader(_Xz(path), 1 << 18))
# How to open an archive, by how its name ends.
_OPENERS: dict[str, Callable[[Path, Tally], Any]] = {
    ".zip": _zip,
    ".tar": partial(_tar, decompress=lambda path: path.open("rb")),
    ".tar.gz": _gz,
    ".tgz": _gz,
    ".tar.xz": _xz,
    ".txz": _xz,
}


def _opener(path: Path) -> Callable[[Path, Tally], Any] | None:
    name = path.name.lower()
    return next((opener for suffix, opener in _OPENERS.items() if name.endswith(suffix)), None)
