"""Fuzzing of the log reader: corrupts logs at random and checks invariants of what is read.

Run as `python -m tests.podium.mllog.fuzzing --seconds 600`. Starts from the logs of `dialects` and those below
--published; a corrupted log with a new signature joins the pool. The invariants are in `Fuzzer.check`. A log that
violates one is saved (the one before it, if it ends the process) and named, and ends the run with status 1.
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
from podium.mllog.lines import Anomaly, Event, parse_stream
from podium.mllog.read import LIMITS, read_log
from podium.mllog.results_tree import find_packages
from podium.mllog.run import Run, run_from_json
from tests.podium.mllog.dialects import logs
from tests.podium.mllog.mutations import corrupt_content, corrupt_line, corrupt_order

MAX_SECONDS = 1.0  # of CPU time for one log of up to some thousand lines
COMPARED_RUNS = 10
POOL_SIZE = 3000  # logs that are corrupted further
MAX_LINES = 400  # of a log in the pool
MAX_BYTES = 60_000  # of a corrupted log that joins the pool
# Kinds of anomalies of lines that the official parser reads as Podium does.
FULLY_READ = frozenset({"crlf", "lone_cr", "prefix", "keyboard", "two_events", "event"})


@dataclass
class Tally:
    """Counts of what was done."""

    lines: int = 0
    logs: int = 0
    size: int = 0
    slowest: float = 0.0
    signatures: int = 0


class Fuzzer:
    """Corrupts logs in a folder, reproducibly by a seed."""

    def __init__(self, seed: int, folder: Path, published: Sequence[list[bytes]] = ()) -> None:
        self.rng = random.Random(seed)
        self.path = folder / "result_0.txt"
        self.tally = Tally()
        self._pool = [*logs(), *published]
        self._first = len(self._pool)
        self._seen: set[object] = set()
        self._runs: list[Run] = []

    def run_once(self) -> None:
        """Corrupt one log and check it. Raises AssertionError, or what the reader raises."""
        rng = self.rng
        base = rng.choice(self._pool)
        lines, count = self._corrupt_lines(base)
        self.tally.lines += count
        self.check_isolation(lines)
        self.check_against_official_parser(lines)
        content = b"".join(corrupt_order(lines, rng.choice(self._pool), rng) if rng.random() < 0.3 else lines)
        if rng.random() < 0.1:
            content = corrupt_content(content, rng)
        signature = self.check(content)
        if signature not in self._seen and len(content) < MAX_BYTES:
            self._seen.add(signature)
            self.tally.signatures += 1
            at = len(self._pool) if len(self._pool) < POOL_SIZE else rng.randrange(self._first, POOL_SIZE)
            self._pool[at : at + 1] = [content.splitlines(keepends=True)[:MAX_LINES] or [b"\n"]]

    def _corrupt_lines(self, base: Sequence[bytes]) -> tuple[list[bytes], int]:
        """Corrupt few, half or most lines of a log; return the lines and the number of corrupted ones."""
        share = self.rng.choice((0.05, 0.5, 0.95))
        corrupted, count = [], 0
        for line in base:
            content = line.rstrip(b"\r\n")
            end = line[len(content) :] or b"\n"
            if self.rng.random() < share:
                content, count = corrupt_line(content, self.rng), count + 1
            corrupted.append(content + end)
        return corrupted, count

    def check_isolation(self, lines: Sequence[bytes]) -> None:
        """Check that each line gives the same events as alone: a corrupted line must not affect its neighbours."""
        separate = [event for line in lines for event in _events(line)]
        assert _events(b"".join(lines)) == separate

    def check_against_official_parser(self, lines: Sequence[bytes]) -> None:
        """Check that Podium reads the same events from undamaged ASCII lines as the official parser."""
        for line in lines:
            found = list(parse_stream(io.BytesIO(line)))
            events = [item for item in found if isinstance(item, Event)]
            odd = {item.kind for item in found if isinstance(item, Anomaly)}
            if line.isascii() and odd <= FULLY_READ and events:
                expected, failed = mlp_parser.parse_generator(io.TextIOWrapper(io.BytesIO(line), "latin-1"))
                assert not failed and len(expected) == len(events), line
                for one, other in zip(expected, events, strict=True):
                    assert (one.timestamp, one.key, one.value["value"]) == (other.time_ms, other.key, other.value)

    def check(self, content: bytes) -> object:
        """Read a log and all that derives from it, and check invariants; return a signature of the result."""
        self.tally.logs += 1
        self.tally.size += len(content)
        self.path.write_bytes(content)
        started = time.process_time()
        log = read_log(self.path)
        run = log.run(hashlib.sha256(content).hexdigest())
        text = json.dumps(asdict(run), allow_nan=False, ensure_ascii=False).encode("utf-8")
        taken = time.process_time() - started
        self.tally.slowest = max(self.tally.slowest, taken)
        assert taken < MAX_SECONDS, f"took {taken:.2f} s"
        assert run_from_json(json.loads(text)) == run
        assert len(log.events) <= LIMITS.events and len(log.anomalies) < 200
        assert all(anomaly.message.isprintable() and len(anomaly.message) < 400 for anomaly in log.anomalies)
        assert_finite(run)
        texts = [run.status, run.benchmark, run.division, run.org, run.platform, *run.hyperparameters.values()]
        assert all(text.isprintable() and len(text) < 400 for text in texts if isinstance(text, str)), texts
        self._runs = [*self._runs[1 - COMPARED_RUNS :], run]
        self.check_comparison(self._runs)
        return frozenset(anomaly.kind for anomaly in log.anomalies), tuple(
            value is None or value == () for value in asdict(run).values()
        )

    def check_comparison(self, runs: Sequence[Run]) -> None:
        """Check that all numbers of a result of these runs are finite."""
        result = Result("bert", "v2.0", "A", "B", "closed", "here", tuple(runs), {}, 1, 8, None, None)
        assert_finite(result)
        assert_finite(result.spread)
        found = inconsistencies(result)
        assert all(text.isprintable() for text in (*found.affecting, *(one.message for one in found.cosmetic)))
        assert len(mark_repeats([result, replace(result, system="C")])) == 2


def _events(content: bytes) -> list[Event]:
    return [item._replace(line=0) for item in parse_stream(io.BytesIO(content)) if not isinstance(item, Anomaly)]


def assert_finite(instance: object) -> None:
    """Check that all numbers in an object's attributes and properties are finite, recursively."""
    kind = type(instance)
    names = [name for name, found in vars(kind).items() if isinstance(found, property | cached_property)]
    for name, value in [
        *getattr(instance, "__dict__", {}).items(),
        *((name, getattr(instance, name)) for name in names),
    ]:
        assert _finite(value), f"{kind.__name__}.{name} is {value!r}"


def _finite(value: Any) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, Mapping):
        return all(map(_finite, value.values()))
    return all(map(_finite, value)) if isinstance(value, tuple | list) else True


def published(folder: Path) -> Iterator[list[bytes]]:
    """Yield the last lines of the first log of each result in a tree."""
    for package in find_packages(folder):
        for result in package.results:
            for log in result.logs[:1]:
                yield log.read_bytes().splitlines(keepends=True)[-MAX_LINES:]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lines", type=int, default=10**9, help="corrupt that many lines")
    parser.add_argument("--seconds", type=float, default=600.0, help="or stop after that time, whichever comes first")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--published", type=Path, action="append", default=[], help="a tree of results to corrupt too")
    parser.add_argument("--kept", type=Path, default=Path(tempfile.gettempdir()) / "podium-fuzzing")
    options = parser.parse_args(arguments)
    until = time.monotonic() + options.seconds
    with tempfile.TemporaryDirectory() as folder:
        fuzzer = Fuzzer(options.seed, Path(folder), [log for tree in options.published for log in published(tree)])
        while fuzzer.tally.lines < options.lines and time.monotonic() < until:
            try:
                fuzzer.run_once()
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
