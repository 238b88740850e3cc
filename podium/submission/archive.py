"""Bounded, isolated copies of a package from a folder or an archive, so that a check leaves the original unchanged.

The checks read the copy only and never write to the original. Regular files within the limits are copied. Symbolic
links are not followed and special files are not opened; each of them is reported as a finding. An archive is unpacked
under the same rules, and its size is bounded before anything is unpacked.
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

MAX_DEPTH = 40  # nested folders
MAX_NAME_BYTES = 255

_CHUNK = 1 << 20


@dataclass(frozen=True)
class Limits:
    """Upper bounds on what is copied of a package."""

    files: int = 50_000  # files and folders; a whole published round has far fewer
    file_bytes: int = 50 << 20  # the limit of the official repo_checker, since Git hosts refuse larger files
    total_bytes: int = 2 << 30


@dataclass
class Tally:
    """Counts of what was copied, and a finding for each entry that was not."""

    limits: Limits
    files: int = 0
    total_bytes: int = 0
    whole: bool = True  # False once a limit on the whole package was exceeded: copying stopped there
    findings: list[Finding] = field(default_factory=list)
    leave_out: Callable[[str], bool] = lambda name: False  # entries of a folder that are not copied, by name
    left_out: list[PurePosixPath] = field(default_factory=list)

    def refuse(self, path: PurePosixPath, rule: str, message: str) -> None:
        self.findings.append(Finding.error(printable(str(path)), rule, message))

    def add_entry(self, path: PurePosixPath) -> bool:
        """Count one more file or folder; return False if it exceeds the limit."""
        self.files += 1
        if self.files <= self.limits.files:
            return True
        return self._exceed(
            path.parent,
            "too_many_files",
            f"more than {self.limits.files:,} files and folders up to here; remove what is not a log, a system "
            "description or code",
        )

    def add_bytes(self, path: PurePosixPath, size: int) -> bool:
        """Count `size` more bytes; return False if they exceed the limit."""
        self.total_bytes += size
        if self.total_bytes <= self.limits.total_bytes:
            return True
        gigabytes = self.limits.total_bytes / (1 << 30)
        return self._exceed(
            path, "too_many_bytes", f"more than {gigabytes:.1f} GiB of files up to here; remove data and weights"
        )

    def _exceed(self, path: PurePosixPath, rule: str, message: str) -> bool:
        if self.whole:
            self.refuse(path, rule, message + "; nothing of the package was checked")
        self.whole = False
        return False


def copy_tree(source: Path, target: Path, tally: Tally, inside: PurePosixPath = PurePosixPath(".")) -> None:
    """Copy the content of the folder `source` to the new folder `target`; `inside` is its path within the package.

    A .git at the top is left out. Raises UsageError where the top folder cannot be listed.
    """
    try:
        entries = _entries(source, tally)
    except OSError as error:
        if inside == PurePosixPath("."):
            raise UsageError(
                f"{source}: cannot be read ({error.strerror}); check its permissions, or name another folder"
            ) from error
        return tally.refuse(
            inside, "unreadable", f"the folder cannot be read ({error.strerror}); check its permissions"
        )
    target.mkdir(mode=0o700)
    for entry in entries:
        path = inside / entry.name
        if inside == PurePosixPath(".") and entry.name == ".git":
            continue
        if not tally.add_entry(path):
            return
        if tally.leave_out(entry.name):
            tally.left_out.append(path)
        elif accept_name(path, tally):
            _copy_entry(entry, target / entry.name, tally, path)
        if not tally.whole:
            return


def copy_file(source: Path, target: Path, tally: Tally, path: PurePosixPath) -> None:
    """Copy a regular file within the limits; add a finding where it is not one or cannot be read."""
    try:
        # Opened without following links and without blocking, and examined by its descriptor: the path may be replaced
        # by a link or a pipe between the listing and this call.
        descriptor = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        return tally.refuse(path, "unreadable", f"cannot be read ({error.strerror}); check its permissions")
    with os.fdopen(descriptor, "rb") as file:
        state = os.fstat(file.fileno())
        if not stat.S_ISREG(state.st_mode):
            return tally.refuse(path, "special_file", _SPECIAL)
        if state.st_size > tally.limits.file_bytes:
            return refuse_large(path, state.st_size, tally)
        if not tally.add_bytes(path, state.st_size):
            return
        try:
            with open_new(target) as out:
                copy_bytes(file, out, state.st_size)
        except OSError as error:
            raise WorkError(
                f"{printable(str(path))}: cannot be copied to {target.parent} ({error.strerror}); free "
                "space on that disk, or set TMPDIR"
            ) from error


def refuse_large(path: PurePosixPath, size: int, tally: Tally) -> None:
    limit = tally.limits.file_bytes >> 20
    message = f"has {size / (1 << 20):,.1f} MiB; allowed are {limit} MiB: remove it or reduce its size"
    tally.refuse(path, "large_file", message)


def accept_name(path: PurePosixPath, tally: Tally) -> bool:
    """Whether the last part of `path` is a name that can be copied and printed; add a finding where it is not."""
    name, problem = path.name, None
    if not is_printable(name):
        problem = "contains control characters or is not UTF-8"
    elif name in ("", ".", "..") or "/" in name or "\\" in name:
        problem = "is not a plain file name"
    elif len(os.fsencode(name)) > MAX_NAME_BYTES or len(path.parts) > MAX_DEPTH:
        problem = f"is longer than {MAX_NAME_BYTES} bytes or more than {MAX_DEPTH} folders deep"
    if problem:
        tally.refuse(path, "bad_name", f"its name {problem}; use letters, digits, . - and _")
    return problem is None


def refuse_link(path: PurePosixPath, link_target: str, tally: Tally) -> None:
    """Add a finding about a symbolic link, by whether its target is in the package."""
    inside = is_within(path, link_target)
    tally.refuse(
        path,
        "link_inside" if inside else "link_outside",
        f"is a symbolic link to {printable(link_target)[:200]}, "
        + ("inside the package; put a copy of the file here" if inside else "out of the package; remove it"),
    )


def is_within(path: PurePosixPath, link_target: str) -> bool:
    """Whether a link at `path` to `link_target` stays in the package, judged by the text of both paths alone."""
    return not link_target.startswith("/") and ".." not in PurePosixPath(normpath(path.parent / link_target)).parts


def open_new(target: Path) -> IO[bytes]:
    """Create a file that must not exist yet, readable by its owner only."""
    return os.fdopen(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), "wb")


def copy_bytes(file: IO[bytes], out: IO[bytes], size: int) -> None:
    """Copy at most `size` bytes, since the file may grow during the copy."""
    while size > 0 and (piece := file.read(min(size, _CHUNK))):
        out.write(piece)
        size -= len(piece)


_SPECIAL = "is neither a file nor a folder but a pipe, a socket or a device; remove it"


def _entries(source: Path, tally: Tally) -> list[os.DirEntry[str]]:
    """Return a folder's entries by name, at most one more than is allowed."""
    # One entry more than allowed is enough to report the excess; a huge folder is not read to its end.
    with os.scandir(source) as found:
        return sorted(islice(found, max(tally.limits.files - tally.files, 0) + 1), key=lambda entry: entry.name)


