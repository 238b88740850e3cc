"""Atomic file writes, safe reads of untrusted files, digests, private folders, and the limit on open files."""

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

PARTIAL_SUFFIX = ".partial"
OTHER_OPEN_FILES = 256  # open files of a process besides the shards of a store


@contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """Write a file atomically: yield a temporary path, which is renamed to `path` after the block and an fsync.

    The temporary file is removed if the block fails. Raises WorkError if it cannot be written, as on a full disk, and
    if `path` is a folder, or a device or a pipe, which a file must not replace.
    """
    if _is_special(path):
        raise WorkError(f"{path}: is a device or a pipe, which a file must not replace; choose another path")
    if path.is_dir() and not path.is_symlink():
        raise WorkError(f"{path}: a folder exists at this path; remove it, or choose another path")
    # In the same folder, since a rename is atomic within one file system only. Hidden and with a random part, so that
    # processes that write the same file do not share a temporary one.
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}{PARTIAL_SUFFIX}")
    try:
        yield temporary
        # Before the rename: otherwise the name could refer to an empty file after a power failure.
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        advice = "check that the folder exists, is writable and has free space"
        raise WorkError(f"{path}: cannot be written ({error.strerror or error}); {advice}") from error
    finally:
        with suppress(OSError):
            temporary.unlink()


def write_atomically(path: Path, content: bytes | str) -> None:
    """Write a file atomically, as `atomic_file` does, or directly to a device or a pipe; text is encoded as UTF-8."""
    whole = content.encode("utf-8") if isinstance(content, str) else content
    if _is_special(path):
        try:
            path.write_bytes(whole)
        except OSError as error:
            raise write_error(path, error) from error
        return
    with atomic_file(path) as temporary, temporary.open("xb") as file:
        file.write(whole)


def write_if_changed(path: Path, content: bytes | str) -> None:
    """Write a file atomically unless it already has this content, in which case it may be read-only.

    Text is encoded as UTF-8. Raises WorkError as `atomic_file` does.
    """
    whole = content.encode("utf-8") if isinstance(content, str) else content
    try:
        with open_regular(path) as file:
            if os.fstat(file.fileno()).st_size == len(whole) and file.read() == whole:
                return
    except OSError:
        pass
    with atomic_file(path) as temporary, temporary.open("xb") as file:
        file.write(whole)


def _is_special(path: Path) -> bool:
    """Whether the path exists and is neither a file nor a folder."""
    return path.exists() and not path.is_file() and not path.is_dir()


def remove_partial_files(path: Path) -> None:
    """Remove temporary files that killed processes left behind while they were writing this file."""
    for temporary in path.parent.glob(f".{glob.escape(path.name)}.*{PARTIAL_SUFFIX}"):
        temporary.unlink(missing_ok=True)


