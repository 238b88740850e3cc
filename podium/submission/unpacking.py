"""A package out of an archive: as safely as it is copied from a folder, and bounded before anything is unpacked."""

import gzip
import io
import lzma
import os
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, Any, cast

from benchmarks.text import printable
from podium.submission.copying import Tally, name_is_good, open_new, pour, refuse_large, refuse_link

MAX_READ = 16 << 20
"""The most that is taken from an archive at once: a directory of 50,000 files fits, a bomb does not."""
MAX_XZ_MEMORY = 256 << 20
"""What decompressing .xz may take: twice what its highest preset needs."""
SLACK = 256 << 20
"""Bytes of headers in a decompressed tar, beyond the files."""

_BROKEN = (
    tarfile.TarError,
    zipfile.BadZipFile,
    lzma.LZMAError,
    zlib.error,
    EOFError,
    OSError,
    RuntimeError,  # a zip with a password
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
        tally.refuse(
            PurePosixPath("."),
            "bad_archive",
            f"the archive cannot be unpacked ({words}); nothing of the package was checked: make it anew",
        )


class _Member:
    """One entry of an archive of either kind."""

    def __init__(self, name: str, mode: int, size: int, goal: str | None, read: Callable[[], IO[bytes]]) -> None:
        self.name, self.mode, self.size, self.goal, self.read = name, mode, size, goal, read


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
def _tar(path: Path, tally: Tally, decompress: Callable[[Path], IO[bytes]]) -> Iterator[Iterator[_Member]]:
    limit = tally.limits.total_bytes + SLACK
    with decompress(path) as stream, tarfile.open(fileobj=cast(Any, _Bounded(stream, limit)), mode="r:") as tar:

        def members() -> Iterator[_Member]:
            for info in tar:
                kind = stat.S_IFREG if info.isreg() else stat.S_IFDIR if info.isdir() else 0
                goal = info.linkname if info.issym() or info.islnk() else None
                yield _Member(info.name, kind, info.size, goal, partial(_tar_file, tar, info))

        yield members()


@contextmanager
def _zip(path: Path, tally: Tally) -> Iterator[Iterator[_Member]]:
    with path.open("rb") as stream, zipfile.ZipFile(cast(IO[bytes], _Bounded(stream, 1 << 62))) as archive:

        def members() -> Iterator[_Member]:
            for info in archive.infolist():
                mode = info.external_attr >> 16
                link = stat.S_ISLNK(mode)
                kind = stat.S_IFDIR if info.is_dir() else stat.S_IFREG if mode == 0 or not stat.S_IFMT(mode) else mode
                goal = None
                if link:
                    with archive.open(info) as file:
                        goal = os.fsdecode(file.read(4096))
                yield _Member(info.filename, kind, info.file_size, goal, partial(archive.open, info))

        yield members()


def _tar_file(tar: tarfile.TarFile, info: tarfile.TarInfo) -> IO[bytes]:
    file = tar.extractfile(info)
    assert file is not None
    return file


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


def _plain(path: Path) -> IO[bytes]:
    return path.open("rb")


def _gz(path: Path) -> IO[bytes]:
    return cast(IO[bytes], gzip.open(path, "rb"))


def _xz(path: Path) -> IO[bytes]:
    return io.BufferedReader(_Xz(path), 1 << 18)


def _tarred(decompress: Callable[[Path], IO[bytes]]) -> Callable[[Path, Tally], Any]:
    return lambda path, tally: _tar(path, tally, decompress)


_OPENERS: dict[str, Callable[[Path, Tally], Any]] = {
    ".zip": _zip,
    ".tar": _tarred(_plain),
    ".tar.gz": _tarred(_gz),
    ".tgz": _tarred(_gz),
    ".tar.xz": _tarred(_xz),
    ".txz": _tarred(_xz),
}
"""How to open an archive, by how its name ends."""


def _opener(path: Path) -> Callable[[Path, Tally], Any] | None:
    name = path.name.lower()
    return next((opener for suffix, opener in _OPENERS.items() if name.endswith(suffix)), None)
