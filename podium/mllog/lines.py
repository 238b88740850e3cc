"""Streaming parser of MLPerf log lines: yields events and anomalies from a file of any size and content.

As in the official parser, a line ends at LF, CR or CRLF, and its event is what follows the last `:::MLLOG ` in it.
The namespace has no meaning in MLPerf's rules and is dropped.

The JSON of a line is bounded in depth and size. json.loads accepts NaN and Infinity, turns 1e999 into infinity,
keeps the last of two equal keys and reads integers of any length up to Python's limit. This parser turns such a number
into null, uses the last of two equal keys, as the official tools do, and reports both.
"""

import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from podium.core.errors import UsageError, WorkError
from podium.mllog.anomaly_kinds import DAMAGED, KINDS

MAX_DEPTH = 32
MAX_VALUES = 10_000
MAX_DIGITS = 20  # of an integer, as 2^64 has


def parse_bounded_json(text: str) -> tuple[Any, Sequence[str]]:
    """Parse a JSON text of bounded size and depth.

    Returns the value and its anomalies as sentence fragments. Raises ValueError with such a fragment for invalid JSON.
    """
    # Cheap upper bounds from the text alone, before the decoder allocates anything.
    opened = text.count("[") + text.count("{")
    if len(text) > MAX_VALUES and opened + text.count(",") > MAX_VALUES:
        raise ValueError(f"has more than {MAX_VALUES:,} values")
    try:
        with suppress(_OutOfRangeError):
            value = _decode(text)
            is_flat = opened <= MAX_DEPTH or _nesting_depth(value) <= MAX_DEPTH
            # Fewer keys in the value than in the text: a duplicate, or `":` within a string.
            if is_flat and text.count('":') + text.count('" :') == _key_count(value):
                return value, ()
        return _parse_lenient(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"is not valid JSON ({error.msg} at character {error.pos:,})") from None
    except RecursionError:
        raise ValueError(f"is nested more than {MAX_DEPTH} deep") from None


class _OutOfRangeError(Exception):
    """A number that the strict decoder rejects."""


