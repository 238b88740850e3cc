"""HTTP downloads to files: resumed by range requests, retried after failures, bounded, and verified by MD5.

Proxies are those of the environment (HTTPS_PROXY, NO_PROXY). Servers are not trusted: sizes, redirects, waiting times
and answers to range requests are checked.
"""

import hashlib
import json
import os
import random
import ssl
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from http.client import HTTPException
from pathlib import Path
from threading import Event, Lock, Thread
from typing import Any, TypeVar
from urllib.error import HTTPError, URLError
from urllib.parse import quote, urljoin, urlsplit
from urllib.request import (
    HTTPDefaultErrorHandler,
    HTTPErrorProcessor,
    HTTPHandler,
    HTTPSHandler,
    OpenerDirector,
    ProxyHandler,
    Request,
)

from podium.core.errors import Interrupted, PodiumError, UsageError, WorkError
from podium.core.files import open_regular, read_bounded, write_atomically, write_error
from podium.core.text import one_line, short_repr

T = TypeVar("T")

MAX_REDIRECTS = 5
MAX_URL_CHARACTERS = 4_000
MAX_FILE_BYTES = 2**60
MAX_STATE_BYTES = 16_384
BLOCK_BYTES = 2**20  # received or hashed at a time, at most
# Received in one connection, this resets the number of failures: a long download survives many broken connections, but
# not forever a server that sends a few bytes at a time.
PROGRESS_BYTES = 16 * 2**20
FIRST_DELAY, MAX_DELAY, MAX_RETRY_AFTER = 1.0, 60.0, 300.0  # seconds
JOIN_SECONDS = 0.5  # that interrupted threads get to end; their files are resumable at any point
POLL_SECONDS = 0.1
REDIRECTS = frozenset((301, 302, 303, 307, 308))
TRANSIENT = frozenset((408, 425, 429))  # and all 5xx
LOGIN_HOST = ".cloudflareaccess.com"  # Cloudflare Access redirects to it for storage that requires a login


@dataclass(frozen=True)
class RemoteFile:
    """A file on a server: its URL, size in bytes, and strong ETag if it has one."""

    url: str
    size: int
    etag: str | None


@dataclass(frozen=True)
class Download:
    """A file to download: from where, its MD5, the path of the finished file and that of the unfinished one."""

    remote: RemoteFile
    md5: str
    target: Path
    partial: Path
    overwrite: bool = False  # whether to replace a file that exists at the target

    @property
    def state(self) -> Path:
        """File that names what the unfinished file is a part of."""
        return self.partial.with_suffix(".json")

    def resumable_bytes(self) -> int:
        """Size of the unfinished file in bytes, 0 if there is none or it is a part of another file."""
        try:
            stored = json.loads(read_bounded(self.state, MAX_STATE_BYTES))
            with open_regular(self.partial) as file:
                size = os.fstat(file.fileno()).st_size
        except (OSError, ValueError, RecursionError):
            return 0
        return size if stored == self._identity() and size <= self.remote.size else 0

    def write_state(self) -> None:
        """Record what the unfinished file is a part of, so that a later process can resume it."""
        write_atomically(self.state, json.dumps(self._identity()))

    def _identity(self) -> dict[str, Any]:
        remote = self.remote
        return {"url": remote.url, "size": remote.size, "etag": remote.etag, "md5": self.md5}


class _TransientError(Exception):
    """A failed attempt that may succeed later, with the reason."""

    def __init__(self, reason: str, delay: float | None = None, received: int = 0) -> None:
        super().__init__(reason)
        self.delay = delay  # seconds that the server requires
        self.received = received  # bytes


