"""Spoils logs at random and sees that they are read all the same.

Run as `python -m tests.podium.mllog.fuzzing --seconds 600`. Begins with the logs of `dialects`, and with those below
--published; a spoilt log whose reading looks like none before is spoilt further. What must hold of each is in
`Fuzzer.check`. A log of which it does not hold is kept, named and ends the run with status 1.
"""

import argparse
import hashlib
import io
import json
import math
import random
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from mlperf_logging.compliance_checker.mlp_parser import ruleset_500 as mlp_parser

from podium.comparison.anomalies import inconsistencies
from podium.comparison.build_result import mark_repeats
from podium.comparison.result import Result
from podium.mllog.lines import Event, Oddity, parse_stream
from podium.mllog.read import MAX_EVENTS, read_log
from podium.mllog.results_tree import find_packages
from podium.mllog.run import Run, run_from_json
from tests.podium.mllog.dialects import logs
from tests.podium.mllog.mutations import spoil_content, spoil_line, spoil_order

SLOWEST = 1.0
"""Seconds of CPU time that one log of up to some thousand lines may take."""
RUNS = 10
POOL = 3000
"""Spoilt logs that are spoilt further."""
LONGEST = 400
"""Lines of a log that begins or goes on being spoilt."""
LARGEST = 60_000
"""Bytes of one that goes on."""
FULLY_READ = frozenset({"crlf", "lone_cr", "prefix", "keyboard", "two_events", "event"})
"""Kinds of oddities of lines that the official parser reads as Podium does."""


@dataclass
class Tally:
    """What was done."""

    lines: int = 0
    logs: int = 0
    size: int = 0
    slowest: float = 0.0
    signatures: int = 0


class Fuzzer:
    """Spoils logs in a folder, by a seed."""

    def __init__(self, seed: int, folder: Path, published: Sequence[list[bytes]] = ()) -> None:
        self.rng = random.Random(seed)
        self.path = folder / "result_0.txt"
        self.tally = Tally()
        self._pool = [*logs(), *published]
        self._first = len(self._pool)
        self._seen: set[object] = set()
        self._runs: list[Run] = []

    def once(self) -> None:
        """Spoil one log and check it. AssertionError, or whatever the reader raises, for what does not hold."""
        rng = self.rng
        base = rng.choice(self._pool)
        lines, count = self._spoilt(base)
        self.tally.lines += count
        self.isolated(lines)
        self.official(lines)
        content = b"".join(spoil_order(lines, rng.choice(self._pool), rng) if rng.random() < 0.3 else lines)
        if rng.random() < 0.1:
            content = spoil_content(content, rng)
        signature = self.check(content)
        if signature not in self._seen and len(content) < LARGEST:
            self._seen.add(signature)
            self.tally.signatures += 1
            at = len(self._pool) if len(self._pool) < POOL else rng.randrange(self._first, POOL)
            self._pool[at : at + 1] = [content.splitlines(keepends=True)[:LONGEST] or [b"\n"]]

    def _spoilt(self, base: Sequence[bytes]) -> tuple[list[bytes], int]:
        """Most lines of a log spoilt, or few of them, and how many."""
        share = self.rng.choice((0.05, 0.5, 0.95))
        spoilt, count = [], 0
        for line in base:
            content = line.rstrip(b"\r\n")
            end = line[len(content) :] or b"\n"
            if self.rng.random() < share:
                content, count = spoil_line(content, self.rng), count + 1
            spoilt.append(content + end)
        return spoilt, count

    def isolated(self, lines: Sequence[bytes]) -> None:
        """Each line gives the events that it gives alone: what is spoilt harms none of its neighbours."""
        alone = [event for line in lines for event in _events(line)]
        assert _events(b"".join(lines)) == alone

    def official(self, lines: Sequence[bytes]) -> None:
        """What the official parser reads of lines that are ASCII and whole, Podium reads alike."""
        for line in lines:
            found = list(parse_stream(io.BytesIO(line)))
            events = [item for item in found if isinstance(item, Event)]
            odd = {item.kind for item in found if isinstance(item, Oddity)}
            if line.isascii() and odd <= FULLY_READ and events:
                theirs, failed = mlp_parser.parse_generator(io.TextIOWrapper(io.BytesIO(line), "latin-1"))
                assert not failed and len(theirs) == len(events), line
                for one, other in zip(theirs, events, strict=True):
                    assert (one.timestamp, one.key, one.value["value"]) == (other.time_ms, other.key, other.value)

    def check(self, content: bytes) -> object:
        """Read a log and all that follows of it, and say what came out, roughly."""
        self.tally.logs += 1
        self.tally.size += len(content)
        self.path.write_bytes(content)
        started = time.process_time()
        log = read_log(self.path)
        run = log.run(hashlib.sha256(content).hexdigest())
        text = json.dumps(asdict(run), allow_nan=False, ensure_ascii=False).encode("utf-8")
        taken = time.process_time() - started
        self.tally.slowest = max(self.tally.slowest, taken)
        assert taken < SLOWEST, f"took {taken:.2f} s"
        assert run_from_json(json.loads(text)) == run
        assert len(log.events) <= MAX_EVENTS and len(log.oddities) < 200
        assert all(oddity.what.isprintable() and len(oddity.what) < 400 for oddity in log.oddities)
        sane(run)
        texts = [run.status, run.benchmark, run.division, run.org, run.platform, *run.hyperparameters.values()]
        assert all(text.isprintable() and len(text) < 400 for text in texts if isinstance(text, str)), texts
        self._runs = [*self._runs[1 - RUNS :], run]
        self.compared(self._runs)
        return frozenset(oddity.kind for oddity in log.oddities), tuple(
            value is None or value == () for value in asdict(run).values()
        )

    def compared(self, runs: Sequence[Run]) -> None:
        """A result of these runs has no figure that is none."""
        result = Result("v2.0", "A", "B", "closed", "here", tuple(runs), {}, 1, 8, None, None)
        sane(result)
        sane(result.spread)
        assert all(sentence.isprintable() for sentence in inconsistencies(result))
        assert len(mark_repeats([result, replace(result, system="C")])) == 2


