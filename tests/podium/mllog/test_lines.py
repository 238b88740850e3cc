"""The line parser: events and anomalies of published and hostile logs."""

import io
import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from podium.core.errors import UsageError
from podium.mllog.lines import CHUNK, MAX_LINE, MAX_REPORTED, Anomaly, Event, parse_stream, read_lines

Line = Callable[..., str]


def read(content: bytes | str) -> tuple[list[Event], list[Anomaly]]:
    stream = io.BytesIO(content.encode() if isinstance(content, str) else content)
    items = list(parse_stream(stream))
    return [item for item in items if isinstance(item, Event)], [item for item in items if isinstance(item, Anomaly)]


def kinds(anomalies: list[Anomaly]) -> list[str]:
    return [anomaly.kind for anomaly in anomalies]


def test_valid_line_is_an_event_without_anomalies(line: Line) -> None:
    events, anomalies = read("starting\n" + line("seed", 7, 5, epoch_num=3) + "\nnoise\n")
    assert events == [Event(2, 1_700_000_000_005.0, "POINT_IN_TIME", "seed", 7, events[0].metadata)]
    assert events[0].metadata == {"file": "train.py", "lineno": 1, "epoch_num": 3}
    assert anomalies == []


@pytest.mark.parametrize(("ending", "kind"), [("\r\n", "crlf"), ("\r", "lone_cr"), ("\n", "")])
def test_line_endings(line: Line, ending: str, kind: str) -> None:
    events, anomalies = read("noise" + ending + line("a") + ending + line("b") + ending)
    assert [(event.line, event.key) for event in events] == [(2, "a"), (3, "b")]
    assert kinds(anomalies) == [kind] * bool(kind)
    assert all(anomaly.line == 2 and anomaly.message.startswith("2 line(s)") for anomaly in anomalies)


@pytest.mark.parametrize(
    ("before", "kind"),
    [("0: ", "prefix"), ("[12] ", "prefix"), ("result_3.txt:", "prefix"), ("^[[A\b\b\b\b", "keyboard"), ("  ", "")],
)
def test_text_before_the_token_is_reported_once(line: Line, before: str, kind: str) -> None:
    events, anomalies = read(f"{line('a')}\n{before}{line('b')}\n{before}{line('c')}\n")
    assert [event.key for event in events] == ["a", "b", "c"]
    assert [(anomaly.line, anomaly.kind) for anomaly in anomalies] == [(2, kind)] * bool(kind)


def test_last_of_two_events_on_a_line_is_read(line: Line) -> None:
    events, anomalies = read(line("a") + line("b") + "\n")
    assert [event.key for event in events] == ["b"] and kinds(anomalies) == ["two_events"]


def test_token_inside_a_value_is_not_valid_json(line: Line) -> None:
    events, anomalies = read(line("a", "x:::MLLOG y") + "\n")
    assert events == [] and kinds(anomalies) == ["two_events", "json"]


def test_invalid_utf8_is_read_as_latin_1(line: Line) -> None:
    events, anomalies = read(line("submission_org", "Xe").encode().replace(b"Xe", b"X\xe9"))
    assert events[0].value == "Xé" and kinds(anomalies) == ["not_utf8"]


@pytest.mark.parametrize(
    ("old", "new", "value", "what"),
    [
        ('"value": 7', '"value": NaN', None, "NaN"),
        ('"value": 7', '"value": -Infinity', None, "-Infinity"),
        ('"value": 7', '"value": 1e999', None, "too large"),
        ('"value": 7', '"value": ' + "9" * 21, None, "21 digits"),
        ('"value": 7', '"value": ' + "9" * 100_000, None, "100,000 digits"),
        ('"value": 7', '"value": 6, "value": 7', 7, "'value' 2 times"),
        ('"value": 7', '"value" : 6, "value": 7', 7, "'value' 2 times"),
        ('"lineno": 1', '"lineno": 1, "lineno": 2', 7, "'lineno' 2 times"),
    ],
)
def test_invalid_numbers_and_duplicate_keys_are_reported(line: Line, old: str, new: str, value: Any, what: str) -> None:
    events, anomalies = read(line("seed", 7).replace(old, new) + "\n")
    assert [event.value for event in events] == [value]
    assert kinds(anomalies) == ["odd_json"] and what in anomalies[0].message


def test_integers_up_to_64_bits_are_read(line: Line) -> None:
    events, anomalies = read(line("seed", 2**64 - 1) + "\n")
    assert events[0].value == 2**64 - 1 and anomalies == []


def test_keys_within_a_string_are_not_duplicates(line: Line) -> None:
    events, anomalies = read(line("config", '{"a": 1, "a": 2}') + "\n")
    assert events[0].value == '{"a": 1, "a": 2}' and anomalies == []


