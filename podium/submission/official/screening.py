"""What the official tools must not be given, since it would hold them up or break them: found before they start."""

from collections.abc import Iterator
from pathlib import Path

from benchmarks.finding import Finding

TOKEN = b":::MLLOG"
MAX_LINE_BYTES = 1 << 20
MAX_EVENT_BYTES = 16 << 10
"""Of a line that holds an event: published ones have up to 377 bytes, and the official parser's regular expression
takes time by the square of a line's length: 0.2 s for this many bytes, ten minutes for a MiB."""
MAX_DEPTH = 100
"""Brackets within brackets: Python's JSON recurses, and stops at about a thousand."""
MAX_DESCRIPTION_BYTES = 1 << 20

_OPENING, _CLOSING = b"[{", b"]}"


def screen_log(path: Path, shown_path: str) -> Finding | None:
    """The first thing in a log that keeps the official tools from reading it; None where they may."""
    for number, line in _lines(path):
        message = None
        if len(line) > MAX_LINE_BYTES:
            message = f"this line has more than {MAX_LINE_BYTES:,} bytes; see what was written into the log here"
        elif TOKEN in line and len(line) > MAX_EVENT_BYTES:
            message = f"this event has {len(line):,} bytes and may have {MAX_EVENT_BYTES:,}; shorten its value"
        elif TOKEN in line and is_deep(line):
            message = f"this event has more than {MAX_DEPTH} brackets within brackets; log a flat value"
        if message is not None:
            return Finding.error(
                shown_path, "unsafe_log", message + "; the official tools were not run on it", line=number
            )
    return None


def screen_description(path: Path, shown_path: str) -> Finding | None:
    """What in a system's JSON keeps the official tools from reading it; None where they may."""
    size = path.stat().st_size
    if size > MAX_DESCRIPTION_BYTES:
        message = f"has {size:,} bytes and may have {MAX_DESCRIPTION_BYTES:,}"
    elif is_deep(path.read_bytes()):
        message = f"has more than {MAX_DEPTH} brackets within brackets"
    else:
        return None
    advice = "; the official tools were not run on it: write a flat object of strings"
    return Finding.error(shown_path, "unsafe_description", message + advice)


def is_deep(text: bytes) -> bool:
    """Whether JSON has more than MAX_DEPTH brackets open at once; brackets in strings may count too."""
    if sum(text.count(bracket) for bracket in (b"[", b"{")) <= MAX_DEPTH:
        return False
    depth = 0
    for byte in text:
        if byte in _OPENING:
            depth += 1
            if depth > MAX_DEPTH:
                return True
        elif byte in _CLOSING:
            depth = max(depth - 1, 0)
    return False


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Lines from 1, ended as Python's universal newlines have it; a longer one than MAX_LINE_BYTES ends it."""
    number = 0
    with path.open("rb") as file:
        rest = b""
        while piece := file.read(MAX_LINE_BYTES):
            rest += piece
            if rest.endswith(b"\r"):
                rest += file.read(1)
            *whole, rest = rest.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
            for line in whole:
                number += 1
                yield number, line
            if len(rest) > MAX_LINE_BYTES:
                yield number + 1, rest
                return
    if rest:
        yield number + 1, rest