def _copy_entry(entry: os.DirEntry[str], target: Path, tally: Tally, path: PurePosixPath) -> None:
    if entry.is_symlink():
        link_target = "something unreadable"
        with suppress(OSError):
            link_target = str(Path(entry.path).readlink())
        refuse_link(path, link_target, tally)
    elif entry.is_dir(follow_symlinks=False):
        copy_tree(Path(entry.path), target, tally, path)
    elif entry.is_file(follow_symlinks=False):
        copy_file(Path(entry.path), target, tally, path)
    else:
        tally.refuse(path, "special_file", _SPECIAL)


MAX_READ = 16 << 20  # bytes read from an archive at once: enough for a zip directory of 50,000 files
MAX_XZ_MEMORY = 256 << 20  # memory for decompressing .xz: twice what the highest preset needs
MAX_HEADER_BYTES = 16 << 10  # of a tar's extended header of one member, or of all global headers together
MAX_HEADERS = 8  # extended headers before one member
_HEADER_TYPES = (
    *(tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE),
    *(tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK),
)
MAX_TAR_HEADERS_BYTES = 256 << 20  # all headers of a decompressed tar, in addition to its files

_UNPACKING_ERRORS = (
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
    """Whether a file's name has the suffix of an archive that can be unpacked."""
    return _find_opener(path) is not None


def archive_stem(path: Path) -> str:
    """Return the archive's name without its suffix; "package" where nothing is left."""
    name = path.name
    for suffix in sorted(_OPENERS, key=len, reverse=True):
        name = name.removesuffix(suffix)
    return name if name.strip(".") else "package"


def unpack(archive: Path, target: Path, tally: Tally) -> None:
    """Unpack an archive to the new folder `target`; add a finding to the tally for what is not unpacked."""
    target.mkdir(mode=0o700)
    opener = _find_opener(archive)
    assert opener is not None
    try:
        with opener(archive, tally) as members:
            for member in members:
                if not tally.add_entry(PurePosixPath(member.name)):
                    return
                path = _member_path(member.name, tally)
                if path is not None:
                    _unpack_member(member, path, target, tally)
                if not tally.whole:
                    return
    except _UNPACKING_ERRORS as error:
        tally.whole = False
        reason = printable(str(error) or type(error).__name__)[:200]
        message = f"the archive cannot be unpacked ({reason}); nothing of the package was checked: create it again"
        tally.refuse(PurePosixPath("."), "bad_archive", message)


@dataclass(frozen=True)
class _Member:
    """One entry of a tar or zip archive; `link_target` is None unless it is a link."""

    name: str
    mode: int
    size: int
    link_target: str | None
    read: Callable[[], IO[bytes]]


def _member_path(name: str, tally: Tally) -> PurePosixPath | None:
    """Return a member's path within the package; None with a finding where it is outside or its name is bad."""
    plain = name.rstrip("/")
    path = PurePosixPath(plain)  # drops "." and "//"
    if plain in ("", "."):
        return None
    if path.is_absolute() or ".." in path.parts or "\\" in plain:
        tally.refuse(
            path,
            "member_outside",
            "the archive has a path outside of the package's folder, which was not written; create it without"
            " that path",
        )
        return None
    for depth in range(len(path.parts)):
        if not accept_name(PurePosixPath(*path.parts[: depth + 1]), tally):
            return None
    return path


def _unpack_member(member: _Member, path: PurePosixPath, target: Path, tally: Tally) -> None:
    if member.link_target is not None:
        return refuse_link(path, member.link_target, tally)
    if not (stat.S_ISREG(member.mode) or stat.S_ISDIR(member.mode)):
        return tally.refuse(path, "special_file", "is neither a file nor a folder; create the archive without it")
    destination = target / path
    try:
        if stat.S_ISDIR(member.mode):
            return destination.mkdir(mode=0o700, parents=True, exist_ok=True)
        if member.size > tally.limits.file_bytes:
            return refuse_large(path, member.size, tally)
        if not tally.add_bytes(path, member.size):
            return
        destination.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        out = open_new(destination)
    except (FileExistsError, NotADirectoryError):
        return tally.refuse(
            path,
            "member_twice",
            "the archive has this path twice, or both as a file and as a folder; create the archive again",
        )
    with out, member.read() as file:
        copy_bytes(file, out, member.size)


@contextmanager
def _tar(path: Path, tally: Tally, decompress: Callable[[Path], Any]) -> Iterator[Iterator[_Member]]:
    limit = tally.limits.total_bytes + MAX_TAR_HEADERS_BYTES
    with (
        decompress(path) as stream,
        tarfile.open(fileobj=cast(Any, _BoundedFile(stream, limit)), mode="r:", tarinfo=_bounded_tarinfo()) as tar,
    ):

        def members() -> Iterator[_Member]:
            while (info := tar.next()) is not None:
                cast(Any, tar).members.clear()  # tarfile keeps every member and its headers in memory
                kind = stat.S_IFREG if info.isreg() else stat.S_IFDIR if info.isdir() else 0
                link_target = info.linkname if info.issym() or info.islnk() else None
                yield _Member(info.name, kind, info.size, link_target, cast(Any, partial(tar.extractfile, info)))

        yield members()


def _bounded_tarinfo() -> type[tarfile.TarInfo]:
    """Return a TarInfo class for one archive that refuses sparse members and excessive headers before reading them."""
    chained, global_bytes = 0, 0  # extended headers since the last member; bytes of all global headers

    class BoundedTarInfo(tarfile.TarInfo):
        def _proc_member(self, archive: tarfile.TarFile) -> Any:
            nonlocal chained, global_bytes
            if self.type == tarfile.GNUTYPE_SPARSE:
                return self._refuse_sparse()
            if self.type not in _HEADER_TYPES:
                chained = 0
                return super()._proc_member(archive)  # type: ignore[misc]
            chained += 1
            global_bytes += self.size if self.type == tarfile.XGLTYPE else 0
            if chained > MAX_HEADERS or max(self.size, global_bytes) > MAX_HEADER_BYTES:
                raise ValueError(
                    f"it has headers of more than {MAX_HEADER_BYTES >> 10} KiB, or over {MAX_HEADERS} for one member"
                )
            return super()._proc_member(archive)  # type: ignore[misc]

        def _refuse_sparse(self, *_: Any) -> Any:
            raise ValueError("it has a sparse file; create it without --sparse")

        _proc_gnusparse_00 = _proc_gnusparse_01 = _proc_gnusparse_10 = _refuse_sparse

    return BoundedTarInfo


@contextmanager
def _zip(path: Path, tally: Tally) -> Iterator[Iterator[_Member]]:
    with path.open("rb") as stream, zipfile.ZipFile(cast(IO[bytes], _BoundedFile(stream, 1 << 62))) as archive:

        def members() -> Iterator[_Member]:
            for info in archive.infolist():
                mode = info.external_attr >> 16
                kind = stat.S_IFDIR if info.is_dir() else mode if stat.S_IFMT(mode) else stat.S_IFREG
                link_target = None
                if stat.S_ISLNK(mode):  # a zip has the target as the content of the link
                    with archive.open(info) as file:
                        link_target = os.fsdecode(file.read(4096))
                yield _Member(info.filename, kind, info.file_size, link_target, partial(archive.open, info))

        yield members()


class _BoundedFile:
    """A read-only file that refuses large single reads, and reads beyond `limit` bytes from its start."""

    def __init__(self, file: IO[bytes], limit: int) -> None:
        self._file, self._limit = file, limit

    def read(self, size: int | None = -1) -> bytes:
        # One byte more than allowed is read, so that a larger request is distinguished from one that just fits.
        content = self._file.read(MAX_READ + 1 if size is None or size < 0 else min(size, MAX_READ + 1))
        if len(content) > MAX_READ:
            raise ValueError(f"it has a header of more than {MAX_READ >> 20} MiB")
        if self._file.tell() > self._limit:
            raise ValueError(f"it decompresses to more than {self._limit / (1 << 30):.1f} GiB")
        return content

    def seek(self, offset: int, whence: int = 0) -> int:
        if whence == 0 and offset > self._limit:
            raise ValueError(f"it declares more than {self._limit / (1 << 30):.1f} GiB")
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()

    def seekable(self) -> bool:
        return True

    def close(self) -> None:
        pass


class _Xz(io.RawIOBase):
    """An .xz file as a stream with bounded memory, which lzma.open does not offer; reads and seeks forward only."""

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
            raise OSError("a compressed tar can be read forward only")
        while self._position < offset and self.read(min(offset - self._position, 1 << 20)):
            pass
        return self._position

    def readinto(self, buffer: Any) -> int:
        piece = b""
        while not piece and len(buffer):
            if self._decompressor.eof:
                # An .xz file may be several streams with zero padding between and after them.
                rest = self._decompressor.unused_data or self._file.read(1 << 16)
                if not rest.strip(b"\0"):
                    break
                self._decompressor = lzma.LZMADecompressor(memlimit=MAX_XZ_MEMORY)
                piece = self._decompressor.decompress(rest, len(buffer))
                continue
            more = self._file.read(1 << 16) if self._decompressor.needs_input else b""
            if self._decompressor.needs_input and not more:
                raise EOFError("it is truncated")
            piece = self._decompressor.decompress(more, len(buffer))
        buffer[: len(piece)] = piece
        self._position += len(piece)
        return len(piece)

    def close(self) -> None:
        self._file.close()
        super().close()


_gz = partial(_tar, decompress=gzip.open)
_xz = partial(_tar, decompress=lambda path: io.BufferedReader(_Xz(path), 1 << 18))
# How to open an archive, by its suffix.
_OPENERS: dict[str, Callable[[Path, Tally], Any]] = {
    ".zip": _zip,
    ".tar": partial(_tar, decompress=lambda path: path.open("rb")),
    ".tar.gz": _gz,
    ".tgz": _gz,
    ".tar.xz": _xz,
    ".txz": _xz,
}


def _find_opener(path: Path) -> Callable[[Path, Tally], Any] | None:
    name = path.name.lower()
    return next((opener for suffix, opener in _OPENERS.items() if name.endswith(suffix)), None)
