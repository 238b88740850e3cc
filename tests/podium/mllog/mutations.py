"""Random mutations of a line of a log, of the order of lines, and of a whole log."""

import json
import random
import re
from collections.abc import Callable, Sequence
from typing import Any

PIECES = (
    b"\0",
    b"\b\b\b",
    b"\t",
    b"\n",
    b"\r",
    b"\r\n",
    b"\x0b\x0c",
    b"\x1b[31m\x1b]0;x\x07",
    b"\x1c\x1d\x1e",
    b"\x85",
    b"\xc2\x85",
    b"\xe2\x80\xa8",
    b"\xe2\x80\xae",
    b"\xef\xbb\xbf",
    b"\xff\xfe",
    b"\xed\xa0\x80",
    b"\xf0\x9f\x98\x80",
    b"\\ud800",
    b"\\u0000",
    b'"',
    b"\\",
    b"{",
    b"}",
    b"[" * 40,
    b"]",
    b",",
    b":",
    b":::MLLOG ",
    b":::MLL",
    b"<script>alert(1)</script>",
    b"=1+1",
    b"null",
)
NUMBERS = (
    "0",
    "-0.0",
    "-1",
    "1e999",
    "-1e999",
    "1e308",
    "-1.7e308",
    "5e-324",
    "1" + "0" * 400,
    "1" * 5000,
    "16655441572299",
    "1e15",
    "999999999999999",
    "18446744073709551616",
    "0.72",
    "0.7199999999999999999",
    "NaN",
    "Infinity",
    "-Infinity",
    "1.",
    ".5",
    "01",
    "+1",
    "0x10",
    "1_000",
    "1E5",
    '"1650000000000"',
    "true",
    "null",
)
VALUES: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    -1,
    0.72,
    1.0,
    1e308,
    -1e308,
    1e-320,
    10**20 - 1,
    2**63,
    "",
    "success",
    "aborted",
    " success\u200b",
    "448",
    "NaN",
    "\ud800",
    "\x1b[2J\u202e\u2028",
    "x" * 3000,
    [],
    [448],
    [[448]],
    [1, 2],
    [None],
    [1e308],
    {},
    {"a": {"b": [1, {"c": None}]}},
    [{}] * 30,
)
FIELDS = ("namespace", "time_ms", "event_type", "key", "value", "metadata")
KEYS = (
    "run_start",
    "run_stop",
    "init_start",
    "init_stop",
    "block_start",
    "eval_start",
    "eval_stop",
    "eval_accuracy",
    "train_samples",
    "eval_samples",
    "global_batch_size",
    "seed",
    "submission_benchmark",
    "submission_org",
    "submission_division",
    "opt_base_learning_rate",
    "weights_initialization",
)
_NUMBER = re.compile(rb"-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")

Mutation = Callable[[bytes, random.Random], bytes]


def _flip(line: bytes, rng: random.Random) -> bytes:
    corrupted = bytearray(line)
    for _ in range(rng.randint(1, 4)):
        corrupted[rng.randrange(len(corrupted))] ^= 1 << rng.randrange(8)
    return bytes(corrupted)


def _insert(line: bytes, rng: random.Random) -> bytes:
    at = rng.randint(0, len(line))
    return line[:at] + rng.choice((rng.choice(PIECES), rng.randbytes(rng.randint(1, 8)))) + line[at:]


def _delete(line: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(line))
    return line[:at] + line[at + rng.choice((1, 2, 8, 60)) :]


def _cut(line: bytes, rng: random.Random) -> bytes:
    return line[: rng.randint(0, len(line))]


def _repeat(line: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(line))
    return line[:at] + line[at : at + rng.choice((1, 5, 40))] * rng.choice((2, 3, 20)) + line[at:]


def _prefix(line: bytes, rng: random.Random) -> bytes:
    return rng.choice((b"0: ", b"[12] ", b"result_3.txt:", b"^[[A\b\b\b", b"kk\b\b", b"\0" * 9, *PIECES)) + line


def _number(line: bytes, rng: random.Random) -> bytes:
    found = list(_NUMBER.finditer(line))
    if not found:
        return _insert(line, rng)
    one = rng.choice(found)
    return line[: one.start()] + rng.choice(NUMBERS).encode() + line[one.end() :]