@dataclass
class HttpClient:
    """Requests with timeouts, retries and bounded redirects; `stopped` makes all of them end early.

    `insecure` allows URLs and redirects with http:// besides https://. `report` is called with a line for each retry.
    """

    timeout: float = 60.0  # seconds without a byte after which a connection counts as broken
    retries: int = 5  # after a failure; of a download, without progress in between
    insecure: bool = False
    report: Callable[[str], None] = lambda _: None
    first_delay: float = FIRST_DELAY  # seconds; doubled after each failure
    stopped: Event = field(default_factory=Event)

    def __post_init__(self) -> None:
        # Without what urllib's own opener has: handlers for file:, ftp: and data:, and redirects, whose bodies it reads
        # without a limit.
        self._opener = OpenerDirector()
        handlers = (HTTPHandler(), HTTPSHandler(context=ssl.create_default_context()))
        for handler in (ProxyHandler(), *handlers, HTTPDefaultErrorHandler(), HTTPErrorProcessor()):
            self._opener.add_handler(handler)
        self._opener.addheaders = [("User-Agent", "podium"), ("Accept-Encoding", "identity")]

    def read(self, url: str, largest: int) -> bytes:
        """Return the content of a small file, at most `largest` bytes. Raises WorkError if it cannot be read."""
        return self._retry(url, lambda: self._read(url, largest))

    def describe(self, url: str) -> RemoteFile:
        """Return size and ETag of a file, by a HEAD request. Raises WorkError if the server does not state a size."""
        return self._retry(url, lambda: self._describe(url))

    def download(self, wanted: Download, on_bytes: Callable[[int], None] = lambda _: None) -> None:
        """Download a file, verify its MD5 and rename it to its target; resumes what an earlier call left.

        A file with another MD5 is removed and downloaded once more. `on_bytes` is called with the number of bytes
        received, found in the unfinished file, or, negative, discarded.

        Raises WorkError after the last retry, for a wrong MD5, an unusable answer and a full disk.
        """
        with _PartialFile(wanted, on_bytes, self.stopped) as partial:
            found = ""
            for _ in range(2):
                self._retry(wanted.remote.url, lambda: self._receive(wanted.remote, partial))
                found = partial.digest()
                if found == wanted.md5:
                    partial.finish()
                    return
                partial.restart()
                self.report(f"{wanted.target}: its MD5 is {found} and not {wanted.md5}; it was removed")
        partial.remove()
        raise WorkError(
            f"{wanted.target}: downloaded twice from {wanted.remote.url}, and its MD5 is {found}, not {wanted.md5} as "
            "listed; nothing was kept: the file or the list on the server is damaged or was just changed, or a proxy "
            "alters it. Try again later"
        )

    def _read(self, url: str, largest: int) -> bytes:
        with self._request(url) as response:
            stated = _content_length(url, response)
            content = bytearray()
            while block := self._read_block(response, largest + 1 - len(content)):
                content += block
        if len(content) > largest:
            raise WorkError(f"{url}: has more than {largest:,} bytes, which is not a file of this kind; check the URL")
        if stated is not None and len(content) != stated:
            raise _TransientError(f"the connection ended after {len(content):,} of {stated:,} bytes")
        return bytes(content)

    def _describe(self, url: str) -> RemoteFile:
        with self._request(url, method="HEAD") as response:
            size = _content_length(url, response)
            etag = response.headers.get("ETag", "")
        if size is None:
            raise WorkError(f"{url}: the server does not state the size of the file (Content-Length); use another one")
        # A weak ETag (W/"…") does not promise equal bytes and must not be used in If-Range (RFC 9110, 13.1.5).
        strong = etag.startswith('"') and etag.endswith('"') and 2 < len(etag) < 300 and etag.isascii()
        return RemoteFile(url, size, etag if strong and etag.isprintable() else None)

    def _receive(self, remote: RemoteFile, partial: "_PartialFile") -> None:
        """Append the missing bytes of a file in one connection."""
        begin = partial.size
        if begin == remote.size:
            return
        headers = {}
        if begin:
            headers["Range"] = f"bytes={begin}-"
            if remote.etag:
                headers["If-Range"] = remote.etag
        try:
            answer = self._request(remote.url, headers)
        except _RangeError:
            partial.restart()
            raise
        with answer as response:
            self._check_answer(remote, partial, response)
            begin = partial.size
            while partial.size < remote.size:
                try:
                    block = self._read_block(response, min(BLOCK_BYTES, remote.size - partial.size))
                except _TransientError as error:
                    raise _TransientError(str(error), received=partial.size - begin) from None
                if not block:
                    reason = f"the connection ended after {partial.size:,} of {remote.size:,} bytes"
                    raise _TransientError(reason, received=partial.size - begin)
                partial.append(block)

    def _check_answer(self, remote: RemoteFile, partial: "_PartialFile", response: Any) -> None:
        """Check that an answer continues the unfinished file; if it is the whole file, begin again."""
        coding = response.headers.get("Content-Encoding", "identity")
        if coding != "identity":
            raise WorkError(f"{remote.url}: is sent with Content-Encoding {short_repr(coding)}, allowed is identity")
        if response.status == 200:
            if partial.size:
                self.report(f"{remote.url}: the server sends the whole file again, not the rest of it")
                partial.restart()
            stated = _content_length(remote.url, response)
            if stated is not None and stated != remote.size:
                raise WorkError(
                    f"{remote.url}: has {stated:,} bytes, and had {remote.size:,} when the download was planned; it "
                    "was changed: run the same command again"
                )
            return
        expected = f"bytes {partial.size}-{remote.size - 1}/{remote.size}"
        found = response.headers.get("Content-Range", "none") if response.status == 206 else f"HTTP {response.status}"
        if found.strip() != expected or not partial.size:
            partial.restart()
            raise _TransientError(f"the answer to a request for a range is {short_repr(found)}, not {expected!r}")

    def _request(self, url: str, headers: Mapping[str, str] | None = None, method: str = "GET") -> Any:
        """Send a request, follow redirects, and return the response, with a status of 2xx or 416.

        Raises _TransientError where a retry may help, WorkError elsewhere.
        """
        at = url
        for _ in range(MAX_REDIRECTS + 1):
            if self.stopped.is_set():
                raise Interrupted("interrupted")
            try:
                request = Request(at, headers=dict(headers or {}), method=method)  # noqa: S310 — see `url_problem`
                return self._opener.open(request, timeout=self.timeout)
            except HTTPError as error:
                with error:
                    if error.code == 416:
                        raise _RangeError from None
                    if error.code not in REDIRECTS:
                        raise _status_error(url, error) from None
                    at = self._redirected(url, at, error.headers.get("Location", ""))
            except URLError as error:
                raise _connection_error(url, error.reason) from None
            except (OSError, HTTPException) as error:
                raise _connection_error(url, error) from None
        raise WorkError(f"{url}: more than {MAX_REDIRECTS} redirects; check the URL")

    def _redirected(self, url: str, at: str, location: str) -> str:
        """The URL that a redirect leads to. Raises WorkError unless it may be followed."""
        try:
            target = urljoin(at, location) if location else ""
            host = urlsplit(target).hostname or ""
            problem = url_problem(target, self.insecure and urlsplit(at).scheme == "http", query=True)
        except ValueError:
            target, host, problem = "", "", "it is not a URL"
        if f".{host}".endswith(LOGIN_HOST):
            raise WorkError(
                f"{url}: this storage requires a login (it redirects to Cloudflare Access); Podium reads public "
                "storage only: use MLCommons' r2-downloader"
            )
        if problem:
            raise WorkError(f"{url}: redirects to {short_repr(location)}, which is not followed: {problem}")
        return target

    def _read_block(self, response: Any, most: int) -> bytes:
        if self.stopped.is_set():
            raise Interrupted("interrupted")
        try:
            # read1 returns what has arrived: bytes received before the connection breaks are kept.
            return bytes(response.read1(most)) if most > 0 else b""
        except (OSError, HTTPException) as error:
            raise _TransientError(_reason(error)) from None

    def _retry(self, url: str, work: Callable[[], T]) -> T:
        failures = 0
        while True:
            try:
                return work()
            except _TransientError as error:
                failures = 1 if error.received >= PROGRESS_BYTES else failures + 1
                if failures > self.retries:
                    raise WorkError(
                        f"{url}: {error}, after {failures} attempts; check the connection, and run the same command "
                        "again"
                    ) from None
                delay = min(MAX_DELAY, self.first_delay * 2 ** (failures - 1)) * random.uniform(0.75, 1.25)
                delay = max(delay, error.delay or 0.0)
                self.report(f"{url}: {error}; retry {failures} of {self.retries} in {delay:.0f} s")
            if self.stopped.wait(delay):
                raise Interrupted("interrupted")


