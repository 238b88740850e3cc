"""Loads trees of results: from paths to results that can be compared.

Each log is read by one of several processes, or taken from a cache. The cache is keyed by the hash of the log's
bytes, so that no log is read twice by the same version of the reader.
"""

import json
import sqlite3
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, replace
from functools import cache
from multiprocessing import get_context
from pathlib import Path

from podium.comparison.build_result import build, mark_repeats
from podium.comparison.discover import BENCHMARK, Place, places, round_by_dates
from podium.comparison.result import Result
from podium.core.errors import UsageError, WorkError, attempt
from podium.core.files import private_folder, sha256_of
from podium.core.processes import processors
from podium.core.source_hash import source_hash
from podium.core.text import one_line, printable
from podium.mllog import read
from podium.mllog.read import read_log
from podium.mllog.results_tree import ResultFolder, in_order
from podium.mllog.run import Run, run_from_json
from podium.submission.archive import Limits, Tally, archive_stem, is_archive, unpack

NAME = "runs.sqlite"
PATIENCE_SECONDS = 10.0  # for another process that writes


class RunCache:
    """A folder with one SQLite file. What cannot be read or written is as if it were not there: `problem` tells why."""

    def __init__(self, folder: Path | None) -> None:
        """With None nothing is kept."""
        self.folder = None if folder is None else private_folder(folder)
        self.problem: str | None = None
        if folder is not None and self.folder is None:
            self.problem = f"{folder}: nothing is kept there, since it cannot be written or others may write to it"

    def get(self, digests: Sequence[str]) -> dict[str, Run]:
        """The runs that are known, by digest."""
        if self.folder is None or not (self.folder / NAME).is_file():
            return {}
        found: dict[str, Run] = {}
        try:
            with closing(self._open()) as database:
                for digest in digests:
                    question = "SELECT run FROM runs WHERE digest = ? AND reader = ?"
                    for (text,) in database.execute(question, [digest, reader()]):
                        run = _run(text)
                        if run is not None and run.digest == digest:
                            found[digest] = run
        except sqlite3.Error as error:
            self._give_up(error)
        return found

    def put(self, runs: Iterable[Run]) -> None:
        """Keep runs; what other versions of the reader kept is removed."""
        rows = [(run.digest, reader(), json.dumps(asdict(run), allow_nan=False)) for run in runs]
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


@cache
def reader() -> str:
    """A hash of the code that reads logs, all that it imports of ours included: another version reads logs anew."""
    return source_hash([read.__name__])


def _run(text: object) -> Run | None:
    """None for what is no run: a damaged row."""
    try:
        fields = json.loads(text) if isinstance(text, str) else None
        return run_from_json(fields) if isinstance(fields, Mapping) else None
    except (TypeError, ValueError, KeyError, RecursionError):
        return None


FEW = 24  # logs that are read sooner than processes are started
CHUNK = 8  # logs that a process takes at a time


def read_runs(
    logs: Sequence[Path], cache: RunCache, told: Callable[[int], None] = lambda logs: None
) -> dict[Path, Run | str]:
    """The run of each log, or why it cannot be read. `told` is called with the numbers of logs done since."""
    with ThreadPoolExecutor(processors()) as threads:
        digests = dict(zip(logs, threads.map(lambda log: attempt(sha256_of, log), logs), strict=True))
    runs: dict[Path, Run | str] = {log: str(problem) for log, (_, problem) in digests.items() if problem}
    known = cache.get([digest for digest, _ in digests.values() if digest])
    runs.update({log: known[digest] for log, (digest, _) in digests.items() if digest in known})
    told(len(runs))
    left = [log for log in logs if log not in runs]
    for log, run in _read(left, told):
        runs[log] = run
    cache.put(run for log in left if isinstance(run := runs[log], Run) and run.digest == digests[log][0])
    return runs


def _read(logs: Sequence[Path], told: Callable[[int], None]) -> list[tuple[Path, Run | str]]:
    found = []
    if len(logs) < FEW or processors() == 1:
        for log in logs:
            found.append((log, read_one(log)))
            told(1)
        return found
    with ProcessPoolExecutor(processors(), mp_context=get_context("forkserver")) as processes:
        try:
            for log, run in zip(logs, processes.map(read_one, logs, chunksize=CHUNK), strict=True):
                found.append((log, run))
                told(1)
        except BrokenProcessPool:
            raise WorkError("a process that read logs was killed; see that there is memory, and try again") from None
        except BaseException:
            processes.shutdown(wait=False, cancel_futures=True)
            raise
    return found


def read_one(log: Path) -> Run | str:
    """The run of a log, or why it cannot be read."""
    run, problem = attempt(lambda: read_log(log).run(sha256_of(log)))
    return str(problem) if run is None else run