def make_folder(folder: Path) -> Path:
    """Create a folder and its parents, and return it.

    Raises UsageError if a file exists at the path or at a parent, WorkError if the folder cannot be created.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise _file_in_the_way(folder) from None
    except OSError as error:
        raise WorkError(
            f"{folder}: the folder cannot be created ({error.strerror}); check the permissions of its parent"
        ) from error
    return folder


def require_folder_or_no_file(folder: Path) -> None:
    """Raise UsageError if a file exists at the path of a folder or of a parent, as `make_folder`; create nothing."""
    existing = next((path for path in (folder, *folder.parents) if path.exists()), folder)
    if existing.exists() and not existing.is_dir():
        raise _file_in_the_way(folder)


def _file_in_the_way(folder: Path) -> UsageError:
    return UsageError(
        f"{folder}: the folder cannot be created, since a file exists at this path or above it; choose another path"
    )


def make_named_folder(folder: Path) -> Path:
    """Create a folder that an option of the command names, as `make_folder`. UsageError if it cannot be created."""
    try:
        return make_folder(folder)
    except WorkError as error:
        raise UsageError(str(error)) from None


def open_regular(path: Path) -> BufferedReader:
    """Open a regular file for binary reading; OSError for anything else. Does not block on a pipe without a writer."""
    # Opened first and examined through the descriptor: the file could be replaced between a stat and an open.
    # O_NONBLOCK keeps open(2) of a pipe from waiting for a writer.
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
    """Return the content of a regular file; OSError if it is longer than `largest` bytes or cannot be read."""
    with open_regular(path) as file:
        content = file.read(largest + 1)
    if len(content) > largest:
        raise OSError(errno.EFBIG, f"it has more than {largest:,} bytes", str(path))
    return content


def require_readable(files: Sequence[Path], kind: str) -> None:
    """Raise UsageError unless all are regular files that can be opened; the message names the `kind`: `text file`."""
    for file in files:
        try:
            open_regular(file).close()
        except FileNotFoundError:
            raise UsageError(f"{file}: there is no such {kind}") from None
        except IsADirectoryError:
            raise UsageError(f"{file}: this is a folder; give the {kind}s in it") from None
        except OSError as error:
            raise UsageError(f"{file}: the {kind} cannot be read ({error.strerror})") from error


def write_error(path: Path, error: OSError) -> WorkError:
    """Return the WorkError for a file or a folder that cannot be written; a full disk gets a separate message."""
    why = error.strerror or str(error)
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return WorkError(f"{path}: the disk is full ({why}); free some space on it")
    return WorkError(f"{path}: cannot be written ({why}); check its permissions")


def require_disk_space(folder: Path) -> None:
    """Raise WorkError unless a 64 KiB probe file can be written to the folder; the probe is removed."""
    probe = folder / f".room.{secrets.token_hex(4)}{PARTIAL_SUFFIX}"
    try:
        with probe.open("xb") as file:
            file.write(bytes(65536))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise write_error(folder, error) from None
    finally:
        with suppress(OSError):
            probe.unlink()


def has_md5(path: Path, size: int, md5: str) -> bool:
    """Whether a file has this size in bytes and this MD5 digest; WorkError if it cannot be read."""
    try:
        with open_regular(path) as file:
            same_size = os.fstat(file.fileno()).st_size == size
            return (
                same_size and hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest() == md5
            )
    except OSError as error:
        raise WorkError(f"{path}: cannot be read ({error.strerror})") from error


def sha256_of(path: Path) -> str:
    """SHA-256 of a file's content, in hexadecimal. Raises WorkError if it cannot be read."""
    try:
        with open_regular(path) as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise WorkError(f"{path}: cannot be read ({error.strerror})") from error


def raise_open_file_limit(count: int) -> None:
    """Raise the soft limit on open files (RLIMIT_NOFILE) so that `count` files can be open, up to the hard limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count + OTHER_OPEN_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(
            resource.RLIMIT_NOFILE, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard)
        )


def user_cache_folder() -> Path:
    """Podium's folder in the user's cache directory, by the XDG base directory specification.

    For a user without a home, as under an arbitrary user ID in a container, it is in the temporary folder.
    """
    base = os.environ.get("XDG_CACHE_HOME", "")
    if Path(base).is_absolute():
        return Path(base) / "podium"
    try:
        return Path.home() / ".cache" / "podium"
    except RuntimeError:
        return Path(tempfile.gettempdir()) / f"podium-{os.getuid()}"


def private_folder(path: Path) -> Path | None:
    """Create the folder if it is missing, and return its resolved path if only this user and root can change it.

    Otherwise None: caches of code or pickles must not be read from a folder where another user can plant files.
    """
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = path.resolve()
        status = path.stat()
        if (
            status.st_uid != os.getuid()
            or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
            or not os.access(path, os.W_OK)
        ):
            return None
        # A user who can write to a parent can replace the folder by renaming, unless the sticky bit forbids it (/tmp).
        for parent in path.parents:
            status = parent.stat()
            replaceable = status.st_mode & stat.S_IWOTH and not status.st_mode & stat.S_ISVTX
            if status.st_uid not in (0, os.getuid()) or replaceable:
                return None
    except OSError:
        return None
    return path
