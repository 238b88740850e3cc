"""Streaming parser of MLPerf log lines: a file of any size and content to events and anomalies.

As for the official parser, a line ends at LF, CR or CRLF, and its event is what follows the last `:::MLLOG ` in it.
A namespace has no meaning in MLPerf's rules and is not kept.

The JSON of a line is bounded in depth and size. json.loads accepts NaN and Infinity, turns 1e999 into infinity,
keeps the last of two equal keys and reads integers of any length up to Python's own limit. Here such a number
becomes null, the last of two equal keys is used, as by the official tools, and both are reported.
"""

import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from podium.core.errors import UsageError, WorkError

MAX_DEPTH = 32
MAX_VALUES = 10_000
MAX_DIGITS = 20  # of an integer: those of 2^64


def parse(text: str) -> tuple[Any, Sequence[str]]:
    """The value of a JSON text and what is odd about it, as sentence fragments; ValueError with one where refused."""
    opened = text.count("[") + text.count("{")
    if opened + text.count(",") > MAX_VALUES:
        raise ValueError(f"holds more than {MAX_VALUES:,} values")
    try:
        with suppress(_OutOfRangeError):
            value = _PLAIN.decode(text)
            is_flat = opened <= MAX_DEPTH or _depth(value) <= MAX_DEPTH
            if is_flat and text.count('":') + text.count('" :') == _key_count(value):
                return value, ()
        return _parse_odd(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"is no JSON ({error.msg} at character {error.pos:,})") from None
    except RecursionError:
        raise ValueError(f"is nested more than {MAX_DEPTH} deep") from None


class _OutOfRangeError(Exception):
    """A number that the quick way does not take."""