@dataclass(frozen=True)
class Comparison:
    """Everything that was found."""

    results: tuple[Result, ...]  # in the order of round, submitter and system; one's own last
    notes: tuple[str, ...] = ()  # what was left out and why, a sentence each
    others: tuple[Result, ...] = ()  # read too, and not shown


def gather(
    paths: Sequence[Path],
    cache: RunCache,
    starting: Callable[[int], None] = lambda logs: None,
    told: Callable[[int], None] = lambda logs: None,
) -> Comparison:
    """All BERT results in trees of results or archives of some.

    `starting` is called with the number of logs, `told` with the numbers of logs read since. UsageError for a path
    that holds none, WorkError for one that cannot be read.
    """
    with ExitStack() as stack:
        unpacked = {path: _unpacked(path, stack) for path in paths}
        found = _once([(path, place) for path in unpacked for place in _places(path, unpacked[path])])
        logs = [log for _, place in found for result in place.results for log in result.logs]
        starting(len(logs))
        runs = read_runs(logs, cache, told)
        results: list[Result] = []
        notes: list[str] = []
        for path in dict.fromkeys(path for path, _ in found):
            some = _gather(path, [place for top, place in found if top == path], runs)
            inside = str(unpacked[path]), str(path)
            results += [replace(one, source=one.source.replace(*inside)) for one in some.results]
            notes += [note.replace(*inside) for note in some.notes]
    if cache.problem:
        notes.append(cache.problem)
    ordered = sorted(results, key=lambda one: (one.own, one.round or "", one.submitter.lower(), one.system))
    return Comparison(tuple(mark_repeats(ordered)), tuple(printable(note) for note in notes))


def _places(path: Path, unpacked: Path) -> list[Place]:
    """The places in a path; an error names it, and not where an archive was unpacked to."""
    try:
        return places(unpacked)
    except UsageError as error:
        raise UsageError(str(error).replace(str(unpacked), str(path))) from None


def _unpacked(path: Path, stack: ExitStack) -> Path:
    """The path, or where an archive was unpacked to."""
    try:
        if not (path.is_file() and is_archive(path)):
            return path
    except OSError as error:
        raise WorkError(f"{path}: cannot be read ({error.strerror})") from error
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="podium-compare-")))
    tally = Tally(Limits())
    unpack(path, folder / archive_stem(path), tally)
    if not tally.whole:
        raise WorkError(f"{path}: {tally.findings[-1].message}")
    return folder / archive_stem(path)


def _once(found: Sequence[tuple[Path, Place]]) -> list[tuple[Path, Place]]:
    """Each folder of logs where it is first named, with the logs that any of the paths names."""
    same: dict[Path, list[ResultFolder]] = {}
    for _, place in found:
        for result in place.results:
            same.setdefault(result.path.resolve(), []).append(result)
    kept = []
    for path, place in found:
        whole = tuple(_joined(named) for one in place.results if (named := same.pop(one.path.resolve(), None)))
        if whole:
            kept.append((path, replace(place, results=whole)))
    return kept


def _joined(named: Sequence[ResultFolder]) -> ResultFolder:
    """The same folder, of which some paths may name but some of the logs."""
    folder = named[0].path
    logs = in_order({folder / log.name for one in named for log in one.logs})
    others = sorted({folder / path.name for one in named for path in one.others})
    return replace(named[0], logs=logs, others=tuple(others))


def _gather(path: Path, found: Sequence[Place], runs: Mapping[Path, Run | str]) -> Comparison:
    """The results of one of the paths."""
    results: list[Result] = []
    notes: list[str] = []
    others = sum(place.others for place in found)
    if others:
        notes.append(f"{path}: {others:,} result(s) of other benchmarks are left out")
    unnamed = [place for place in found if place.round is None]
    starts = [
        run.start_ms
        for place in unnamed
        for result in place.results
        for log in result.logs
        if isinstance(run := runs[log], Run) and run.start_ms is not None
    ]
    dated = round_by_dates(starts)
    if unnamed and dated:
        notes.append(f"{path}: no folder names the round; {dated} is taken, by the dates of the runs")
    for place in found:
        for folder in place.results:
            kept = [run for log in folder.logs if isinstance(run := runs[log], Run)]
            problems = [f"{log.name}: {run}" for log in folder.logs if isinstance(run := runs[log], str)]
            logged = {run.benchmark for run in kept if run.benchmark is not None}
            if logged and BENCHMARK not in logged:
                words = one_line(", ".join(sorted(logged)))
                notes.append(f"{folder.path}: is left out, its logs are of {words}")
            else:
                results.append(build(place, folder, place.round or dated, kept, problems))
    return Comparison(tuple(results), tuple(notes))