@pytest.mark.parametrize(
    ("payload", "kind", "what"),
    [
        ("{", "json", "is not valid JSON"),
        ("[" * 300_000, "json", "more than 10,000 values"),
        ("[" * 9_000 + "]" * 9_000, "json", "deep"),
        ("[" * 40 + "]" * 40, "json", "deep"),
        ('{"a": NaN, ' + '"b":' + "[" * 40 + "]" * 40 + "}", "json", "deep"),
        ('{"a": NaN, "b": }', "json", "is not valid JSON"),
        ("[" + "1," * 10_001 + "1]", "json", "more than 10,000 values"),
        ("[1, 2]", "fields", "not a JSON object"),
        ('{"key": "a", "value": 1}', "fields", "no time_ms and no metadata"),
        ('{"time_ms": "1", "event_type": "", "key": "a", "value": 1, "metadata": {}}', "fields", "time_ms '1'"),
        ('{"time_ms": true, "event_type": "", "key": "a", "value": 1, "metadata": {}}', "fields", "time_ms 'True'"),
        ('{"time_ms": NaN, "event_type": "", "key": "a", "value": 1, "metadata": {}}', "odd_json", "NaN"),
        ('{"time_ms": 1, "event_type": "", "key": 5, "value": 1, "metadata": {}}', "fields", "key '5'"),
        (
            '{"time_ms": 1e16, "event_type": "", "key": "a", "value": 1, "metadata": {}}',
            "fields",
            "1e+16, which is not",
        ),
        (
            '{"time_ms": -1.7e308, "event_type": "", "key": "a", "value": 1, "metadata": {}}',
            "fields",
            "is not a plausible time",
        ),
        ("\0" * 100, "json", "is not valid JSON"),
        ('\x1c{"time_ms": 1, "event_type": "", "key": "a", "value": 1, "metadata": {}}', "json", "is not valid JSON"),
    ],
)
def test_invalid_event_is_reported(payload: str, kind: str, what: str) -> None:
    events, anomalies = read(f":::MLLOG {payload}\nx\n")
    assert events == [] and anomalies[0].kind == kind and what in anomalies[0].message and anomalies[0].line == 1


def test_event_with_invalid_metadata_or_type_is_read_and_reported(line: Line) -> None:
    text = line("a").replace("POINT_IN_TIME", "POINT")
    no_metadata = '{"time_ms": 1, "event_type": "POINT_IN_TIME", "key": "b", "value": 1, "metadata": null}'
    no_type = '{"time_ms": 1, "key": "b", "value": 1, "metadata": {"epoch_num": 2}}'
    events, anomalies = read(f"{text}\n:::MLLOG {no_metadata}\n:::MLLOG {no_type}\n")
    found = [(event.kind, dict(event.metadata)) for event in events]
    assert found[1:] == [("POINT_IN_TIME", {}), ("", {"epoch_num": 2})]
    assert kinds(anomalies) == ["event", "event", "event"] and "'POINT'" in anomalies[0].message
    assert anomalies[2].message == "has no event_type"


def test_damaged_token_is_reported() -> None:
    events, anomalies = read(':::MLLOG{"a": 1}\n:::MLPv0.5.0 bert 1\n')
    assert events == [] and kinds(anomalies) == ["token", "token"]


def test_cut_off_last_line_is_reported(line: Line) -> None:
    events, anomalies = read(line("a") + "\n" + line("b")[:-10])
    assert [event.key for event in events] == ["a"] and [(o.line, o.kind) for o in anomalies] == [(2, "cut_off")]
    assert read(line("b"))[1] == []


def test_many_damaged_lines_are_counted() -> None:
    _, anomalies = read(":::MLLOG {\n" * 1000)
    assert kinds(anomalies) == ["json"] * (MAX_REPORTED + 1) and anomalies[-1].message.startswith("1,000 ")


@pytest.mark.parametrize("at", [CHUNK - 60, CHUNK - 9, CHUNK - 5, CHUNK - 1, CHUNK, CHUNK + 1])
@pytest.mark.parametrize("ending", ["\n", "\r\n", "\r"])
def test_line_across_chunks(line: Line, at: int, ending: str) -> None:
    """Number and content of a line are right wherever a chunk ends."""
    width, wide = 99 + len(ending), at % (99 + len(ending))
    filling = ("x" * 99 + ending) * (at // width - 1) + "x" * (width + wide - len(ending)) + ending
    assert len(filling) == at
    events, anomalies = read(filling + ending.join([line("a"), "", line("b"), line("c"), ""]))
    n = at // width + 1
    assert [(event.line, event.key) for event in events] == [(n, "a"), (n + 2, "b"), (n + 3, "c")]
    assert len(anomalies) == (ending != "\n")


@pytest.mark.parametrize("length", [MAX_LINE + 1, MAX_LINE + CHUNK, 3 * MAX_LINE])
def test_overlong_line_is_skipped(line: Line, length: int) -> None:
    events, anomalies = read(line("a") + "\n" + line("b", "z" * length) + "\n" + line("c") + "\n")
    assert [(event.line, event.key) for event in events] == [(1, "a"), (3, "c")]
    assert [(anomaly.line, anomaly.kind) for anomaly in anomalies] == [(2, "long_line")]
    assert read(b"q" * length)[1][0].kind == "long_line"


class Endless(io.RawIOBase):
    """A stream of 32 MiB of one pattern that is never in memory as a whole."""

    def __init__(self, pattern: bytes, size: int = 1 << 25) -> None:
        self.block, self.left = pattern * (CHUNK // len(pattern)), size

    def read(self, size: int = -1) -> bytes:
        self.left -= len(self.block)
        return bytes(bytearray(self.block[:size])) if self.left >= 0 else b""  # new bytes, as a file gives


@pytest.mark.parametrize("pattern", [b"\0", b"\n", b"\r\n", b"x" * 1000 + b"\n", b":::MLLOG " + b"[" * 7])
def test_memory_is_bounded_for_a_log_of_any_size(pattern: bytes) -> None:
    """Time is then proportional to size, since each chunk is processed within that memory."""
    tracemalloc.start()
    count = sum(1 for _ in parse_stream(Endless(pattern)))  # type: ignore[arg-type]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert count <= 1 and peak < 10 << 20


def test_missing_file_or_folder_is_an_error(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "result_0.txt"):
        with pytest.raises(UsageError, match="there is no such log"):
            list(read_lines(path))


def test_every_json_value_is_read(line: Line) -> None:
    for value in (None, True, 0, -1.5, "ü\u2028", [1, [2]], {"a": {"b": [{}]}}):
        events, anomalies = read(line("k", value) + "\n")
        assert events[0].value == value and anomalies == [], json.dumps(value)
