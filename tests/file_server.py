"""A local HTTP server of files in memory, with range requests, and with faults that tests inject."""

import hashlib
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock, Thread


@dataclass(frozen=True)
class Fault:
    """What one answer does wrong."""

    status: int | None = None  # instead of 200 or 206, without a body
    headers: Mapping[str, str] = field(default_factory=dict)  # added, or instead of the right ones
    body: bytes | None = None  # instead of the file
    cut: int | None = None  # close the connection after this many bytes of the body
    stall: float = 0.0  # seconds to wait after `cut` bytes, or before a whole body
    ignore_range: bool = False
    no_length: bool = False  # no Content-Length


class FileServer:
    """Files by URL path; `faults` of a path are used up in their order, one for each GET, those in `always` stay."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.faults: dict[str, list[Fault]] = defaultdict(list)
        self.head_faults: dict[str, list[Fault]] = defaultdict(list)
        self.always: dict[str, Fault] = {}
        self.requests: list[tuple[str, str, str | None]] = []  # method, path, Range
        self.most_at_once = 0  # bodies that waited at the same time
        self.url = ""
        self.lock = Lock()
        self.waiting = 0

    def gets(self, path: str) -> list[str | None]:
        """The Range headers of all GET requests of a path, None where there was none."""
        return [header for method, requested, header in self.requests if (method, requested) == ("GET", path)]


@contextmanager
def serve() -> Iterator[FileServer]:
    """Run a server on a free port of 127.0.0.1 until the end of the block."""
    served = FileServer()

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def do_HEAD(self) -> None:
            self.answer()

        def do_GET(self) -> None:
            with suppress(OSError):  # the client may have closed the connection
                self.answer()

        def answer(self) -> None:
            with served.lock:
                served.requests.append((self.command, self.path, self.headers.get("Range")))
                faults = served.faults if self.command == "GET" else served.head_faults
                queue = faults[self.path]
                fault = queue.pop(0) if queue else served.always.get(self.path, Fault())
            content = served.files.get(self.path)
            if content is None and fault.status is None:
                fault = Fault(status=404)
            self.respond(content or b"", fault)

        def respond(self, content: bytes, fault: Fault) -> None:
            body = content if fault.body is None else fault.body
            etag = f'"{hashlib.md5(body).hexdigest()}"'
            headers = {"ETag": etag}
            status, begin = 200, 0
            wanted = self.headers.get("Range")
            if wanted and not fault.ignore_range and self.headers.get("If-Range", etag) == etag:
                begin = int(wanted.removeprefix("bytes=").removesuffix("-"))
                status = 206 if begin < len(body) else 416
                headers["Content-Range"] = f"bytes {begin}-{len(body) - 1}/{len(body)}"
            if fault.status is not None or status == 416:
                status, body, begin = fault.status or status, b"", 0
            body = body[begin:]
            if not fault.no_length:
                headers["Content-Length"] = str(len(body))
            self.send_response(status)
            for name, value in (headers | fault.headers).items():
                self.send_header(name, value)
            self.end_headers()
            if self.command == "HEAD":
                return
            if fault.cut is not None:
                self.wfile.write(body[: fault.cut])
                body = b""
            if fault.stall:
                self.wait(fault.stall)
            self.wfile.write(body)
            self.close_connection = True

        def wait(self, seconds: float) -> None:
            self.wfile.flush()
            with served.lock:
                served.waiting += 1
                served.most_at_once = max(served.most_at_once, served.waiting)
            time.sleep(seconds)
            with served.lock:
                served.waiting -= 1

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    served.url = f"http://127.0.0.1:{server.server_port}"
    thread = Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield served
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