def _parse_int(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise _OutOfRangeError(f"an integer of {len(digits):,} digits")
    return int(digits)


def _parse_float(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise _OutOfRangeError(f"a number that is too large ({digits[:20]})")
    return value


def _reject_constant(name: str) -> float:
    raise _OutOfRangeError(f"{name}, which is not a JSON number")


_DECODER: Any = json.JSONDecoder()  # Any: its annotations lack scan_once
_MAX_INT = 10**MAX_DIGITS


def _decode(text: str) -> Any:
    """Parse JSON, without looking at its numbers: see `_key_count`."""
    try:
        if text.startswith("{"):
            with suppress(StopIteration):  # which decode() turns into an error with a message
                value, end = _DECODER.scan_once(text, 0)  # what decode() does, without its search for white space
                if end == len(text):
                    return value
        return _DECODER.decode(text)
    except json.JSONDecodeError:
        raise
    except ValueError:  # an integer with more digits than Python converts
        raise _OutOfRangeError from None


def _parse_lenient(text: str) -> tuple[Any, Sequence[str]]:
    """Parse JSON with numbers out of range or duplicate keys; return the value and these anomalies."""
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
        merged = dict(items)
        if len(merged) != len(items):
            names = [name for name, _ in items]
            duplicate = next(name for name in names if names.count(name) > 1)
            odd.append(f"has the key {duplicate[:40]!r} {names.count(duplicate)} times")
        return merged

    decoder = json.JSONDecoder(
        parse_int=tolerant(_parse_int),
        parse_float=tolerant(_parse_float),
        parse_constant=tolerant(_reject_constant),
        object_pairs_hook=pairs,
    )
    value = decoder.decode(text)
    if _nesting_depth(value) > MAX_DEPTH:
        raise ValueError(f"is nested more than {MAX_DEPTH} deep")
    return value, odd


def _children(value: Any) -> Sequence[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else ()


def _nesting_depth(value: Any) -> int:
    """Number of levels of nested lists and objects."""
    # Level by level, not recursively: the depth of the input must not become that of the Python stack.
    depth, level = 0, [value]
    while level := [item for item in level if isinstance(item, dict | list)]:
        depth += 1
        level = [child for item in level for child in _children(item)]
    return depth


def _key_count(value: Any) -> int:
    """Number of keys in a value that is nested MAX_DEPTH deep at most. _OutOfRangeError for a number out of range."""
    count, items = (len(value), value.values()) if type(value) is dict else (0, (value,))
    for item in items:
        kind = type(item)
        if kind is int:
            if not -_MAX_INT < item < _MAX_INT:
                raise _OutOfRangeError
        elif kind is float:
            if not math.isfinite(item):
                raise _OutOfRangeError
        elif kind is dict:
            count += _key_count(item)
        elif kind is list:
            count += sum(map(_key_count, item))
    return count


TOKEN = b":::MLLOG "
TOKEN_START = b":::ML"  # prefix of an intact or damaged token
MAX_LINE = 1 << 20
CHUNK = 1 << 18
MAX_TIME_MS = 1e15  # before and after 1970: some 30,000 years. Below 2^53, so differences of two times are exact
EVENT_TYPES = ("POINT_IN_TIME", "INTERVAL_START", "INTERVAL_END")
MAX_REPORTED = 5  # damaged lines of one kind that are reported one by one; the others are counted


class Event(NamedTuple):
    """One event of a log: the JSON object of one line."""

    line: int
    time_ms: float
    kind: str  # POINT_IN_TIME, INTERVAL_START or INTERVAL_END, as logged; "" where missing, as in logs of early rounds
    key: str
    value: Any
    metadata: Mapping[str, Any]


class Anomaly(NamedTuple):
    """An anomaly of a line or of the log as a whole. Breaking MLPerf's rules is not one: see podium.submission."""

    line: int  # from 1; of several lines the first; 0 for the whole log
    message: str  # a sentence fragment
    kind: str = ""  # a key of KINDS


# Kinds whose lines change no event; all lines of a log are one anomaly.
HARMLESS = ("crlf", "lone_cr", "prefix", "keyboard")


class Limits(NamedTuple):
    """Bounds on the events of a log. Reading stops at the first line beyond one of them, which is an anomaly."""

    events: int
    content: int  # bytes of lines with an event, and 64 for each container in them, as an estimate of memory


def read_lines(path: Path, limits: Limits | None = None) -> Iterator[Event | Anomaly]:
    """Yield the events of a log in order, and the anomalies of its lines.

    Anomalies that are harmless or frequent come last, one per kind. At most one line and one chunk are in memory.
    Raises UsageError if the file does not exist, WorkError if it cannot be read.
    """
    try:
        with path.open("rb") as stream:
            yield from parse_stream(stream, limits)
    except (FileNotFoundError, IsADirectoryError):
        raise UsageError(f"{path}: there is no such log; give the path of a result file") from None
    except OSError as error:
        raise WorkError(f"{path}: the log cannot be read ({error.strerror})") from error


def parse_stream(stream: BinaryIO, limits: Limits | None = None) -> Iterator[Event | Anomaly]:
    """As `read_lines`, from an open binary stream."""
    counts: Counter[str] = Counter()
    events = size = 0
    first: dict[str, tuple[int, str]] = {}
    for number, content, ending in _split_lines(stream):
        event, odd = _parse_line(number, content, ending)
        for kind, what in odd:
            counts[kind] += 1
            first.setdefault(kind, (number, what))
            if kind in DAMAGED and counts[kind] <= MAX_REPORTED:
                yield Anomaly(number, what, kind)
        if event is None:
            continue
        if limits is not None:
            assert content is not None, "an overlong line has no event"
            events, size = events + 1, size + len(content) + 64 * (content.count(b"[") + content.count(b"{"))
            if events > limits.events or size > limits.content:
                most = f"{limits.events:,} events or {limits.content:,} characters"
                yield Anomaly(number, f"is where reading stopped: the log has more than {most}", "too_long")
                break
        yield event
    for kind, count in counts.items():
        line, what = first[kind]
        if kind in HARMLESS:
            yield Anomaly(line, f"{count:,} {KINDS[kind].lines}{what}", kind)
        elif count > MAX_REPORTED:
            yield Anomaly(line, f"{count:,} {KINDS[kind].lines} in all", kind)


def _split_lines(stream: BinaryIO) -> Iterator[tuple[int, bytes | None, bytes]]:
    """Yield number, content and ending of each line that may have a token; the content of an overlong line is None."""
    # Most output of a trainer has no token: it is only searched and counted, not split into lines.
    number, rest, skipping = 1, b"", False
    while chunk := stream.read(CHUNK):
        block, at = rest + chunk, 0
        if block.endswith(b"\r"):
            block += stream.read(1)  # a CRLF that the chunk boundary splits must count as one line
        if skipping:
            start, at = _line_end(block, 0)
            if at:
                yield number, None, block[start:at]
                number, skipping = number + 1, False
        while not skipping:
            token = block.find(TOKEN_START, at)
            before = token if token >= 0 else len(block)
            start = max(block.rfind(b"\n", at, before), block.rfind(b"\r", at, before), at - 1) + 1
            number += _line_count(block, at, start)
            if token < 0:
                at = start
                break
            stop, at = _line_end(block, token)
            if not at:
                at = start
                break
            yield number, None if stop - start > MAX_LINE else block[start:stop], block[stop:at]
            number += 1
        rest = b"" if skipping else block[at:]
        if skipping or len(rest) > MAX_LINE:
            rest, skipping = b"", True
    if skipping:
        yield number, None, b""
    elif TOKEN_START in rest:
        yield number, rest, b""


def _line_end(block: bytes, start: int) -> tuple[int, int]:
    """Return where the line's content and its ending end; 0 for the latter if the block has no line end."""
    feed = block.find(b"\n", start)
    carriage = block.find(b"\r", start, feed if feed >= 0 else len(block))
    if carriage < 0:
        return (len(block), 0) if feed < 0 else (feed, feed + 1)
    return carriage, carriage + 1 + (feed == carriage + 1)


def _line_count(block: bytes, start: int, stop: int) -> int:
    """Return the number of line ends in a part of a block that ends with a line."""
    feeds, carriages = block.count(b"\n", start, stop), block.count(b"\r", start, stop)
    return feeds + carriages - (block.count(b"\r\n", start, stop) if carriages else 0)


def _parse_line(number: int, content: bytes | None, ending: bytes) -> tuple[Event | None, Sequence[tuple[str, str]]]:
    """Parse one line; return its event, if any, and its anomalies as (kind, sentence fragment)."""
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
            odd.append(("two_events", "has more than one event, of which only the last is read"))
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
        fields, odd_json = parse_bounded_json(text.rstrip())
    except ValueError as error:
        # Only a last line without an ending can be cut off; other errors there are errors of a whole line.
        cut = not ending and "not valid JSON" in str(error)
        odd.append(("cut_off", "is the last line and is cut off") if cut else ("json", str(error)))
        return None, odd
    odd.extend(("odd_json", what) for what in odd_json)
    event, wrong = _validate_event(number, fields)
    if wrong:
        odd.append(("fields" if event is None else "event", wrong))
    return event, odd


def _validate_event(number: int, fields: Any) -> tuple[Event | None, str]:
    """Validate the fields of an event; return the event, or None, and a sentence fragment on what is wrong."""
    if not isinstance(fields, dict):
        return None, "is not a JSON object"
    try:
        time_ms, key, value, metadata = fields["time_ms"], fields["key"], fields["value"], fields["metadata"]
    except KeyError:
        missing = [name for name in ("time_ms", "key", "value", "metadata") if name not in fields]
        return None, f"has no {' and no '.join(missing)}"
    if isinstance(time_ms, bool) or not isinstance(time_ms, int | float):
        return None, f"has the time_ms {str(time_ms)[:40]!r}, which is not a number"
    if abs(time_ms) > MAX_TIME_MS:
        return None, f"has the time_ms {time_ms:g}, which is not a plausible time"
    if not isinstance(key, str):
        return None, f"has the key {str(key)[:40]!r}, which is not a string"
    wrong, kind = "", fields.get("event_type")
    if not isinstance(metadata, dict):
        wrong, metadata = f"has the metadata {str(metadata)[:40]!r}, which is not an object", {}
    elif "event_type" not in fields:
        wrong = "has no event_type"
    elif kind not in EVENT_TYPES:
        wrong = f"has the event_type {str(kind)[:40]!r}; allowed are {', '.join(EVENT_TYPES)}"
    return Event(number, float(time_ms), kind if isinstance(kind, str) else "", key, value, metadata), wrong