class _RangeError(_TransientError):
    """The server cannot send the range that was requested."""

    def __init__(self) -> None:
        super().__init__("the server has no such range (HTTP 416)")


class _DiskError(WorkError):
    """The disk cannot be written, which concerns all files."""


class _PartialFile:
    """An unfinished file on the disk, open for appending, with the MD5 of its bytes."""

    def __init__(self, wanted: Download, on_bytes: Callable[[int], None], stopped: Event) -> None:
        self._wanted, self._on_bytes, self._stopped = wanted, on_bytes, stopped
        self.size = 0
        self._md5 = hashlib.md5(usedforsecurity=False)
        self._descriptor = -1

    def __enter__(self) -> "_PartialFile":
        path = self._wanted.partial
        there = self._wanted.resumable_bytes()
        try:
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
            if not there:
                os.ftruncate(self._descriptor, 0)
                self._wanted.write_state()
            while self.size < there:
                if self._stopped.is_set():
                    raise Interrupted("interrupted")
                block = os.read(self._descriptor, min(BLOCK_BYTES, there - self.size))
                if not block:
                    break
                self._count(block)
        except OSError as error:
            self.__exit__()
            raise _DiskError(str(write_error(path, error))) from None
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def append(self, block: bytes) -> None:
        """Write further bytes. Raises WorkError if they cannot be written, as on a full disk."""
        rest = memoryview(block)
        try:
            while rest:  # a write may be partial
                rest = rest[os.write(self._descriptor, rest) :]
        except OSError as error:
            raise _DiskError(str(write_error(self._wanted.partial, error))) from None
        self._count(block)

    def restart(self) -> None:
        """Discard all bytes."""
        try:
            os.ftruncate(self._descriptor, 0)
            os.lseek(self._descriptor, 0, os.SEEK_SET)
        except OSError as error:
            raise _DiskError(str(write_error(self._wanted.partial, error))) from None
        self._on_bytes(-self.size)
        self.size, self._md5 = 0, hashlib.md5(usedforsecurity=False)

    def digest(self) -> str:
        """MD5 of all bytes, in hexadecimal."""
        return self._md5.hexdigest()

    def finish(self) -> None:
        """Sync the file to the disk, rename it to its target and remove the state."""
        if os.path.lexists(self._wanted.target) and not self._wanted.overwrite:
            raise WorkError(f"{self._wanted.target}: another process created it during the download; remove it")
        try:
            os.fsync(self._descriptor)
            self._wanted.partial.replace(self._wanted.target)
        except OSError as error:
            raise _DiskError(str(write_error(self._wanted.target, error))) from None
        with suppress(OSError):
            self._wanted.state.unlink()

    def remove(self) -> None:
        """Remove the file and its state."""
        for path in (self._wanted.partial, self._wanted.state):
            with suppress(OSError):
                path.unlink()

    def _count(self, block: bytes) -> None:
        self._md5.update(block)
        self.size += len(block)
        self._on_bytes(len(block))