def _int(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise _OutOfRangeError(f"an integer of {len(digits):,} digits")
    return int(digits)


def _float(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise _OutOfRangeError(f"a number that is too great ({digits[:20]})")
    return value


def _constant(name: str) -> float:
    raise _OutOfRangeError(f"{name}, which is no number")


_PLAIN = json.JSONDecoder(parse_int=_int, parse_float=_float, parse_constant=_constant)


def _parse_odd(text: str) -> tuple[Any, Sequence[str]]:
    """The slow way, which tells what is odd."""
    odd: list[str] = []

    def tolerant(parse_number: Callable[[str], Any]) -> Callable[[str], Any]:
        def parse_or_none(digits: str) -> Any:
            try:
                return parse_number(digits)
            except _OutOfRangeError as error:
                odd.append(f"has {error}")
                return None

        return parse_or_none

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        whole = dict(items)
        if len(whole) != len(items):
            names = [name for name, _ in items]
            twice = next(name for name in names if names.count(name) > 1)
            odd.append(f"has the key {twice[:40]!r} {names.count(twice)} times")
        return whole

    decoder = json.JSONDecoder(
        parse_int=tolerant(_int),
        parse_float=tolerant(_float),
        parse_constant=tolerant(_constant),
        object_pairs_hook=pairs,
    )
    value = decoder.decode(text)
    if _depth(value) > MAX_DEPTH:
        raise ValueError(f"is nested more than {MAX_DEPTH} deep")
    return value, odd


def _children(value: Any) -> Sequence[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else ()


def _depth(value: Any) -> int:
    """How many lists and objects are inside one another."""
    depth, level = 0, [value]
    while level := [item for item in level if isinstance(item, dict | list)]:
        depth += 1
        level = [child for item in level for child in _children(item)]
    return depth


def _key_count(value: Any) -> int:
    count, level = 0, [value]
    while level:
        count += sum(len(item) for item in level if isinstance(item, dict))
        level = [child for item in level for child in _children(item) if isinstance(child, dict | list)]
    return count


TOKEN = b":::MLLOG "
NEARLY = b":::ML"  # what a damaged token begins with
MAX_LINE = 1 << 20
CHUNK = 1 << 18
MAX_TIME_MS = 1e15  # before and after 1970: some 30,000 years. A difference of two such times is exact
KINDS = ("POINT_IN_TIME", "INTERVAL_START", "INTERVAL_END")
TOLD = 5  # damaged lines of one kind that are told one by one; the others are counted


class Event(NamedTuple):
    """One line of a log."""

    line: int
    time_ms: float
    kind: str  # POINT_IN_TIME, INTERVAL_START or INTERVAL_END, as logged; "" where none is, as in logs of early rounds
    key: str
    value: Any
    metadata: Mapping[str, Any]


class Oddity(NamedTuple):
    """Something about a line, or about the log as a whole, that a reader should know."""

    line: int  # from 1; of several lines the first; 0 where it is about the whole log
    what: str  # a sentence fragment
    kind: str = ""  # a short name for what it is: a key of HARMLESS or DAMAGED, or named in mllog/read.py


HARMLESS = {
    "crlf": "line(s) end in CR LF",
    "lone_cr": "line(s) end in a lone CR",
    "prefix": "line(s) have something before the token",
    "keyboard": "line(s) have backspaces before the token, as from a keyboard",
}
# Kinds of oddities of single lines, and how several of them are told.
DAMAGED = {
    "long_line": f"line(s) are longer than {MAX_LINE:,} bytes and not read",
    "two_events": "line(s) hold more than one event, of which only the last is read",
    "token": "line(s) have a damaged token",
    "json": "line(s) cannot be read",
    "fields": "line(s) are no events",
    "event": "line(s) are events with odd metadata, or with an odd event_type or none",
    "not_utf8": "line(s) are not UTF-8 and read as Latin-1",
    "odd_json": "line(s) hold numbers or keys that JSON does not have",
    "cut_off": "last line is cut off",
}


def read_lines(path: Path) -> Iterator[Event | Oddity]:
    """The events of a log in their order, and what is odd about its lines.

    Oddities that are harmless or many come last, once a kind. Holds no more than one line and one chunk. Raises
    UsageError where there is no such file, WorkError where it cannot be read.
    """
    try:
        with path.open("rb") as stream:
            yield from parse_stream(stream)
    except (FileNotFoundError, IsADirectoryError):
        raise UsageError(f"{path}: there is no such log; name a result file") from None
    except OSError as error:
        raise WorkError(f"{path}: the log cannot be read ({error.strerror})") from error


def parse_stream(stream: BinaryIO) -> Iterator[Event | Oddity]:
    """As `read_lines`."""
    counts: Counter[str] = Counter()
    first: dict[str, tuple[int, str]] = {}
    for number, content, ending in _split(stream):
        event, odd = _read(content, ending)
        for kind, what in odd:
            counts[kind] += 1
            first.setdefault(kind, (number, what))
            if kind in DAMAGED and counts[kind] <= TOLD:
                yield Oddity(number, what, kind)
        if event is not None:
            yield event._replace(line=number)
    for kind, count in counts.items():
        line, what = first[kind]
        if kind in HARMLESS:
            yield Oddity(line, f"{count:,} {HARMLESS[kind]}{what}", kind)
        elif count > TOLD:
            yield Oddity(line, f"{count:,} {DAMAGED[kind]} in all", kind)


def _split(stream: BinaryIO) -> Iterator[tuple[int, bytes | None, bytes]]:
    """Number, content and ending of each line that may hold a token; None for the content of one that is too long."""
    number, rest, skipping = 1, b"", False
    while chunk := stream.read(CHUNK):
        block, rest = rest + chunk, b""
        if block.endswith(b"\r"):
            block += stream.read(1)  # the \n that may belong to it
        if NEARLY not in block:
            end = max(block.rfind(b"\n"), block.rfind(b"\r")) + 1
            if skipping and end:
                yield number, None, b"\n"
                skipping = False
            number += block.count(b"\n") + block.count(b"\r") - block.count(b"\r\n")
            rest = block[end:]
        else:
            for line in block.splitlines(keepends=True):
                content = line.rstrip(b"\r\n")
                if len(content) == len(line):
                    rest = line
                    break
                if skipping or NEARLY in content:
                    long = skipping or len(content) > MAX_LINE
                    yield number, None if long else content, line[len(content) :]
                number, skipping = number + 1, False
        if skipping or len(rest) > MAX_LINE:
            rest, skipping = b"", True
    if skipping:
        yield number, None, b""
    elif NEARLY in rest:
        yield number, rest, b""


def _read(content: bytes | None, ending: bytes) -> tuple[Event | None, list[tuple[str, str]]]:
    """The event of a line, and the kinds of its oddities with what is said of each."""
    if content is None:
        return None, [("long_line", f"is longer than {MAX_LINE:,} bytes and not read")]
    before, token, after = content.rpartition(TOKEN)
    if not token:
        return None, [("token", f"has a damaged token in place of {TOKEN.decode().strip()!r}")]
    odd: list[tuple[str, str]] = []
    if ending == b"\r\n":
        odd.append(("crlf", ""))
    elif ending == b"\r":
        odd.append(("lone_cr", ""))
    if before:
        if TOKEN in before:
            odd.append(("two_events", "holds more than one event, of which only the last is read"))
        elif b"\b" in before:
            odd.append(("keyboard", ""))
        elif before.strip():
            odd.append(("prefix", f", such as {before.decode('latin-1')[:20]!r}"))
    try:
        text = after.decode("utf-8")
    except UnicodeDecodeError:
        text = after.decode("latin-1")
        odd.append(("not_utf8", "is not UTF-8 and read as Latin-1"))
    try:
        fields, odd_json = parse(text.rstrip())
    except ValueError as error:
        cut = not ending and "no JSON" in str(error)
        odd.append(("cut_off", "is the last one and cut off") if cut else ("json", str(error)))
        return None, odd
    odd.extend(("odd_json", what) for what in odd_json)
    event, wrong = _event(fields)
    if wrong:
        odd.append(("fields" if event is None else "event", wrong))
    return event, odd


def _event(fields: Any) -> tuple[Event | None, str]:
    """The event that a JSON value is, or None, and what is wrong with it."""
    if not isinstance(fields, dict):
        return None, "is no JSON object"
    missing = [name for name in ("time_ms", "key", "value", "metadata") if name not in fields]
    if missing:
        return None, f"has no {' and no '.join(missing)}"
    time_ms, key, metadata = fields["time_ms"], fields["key"], fields["metadata"]
    if isinstance(time_ms, bool) or not isinstance(time_ms, int | float):
        return None, f"has the time_ms {str(time_ms)[:40]!r}, which is no number"
    if abs(time_ms) > MAX_TIME_MS:
        return None, f"has the time_ms {time_ms:g}, which is no time"
    if not isinstance(key, str):
        return None, f"has the key {str(key)[:40]!r}, which is no text"
    wrong = ""
    if not isinstance(metadata, dict):
        wrong, metadata = f"has the metadata {str(metadata)[:40]!r}, which is no object", {}
    elif "event_type" not in fields:
        wrong = "has no event_type"
    elif fields["event_type"] not in KINDS:
        wrong = f"has the event_type {str(fields['event_type'])[:40]!r}; allowed are {', '.join(KINDS)}"
    kind = fields["event_type"] if isinstance(fields.get("event_type"), str) else ""
    return Event(0, float(time_ms), kind, key, fields["value"], metadata), wrong
