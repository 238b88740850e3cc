"""Keeps what was read of a log by what the log's bytes are, so that no log is read twice by the same reader."""

import ast
import hashlib
import json
import os
import sqlite3
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import cache
from pathlib import Path

from podium.reading import log
from podium.reading.run_log import Run, run_from_json

NAME = "runs.sqlite"
OWN = ("benchmarks", "podium")
"""Packages whose sources decide what is read of a log."""
AT_ONCE = 500
"""Digests in one question to the database."""
PATIENCE_SECONDS = 10.0
"""For another process that writes."""


class RunCache:
    """A folder with one SQLite file. What cannot be read or written is as if it were not there: `problem` tells why."""

    def __init__(self, folder: Path | None) -> None:
        """With None nothing is kept."""
        self.folder = folder
        self.problem: str | None = None

    def get(self, digests: Sequence[str]) -> dict[str, Run]:
        """The runs that are known, by digest."""
        if self.folder is None or not (self.folder / NAME).is_file():
            return {}
        found: dict[str, Run] = {}
        try:
            with closing(self._open()) as database:
                for first in range(0, len(digests), AT_ONCE):
                    some = digests[first : first + AT_ONCE]
                    marks = ",".join("?" * len(some))
                    question = f"SELECT digest, run FROM runs WHERE reader = ? AND digest IN ({marks})"  # noqa: S608
                    for digest, text in database.execute(question, [reader(), *some]):
                        run = _run(text)
                        if run is not None and run.digest == digest:
                            found[digest] = run
        except sqlite3.Error as error:
            self._give_up(error)
        return found

    def put(self, runs: Iterable[Run]) -> None:
        """Keep runs; what other versions of the reader kept is removed."""
        rows = [(run.digest, reader(), json.dumps(run.as_json(), allow_nan=False)) for run in runs]
        if self.folder is None or not rows:
            return
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with closing(self._open()) as database, database:
                database.execute(
                    "CREATE TABLE IF NOT EXISTS runs (digest TEXT, reader TEXT, run TEXT, PRIMARY KEY (digest, reader))"
                )
                database.execute("DELETE FROM runs WHERE reader != ?", [reader()])
                database.executemany("INSERT OR REPLACE INTO runs VALUES (?, ?, ?)", rows)
        except (OSError, sqlite3.Error) as error:
            self._give_up(error)

    def _open(self) -> sqlite3.Connection:
        assert self.folder is not None
        return sqlite3.connect(self.folder / NAME, timeout=PATIENCE_SECONDS)

    def _give_up(self, error: Exception) -> None:
        self.problem = f"{self.folder}: what was read is not kept ({error}); remove the folder, or give --no-cache"
        self.folder = None


def default_folder() -> Path:
    """Where the XDG base directory specification has caches."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if Path(base).is_absolute() else Path.home() / ".cache") / "podium"


@cache
def reader() -> str:
    """A hash of the code that reads logs, all that it imports of ours included: another version reads logs anew."""
    sources: dict[str, bytes] = {}
    left = [log.__name__]
    while left:
        name = left.pop()
        path = getattr(sys.modules.get(name), "__file__", None)
        if path is not None and name not in sources and name.partition(".")[0] in OWN:
            sources[name] = Path(path).read_bytes()
            left += _imported(ast.parse(sources[name]))
    return hashlib.sha256(b"".join(sources[name] for name in sorted(sources))).hexdigest()[:16]


def _imported(tree: ast.Module) -> Iterator[str]:
    """The names of modules that a source imports, and of what it imports from them, which may be modules too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield from (node.module, *(f"{node.module}.{alias.name}" for alias in node.names))


def _run(text: object) -> Run | None:
    """None for what is no run: a damaged row."""
    try:
        fields = json.loads(text) if isinstance(text, str) else None
        return run_from_json(fields) if isinstance(fields, Mapping) else None
    except (TypeError, ValueError, KeyError, RecursionError):
        return None