def download_all(
    client: HttpClient, wanted: Sequence[Download], jobs: int, on_bytes: Callable[[int], None] = lambda _: None
) -> list[PodiumError]:
    """Download files over up to `jobs` connections, and return the errors of those that failed.

    After a full disk, and after an interruption, no further file is begun. `on_bytes` is called in this thread.
    """
    waiting, errors, defects, received = deque(wanted), list[PodiumError](), list[BaseException](), 0
    lock = Lock()

    def count(number: int) -> None:
        nonlocal received
        with lock:
            received += number

    def work() -> None:
        while not client.stopped.is_set():
            try:
                one = waiting.popleft()
            except IndexError:
                return
            try:
                client.download(one, count)
            except Interrupted:
                return
            except PodiumError as error:
                with lock:
                    errors.append(error)
                if isinstance(error, _DiskError):
                    waiting.clear()
            except BaseException as error:  # noqa: BLE001 — raised again below, in the thread of the caller
                defects.append(error)
                return

    # Daemons, which do not delay the exit of an interrupted process: a thread may be waiting for a byte until the
    # timeout. What it has written by then is resumable.
    threads = [Thread(target=work, daemon=True) for _ in range(min(jobs, len(wanted)))]
    try:
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            for thread in threads:
                thread.join(POLL_SECONDS / len(threads))
            with lock:
                number, received = received, 0
            on_bytes(number)
    except BaseException:
        client.stopped.set()
        end = time.monotonic() + JOIN_SECONDS
        for thread in threads:
            if thread.ident is not None:
                thread.join(max(0.0, end - time.monotonic()))
        raise
    on_bytes(received)
    for defect in defects:
        raise defect
    return errors