def _events(content: bytes) -> list[Event]:
    return [item._replace(line=0) for item in parse_stream(io.BytesIO(content)) if not isinstance(item, Oddity)]


def sane(subject: object) -> None:
    """All that an object has and tells of itself is finite, as deep as it goes."""
    kind = type(subject)
    names = [name for name, found in vars(kind).items() if isinstance(found, property | cached_property)]
    for name, value in [*getattr(subject, "__dict__", {}).items(), *((name, getattr(subject, name)) for name in names)]:
        assert _finite(value), f"{kind.__name__}.{name} is {value!r}"


def _finite(value: Any) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, Mapping):
        return all(map(_finite, value.values()))
    return all(map(_finite, value)) if isinstance(value, tuple | list) else True


def published(folder: Path) -> Iterator[list[bytes]]:
    """The first lines of the first log of each result in a tree."""
    for package in find_packages(folder):
        for result in package.results:
            for log in result.logs[:1]:
                yield log.read_bytes().splitlines(keepends=True)[-LONGEST:]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lines", type=int, default=10**9, help="spoil that many lines")
    parser.add_argument("--seconds", type=float, default=600.0, help="or for that long, whichever is less")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--published", type=Path, action="append", default=[], help="a tree of results to spoil too")
    parser.add_argument("--kept", type=Path, default=Path(tempfile.gettempdir()) / "podium-fuzzing")
    options = parser.parse_args(arguments)
    until = time.monotonic() + options.seconds
    with tempfile.TemporaryDirectory() as folder:
        fuzzer = Fuzzer(options.seed, Path(folder), [log for tree in options.published for log in published(tree)])
        while fuzzer.tally.lines < options.lines and time.monotonic() < until:
            try:
                fuzzer.once()
            except Exception:
                options.kept.mkdir(parents=True, exist_ok=True)
                kept = options.kept / f"{options.seed}-{fuzzer.tally.logs}.txt"
                kept.write_bytes(fuzzer.path.read_bytes())
                print(f"{fuzzer.tally}\nthe log is kept as {kept}", file=sys.stderr)
                raise
    print(fuzzer.tally)
    return 0


if __name__ == "__main__":
    sys.exit(main())