def _recode(line: bytes, rng: random.Random) -> bytes:
    return line.decode("latin-1").encode(rng.choice(("utf-16", "utf-16-be", "utf-32", "utf-8", "cp037")), "replace")


def _blow_up(line: bytes, rng: random.Random) -> bytes:
    """Insert a value that is too deep, too wide or too long."""
    inside = rng.choice(
        (b"[" * 40 + b"]" * 40, b"[" * 2000, b'{"a":' * 300, b"[" + b"1," * 11_000 + b"1]", b"9" * 9000)
    )
    return line.replace(b"null", inside, 1) if b"null" in line else line.replace(b'"value": ', b'"value": ' + inside, 1)


def _field(line: bytes, rng: random.Random) -> bytes:
    """Give a field of the event or its metadata another type or value, remove it, or duplicate it."""
    before, token, text = line.rpartition(b":::MLLOG ")
    try:
        fields = json.loads(text)
        metadata = fields["metadata"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return _number(line, rng)
    place = rng.choice((fields, fields, fields, metadata))
    if not isinstance(place, dict):
        return _insert(line, rng)
    names = FIELDS if place is fields else ("epoch_num", "status", "tensor", "lineno")
    name, way = rng.choice(names), rng.randrange(4)
    if way == 0:
        place.pop(name, None)
    elif way == 1 and place is fields:
        place["key"] = rng.choice(KEYS)
    elif name == "time_ms" and way == 2:
        place[name] = 1_650_000_000_000 + rng.choice((-1, 1)) * 10 ** rng.randint(0, 18)
    else:
        place[name] = rng.choice(VALUES)
    text = json.dumps(fields, ensure_ascii=rng.random() < 0.9).encode("utf-8", "surrogatepass")
    if way == 3:
        text = text[:-1] + b", " + json.dumps(name).encode() + b": " + rng.choice(NUMBERS).encode() + b"}"
    return before + token + text


MUTATIONS: tuple[Mutation, ...] = (
    _flip,
    _insert,
    _delete,
    _cut,
    _repeat,
    _prefix,
    _number,
    _number,
    _recode,
    _blow_up,
    _field,
    _field,
    _field,
    _field,
)


def corrupt_line(line: bytes, rng: random.Random) -> bytes:
    """Apply one to three mutations to a line without its ending; the result may be several lines."""
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        if line:
            line = rng.choice(MUTATIONS)(line, rng)
    return line


def corrupt_order(lines: Sequence[bytes], other: Sequence[bytes], rng: random.Random) -> list[bytes]:
    """Drop, repeat, swap or shuffle lines of a log, or mix them with those of another log."""
    ordered = list(lines)
    way = rng.randrange(8) if lines and other else None
    if way == 0:
        rng.shuffle(ordered)
    elif way == 1:
        at = rng.randrange(len(ordered))
        ordered[at:at] = ordered[at : at + rng.randint(1, 9)] * rng.choice((1, 2, 9))
    elif way == 2:
        at = rng.randrange(len(ordered))
        del ordered[at : at + rng.randint(1, 5)]
    elif way == 3:
        ordered = ordered[: rng.randrange(len(ordered))] + list(other[rng.randrange(len(other)) :])
    elif way == 4:
        ordered = [line for pair in zip(ordered, other, strict=False) for line in pair]
    elif way == 5:
        one, two = rng.randrange(len(ordered)), rng.randrange(len(ordered))
        ordered[one], ordered[two] = ordered[two], ordered[one]
    return ordered


def corrupt_content(content: bytes, rng: random.Random) -> bytes:
    """Change line endings or encoding of a whole log, cut it off, repeat it, or add a byte order mark."""
    ends = (b"\r\n", b"\r", b"\n\r", b"\r\r\n", b"\xc2\x85", b"\x0c", b"\n\n", b"")
    ways: tuple[Callable[[], bytes], ...] = (
        lambda: content.replace(b"\n", rng.choice(ends)),
        lambda: content[: rng.randint(0, len(content))],
        lambda: content[rng.randint(0, len(content)) :],
        lambda: content.decode("latin-1").encode("utf-16"),
        lambda: b"\xef\xbb\xbf" + content,
        lambda: content * 3,
    )
    return rng.choice(ways)()