def url_problem(url: str, insecure: bool = False, query: bool = False) -> str:
    """The reason why a URL is not used, or an empty string; `insecure` allows http://, `query` a query string."""
    schemes = ("https", "http") if insecure else ("https",)
    if not url.isascii() or not url.isprintable() or " " in url or "\\" in url:
        return "it has characters that are not allowed in a URL"
    if len(url) > MAX_URL_CHARACTERS:
        return f"it has more than {MAX_URL_CHARACTERS:,} characters"
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as error:
        return f"it is not a URL ({error})"
    if parts.scheme not in schemes or not parts.hostname:
        return f"allowed is {' or '.join(f'{scheme}://HOST/PATH' for scheme in schemes)}"
    if parts.username is not None or parts.password is not None:
        return "it contains a user name or a password"
    if parts.fragment or (parts.query and not query):
        return "it has a query or a fragment"
    return ""


def require_url(url: str, where: str, insecure: bool = False) -> str:
    """Return a URL without slashes at its end. Raises UsageError, which names `where`, if it cannot be used."""
    if problem := url_problem(url, insecure):
        raise UsageError(f"{where}: found {short_repr(url)}, which cannot be used: {problem}")
    return url.rstrip("/")


def join_url(base: str, path: str) -> str:
    """URL of a file below a base URL; special characters of the path are percent-encoded."""
    return f"{base}/{quote(path, safe='/')}"


def _content_length(url: str, response: Any) -> int | None:
    """Bytes of the body as the header states them, None without the header. Raises WorkError for an invalid number."""
    stated = response.headers.get("Content-Length")
    if stated is None:
        return None
    text = stated.strip()
    if not (text.isascii() and text.isdecimal() and len(text) < 20 and int(text) <= MAX_FILE_BYTES):
        raise WorkError(f"{url}: the server states a size of {short_repr(stated)} bytes, which cannot be right")
    return int(text)


def _status_error(url: str, error: HTTPError) -> Exception:
    status = f"HTTP {error.code}"
    if error.code in TRANSIENT or error.code >= 500:
        return _TransientError(f"the server answered {status}", _retry_after(error.headers.get("Retry-After", "")))
    if error.code in (401, 403):
        return WorkError(f"{url}: the server refuses access ({status}); check the URL, and the proxy if any")
    return WorkError(f"{url}: the server does not have this file ({status}); check the URL")


def _retry_after(stated: str) -> float | None:
    """Seconds of a Retry-After header, a number or a date, at most MAX_RETRY_AFTER; None without a valid one."""
    text = stated.strip()
    if text.isascii() and text.isdecimal():
        return min(MAX_RETRY_AFTER, float(text[:9]))
    try:
        seconds = parsedate_to_datetime(text).timestamp() - time.time()
    except (ValueError, TypeError, OverflowError, OSError):
        return None
    return min(MAX_RETRY_AFTER, max(0.0, seconds))


def _connection_error(url: str, error: object) -> Exception:
    if isinstance(error, ssl.SSLCertVerificationError):
        return WorkError(
            f"{url}: the server's certificate is not valid ({error.verify_message}); check the clock of this machine, "
            "and SSL_CERT_FILE if a proxy has its own certificates"
        )
    return _TransientError(_reason(error))


def _reason(error: object) -> str:
    if isinstance(error, TimeoutError):
        return "no answer within the timeout"
    why = error.strerror if isinstance(error, OSError) else None
    return f"the connection failed ({why or one_line(str(error)) or type(error).__name__})"
