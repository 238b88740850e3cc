"""Files that are written completely or not at all, and the limit on open files."""

import errno
import glob
import hashlib
import os
import resource
import secrets
import stat
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from io import BufferedReader
from pathlib import Path

from podium.core.errors import UsageError, WorkError

UNFINISHED = ".partial"
FEW_FILES = 256  # files that a process holds open besides the shards of a store


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A temporary path beside `path` to write to, which takes its name when the block ends and all is on the disk.

    It is removed if the block fails. Raises WorkError for a folder that does not exist, a disk that is full, and a
    device or a pipe, which nothing may take the place of.
    """
    if _is_special(path):
        raise WorkError(f"{path}: is a device or a pipe, and cannot be replaced by a file; name another place")
    if path.is_dir() and not path.is_symlink():
        raise WorkError(f"{path}: a folder is in the way; remove it, or name another place")
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}{UNFINISHED}")
    try:
        yield temporary
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        advice = "see that the folder exists, may be written and has space"
        raise WorkError(f"{path}: cannot be written ({error.strerror or error}); {advice}") from error
    finally:
        with suppress(OSError):
            temporary.unlink()


def write_whole(path: Path, content: bytes | str) -> None:
    """Write a file as `whole_file` does, or into a device or a pipe directly; text is written as UTF-8."""
    whole = content.encode("utf-8") if isinstance(content, str) else content
    if _is_special(path):
        try:
            path.write_bytes(whole)
        except OSError as error:
            raise unwritable(path, error) from error
        return
    with whole_file(path) as temporary, temporary.open("xb") as file:
        file.write(whole)


def write_changed(path: Path, content: bytes | str) -> None:
    """Write a file as `whole_file` does, text as UTF-8; one that has this content is left, so that it may be read-only.

    Raises WorkError as `whole_file`.
    """
    whole = content.encode("utf-8") if isinstance(content, str) else content
    try:
        with open_regular(path) as file:
            if os.fstat(file.fileno()).st_size == len(whole) and file.read() == whole:
                return
    except OSError:
        pass
    with whole_file(path) as temporary, temporary.open("xb") as file:
        file.write(whole)


def _is_special(path: Path) -> bool:
    """Whether there is something else of this name than a file or a folder."""
    return path.exists() and not path.is_file() and not path.is_dir()


def remove_unfinished(path: Path) -> None:
    """Remove what processes that were killed while they wrote this file have left behind."""
    for temporary in path.parent.glob(f".{glob.escape(path.name)}.*{UNFINISHED}"):
        temporary.unlink(missing_ok=True)


def make_folder(folder: Path) -> Path:
    """Create a folder and those above it; UsageError where a file is in the way, WorkError where it is not allowed."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise UsageError(f"{folder}: cannot be a folder, a file is in the way; name another place") from None
    except OSError as error:
        raise WorkError(f"{folder}: the folder cannot be made ({error.strerror}); see who may write there") from error
    return folder


def open_regular(path: Path) -> BufferedReader:
    """Open a regular file to be read. OSError for anything else; a pipe that no process writes to is not waited for."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except ValueError as error:  # a NUL in the path
        raise OSError(errno.EINVAL, str(error), str(path)) from None
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return os.fdopen(descriptor, "rb")
    os.close(descriptor)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    raise OSError(errno.EINVAL, "it is a pipe, a socket or a device, not a file", str(path))


def read_bounded(path: Path, largest: int) -> bytes:
    """The content of a regular file of at most `largest` bytes; OSError where it is longer or cannot be read."""
    with open_regular(path) as file:
        content = file.read(largest + 1)
    if len(content) > largest:
        raise OSError(errno.EFBIG, f"it has more than {largest:,} bytes", str(path))
    return content


def require_readable(files: Sequence[Path], kind: str) -> None:
    """Raise UsageError unless all these are regular files, of a kind such as `text file`, that can be opened."""
    for file in files:
        try:
            open_regular(file).close()
        except FileNotFoundError:
            raise UsageError(f"{file}: there is no such {kind}") from None
        except IsADirectoryError:
            raise UsageError(f"{file}: this is a folder; give the {kind}s in it") from None
        except OSError as error:
            raise UsageError(f"{file}: the {kind} cannot be read ({error.strerror})") from error


def unwritable(path: Path, error: OSError) -> WorkError:
    """What to raise where a file or a folder cannot be written for this error; a full disk is called that."""
    why = error.strerror or str(error)
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return WorkError(f"{path}: the disk is full ({why}); make room on it")
    return WorkError(f"{path}: cannot be written ({why}); see who may write there")


def require_room(folder: Path) -> None:
    """Raises WorkError unless a file of 64 KiB can be written into the folder. It is removed again."""
    probe = folder / f".room.{secrets.token_hex(4)}{UNFINISHED}"
    try:
        with probe.open("xb") as file:
            file.write(bytes(65536))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise unwritable(folder, error) from None
    finally:
        with suppress(OSError):
            probe.unlink()


def has_md5(path: Path, size: int, md5: str) -> bool:
    """Whether a file has this many bytes and this MD5; WorkError if it cannot be read."""
    try:
        with open_regular(path) as file:
            right = os.fstat(file.fileno()).st_size == size
            return right and hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest() == md5
    except OSError as error:
        raise WorkError(f"{path}: cannot be read ({error.strerror})") from error


def sha256_of(path: Path) -> str:
    """SHA-256 of a file's bytes, in hexadecimal. Raises WorkError if it cannot be read."""
    try:
        with open_regular(path) as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise WorkError(f"{path}: cannot be read ({error.strerror})") from error


def allow_open_files(count: int) -> None:
    """Raise this process's limit of open files so that `count` of them can be mapped, as far as the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count + FEW_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(
            resource.RLIMIT_NOFILE, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard)
        )


def user_cache_folder() -> Path:
    """Podium's folder among the user's caches, by the XDG base directory specification.

    A user without a home, as in a container under any number, has one in the temporary folder.
    """
    base = os.environ.get("XDG_CACHE_HOME", "")
    if Path(base).is_absolute():
        return Path(base) / "podium"
    try:
        return Path.home() / ".cache" / "podium"
    except RuntimeError:
        return Path(tempfile.gettempdir()) / f"podium-{os.getuid()}"


def private_folder(path: Path) -> Path | None:
    """The folder, made where it is missing, if only this user and root can write or replace what is in it.

    Else None: caches that hold code or pickles are neither read from such a folder nor written to it.
    """
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = path.resolve()
        own = path.stat()
        if own.st_uid != os.getuid() or own.st_mode & (stat.S_IWGRP | stat.S_IWOTH) or not os.access(path, os.W_OK):
            return None
        for parent in path.parents:
            facts = parent.stat()
            replaceable = facts.st_mode & stat.S_IWOTH and not facts.st_mode & stat.S_ISVTX
            if facts.st_uid not in (0, os.getuid()) or replaceable:
                return None
    except OSError:
        return None
    return path
