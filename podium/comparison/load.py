"""Loads the results in trees of logs, for comparison.

Logs of runs and of their power are read by several processes, or taken from a cache. The cache is keyed by the hash of
the logs' bytes, so that no log is read twice by the same version of the reader.
"""

import gc
import hashlib
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
from types import MappingProxyType
from typing import Any, TypeVar

from podium.comparison.build_result import add_energy, build_result, mark_repeats
from podium.comparison.discover import PackageResults, discover_results
from podium.comparison.result import Result
from podium.core.errors import UsageError, WorkError, attempt
from podium.core.files import private_folder, sha256_of
from podium.core.processes import killing_workers, processors, starting_workers, watch_parent
from podium.core.source_hash import source_hash
from podium.core.text import format_list, printable
from podium.mllog import power, read
from podium.mllog.benchmarks import TABLE, round_at
from podium.mllog.power import (
    POWER,
    PowerFolder,
    RunPower,
    digest_of,
    list_power_folder,
    power_folder,
    power_from_json,
    read_power,
)
from podium.mllog.read import read_log
from podium.mllog.results_tree import ResultFolder, is_package, sort_logs
from podium.mllog.rounds import round_from_dates
from podium.mllog.run import Run, run_from_json
from podium.submission.archive import Limits, Tally, archive_stem, is_archive, unpack

DATABASE_NAME = "runs.sqlite"
LOCK_TIMEOUT_SECONDS = 10.0  # how long SQLite waits while another process writes
Cached = TypeVar("Cached", Run, RunPower)


class RunCache:
    """Cache of parsed logs: a folder with one SQLite file.

    A cache that cannot be read or written never fails a comparison: it is as good as empty, and `problem` has the
    reason.
    """

    def __init__(self, folder: Path | None) -> None:
        """Use the cache in `folder`; None is a cache that is always empty."""
        self.folder = None if folder is None else private_folder(folder)
        self.problem: str | None = None
        if folder is not None and self.folder is None:
            self.problem = f"{folder}: not used as a cache: it cannot be written, or other users may write to it"

    def get(self, digests: Iterable[str]) -> dict[str, Run]:
        """Return the cached runs, by digest."""
        return self._select(digests, run_from_json)

    def get_power(self, digests: Iterable[str]) -> dict[str, RunPower]:
        """Return the cached powers of runs, by the digest of their power logs."""
        return self._select(digests, power_from_json)

    def _select(self, digests: Iterable[str], parse: Callable[[Mapping[str, Any]], Cached]) -> dict[str, Cached]:
        if self.folder is None or not (self.folder / DATABASE_NAME).is_file():
            return {}
        found: dict[str, Cached] = {}
        try:
            with closing(self._open()) as database:
                for digest in digests:
                    query = "SELECT run FROM runs WHERE digest = ? AND reader = ?"
                    for (text,) in database.execute(query, [digest, reader_version()]):
                        entry = _parse_row(text, parse)
                        # A row whose run has another digest is damaged, and would give a log the values of another.
                        if entry is not None and entry.digest == digest:
                            found[digest] = entry
        except sqlite3.Error as error:
            self._disable(error)
        return found

    def put(self, runs: Iterable[Run]) -> None:
        """Add runs, and remove those of other versions of the reader."""
        self._insert({run.digest: asdict(run) for run in runs})

    def put_power(self, powers: Iterable[RunPower]) -> None:
        """Add powers of runs, and remove those of other versions of the reader."""
        self._insert({one.digest: one._asdict() for one in powers})

    def _insert(self, entries: Mapping[str, Mapping[str, Any]]) -> None:
        rows = [(digest, reader_version(), json.dumps(fields, allow_nan=False)) for digest, fields in entries.items()]
        if self.folder is None or not rows:
            return
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with closing(self._open()) as database, database:
                database.execute(
                    "CREATE TABLE IF NOT EXISTS runs (digest TEXT, reader TEXT, run TEXT, PRIMARY KEY (digest, reader))"
                )
                database.execute("DELETE FROM runs WHERE reader != ?", [reader_version()])
                database.executemany("INSERT OR REPLACE INTO runs VALUES (?, ?, ?)", rows)
        except (OSError, sqlite3.Error) as error:
            self._disable(error)

    def _open(self) -> sqlite3.Connection:
        assert self.folder is not None
        return sqlite3.connect(self.folder / DATABASE_NAME, timeout=LOCK_TIMEOUT_SECONDS)

    def _disable(self, error: Exception) -> None:
        self.problem = f"{self.folder}: the cache is not used ({error}). Remove the folder, or use --no-cache"
        self.folder = None


@cache
def reader_version() -> str:
    """Return a hash of the code that reads logs, including all of Podium that it imports.

    A change of any of it invalidates the cache.
    """
    return source_hash([read.__name__, power.__name__], [TABLE])


def _parse_row(text: object, parse: Callable[[Mapping[str, Any]], Cached]) -> Cached | None:
    """Return the run or the power of a row; None if the row is damaged."""
    try:
        fields = json.loads(text) if isinstance(text, str) else None
        return parse(fields) if isinstance(fields, Mapping) else None
    except (TypeError, ValueError, KeyError, RecursionError):
        return None


MIN_LOGS_FOR_PROCESSES = 24  # fewer logs are read faster than processes are started
LOGS_PER_TASK = 8  # logs that are sent to a process at a time


def read_runs(
    logs: Sequence[Path],
    cache: RunCache,
    on_read: Callable[[int], None] = lambda logs: None,
    rounds: Mapping[Path, str] = MappingProxyType({}),
) -> dict[Path, Run | str]:
    """Return for each log its run, or the reason why it cannot be read.

    `on_read` is called with the number of logs that were read since its last call. `rounds` are the rounds of logs
    whose folders name them, by which targets and units are chosen; those of other logs follow from their dates.
    """
    with ThreadPoolExecutor(processors()) as threads:
        digests = dict(zip(logs, threads.map(lambda log: attempt(sha256_of, log), logs), strict=True))
    runs: dict[Path, Run | str] = {log: str(problem) for log, (_, problem) in digests.items() if problem}
    cached = cache.get([digest for digest, _ in digests.values() if digest])
    runs.update(
        {
            log: found
            for log, (digest, _) in digests.items()
            if (found := cached.get(digest or "")) is not None and _is_same_reading(found, log, rounds.get(log))
        }
    )
    on_read(len(runs))
    uncached = [log for log in logs if log not in runs]
    tasks = [(log, rounds.get(log)) for log in uncached]
    runs.update(zip(uncached, _map_in_processes(_read_task, tasks, on_read), strict=True))
    # A log that was written to in the meantime has another digest now, and is not cached under the first one.
    cache.put(run for log in uncached if isinstance(run := runs[log], Run) and run.digest == digests[log][0])
    return runs


def read_powers(
    folders: Sequence[PowerFolder], cache: RunCache, on_read: Callable[[int], None] = lambda folders: None
) -> dict[Path, RunPower]:
    """Return for each folder of power logs, by its path, the power of its run.

    `on_read` is called with the number of folders that were read since its last call.
    """
    with ThreadPoolExecutor(processors()) as threads:
        usable = [folder for folder in folders if folder.problem is None]
        digests = {
            folder.path: digest or ""  # a log that cannot be read is a problem that `read_power` reports
            for folder, (digest, _) in zip(
                usable, threads.map(lambda one: attempt(_power_key, one), usable), strict=True
            )
        }
    cached = cache.get_power(filter(None, digests.values()))
    powers = {path: cached[digest] for path, digest in digests.items() if digest in cached}
    on_read(len(powers))
    uncached = [(folder, digests.get(folder.path, "")) for folder in folders if folder.path not in powers]
    found = _map_in_processes(_read_power, uncached, on_read)
    powers.update({folder.path: one for (folder, _), one in zip(uncached, found, strict=True)})
    cache.put_power(one for one in found if one.digest)
    return powers


def _power_key(folder: PowerFolder) -> str:
    """Key of a folder of power logs in the cache: its name is in the messages that are cached. Raises WorkError."""
    text = f"{folder.path.name}\0{digest_of(folder)}"
    return hashlib.sha256(text.encode("utf-8", errors="surrogateescape")).hexdigest()


def _read_power(work: tuple[PowerFolder, str]) -> RunPower:
    folder, digest = work
    found = read_power(folder, digest)
    # Logs that were written to in the meantime have another digest now, and are not cached under the first one.
    return found if not digest or attempt(_power_key, folder)[0] == digest else found._replace(digest="")


Item = TypeVar("Item")
Found = TypeVar("Found")


def _map_in_processes(
    work: Callable[[Item], Found], items: Sequence[Item], on_read: Callable[[int], None]
) -> list[Found]:
    """Call `work` for each item, in processes if there are many. Raises WorkError if a process is killed."""
    found = []
    if len(items) < MIN_LOGS_FOR_PROCESSES or processors() == 1:
        for item in items:
            found.append(work(item))
            on_read(1)
        return found
    # forkserver, since this process has threads (the progress bar's) and a fork would copy their locks in any state.
    chunks = [items[start : start + LOGS_PER_TASK] for start in range(0, len(items), LOGS_PER_TASK)]
    try:
        # Nothing is cancelled: a pool whose workers are killed could not set the errors of cancelled futures.
        with ProcessPoolExecutor(processors(), get_context("forkserver"), _start_reader) as pool, killing_workers():
            with starting_workers():
                futures = [pool.submit(_map_chunk, work, chunk) for chunk in chunks]
            for future in futures:
                results = future.result()
                found += results
                on_read(len(results))
    except BrokenProcessPool:
        raise WorkError(
            "a process that read logs was killed, or could not start. In a script of your own, call Podium below "
            'if __name__ == "__main__": its processes import the script again. Otherwise check the free memory'
        ) from None
    return found


def _map_chunk(work: Callable[[Item], Found], chunk: Sequence[Item]) -> list[Found]:
    return [work(item) for item in chunk]


def _start_reader() -> None:
    gc.disable()  # events have no cycles, and looking for them takes a quarter of the time
    watch_parent()


def _is_same_reading(run: Run, log: Path, round_name: str | None) -> bool:
    """Whether reading the log in its folder and by this round gives the cached run of the same content."""
    expected = round_name or round_at(run.start_ms)
    return run.round == expected and run.folder in (None, log.absolute().parent.name)


def _read_task(task: tuple[Path, str | None]) -> Run | str:
    log, round_name = task
    return try_read_log(log) if round_name is None else try_read_log(log, round_name)


def try_read_log(log: Path, round_name: str | None = None) -> Run | str:
    """Return the run of a log by the rules of a round, or the reason why it cannot be read."""
    run, problem = attempt(lambda: read_log(log, round_name).run(sha256_of(log)))
    return str(problem) if run is None else run


@dataclass(frozen=True)
class Comparison:
    """The results to compare."""

    results: tuple[Result, ...]  # in the order of round, benchmark, submitter and system; local results last
    notes: tuple[str, ...] = ()  # sentence fragments on what was left out and why
    others: tuple[Result, ...] = ()  # results that are not shown; local results are compared with them, too


def load_results(
    paths: Sequence[Path],
    cache: RunCache | None = None,
    on_start: Callable[[int], None] = lambda logs: None,
    on_read: Callable[[int], None] = lambda logs: None,
) -> Comparison:
    """Return all results in trees of results or archives of such trees.

    The first callback is called once with the number of logs, the second with the number of logs that were read since
    its last call. Without a cache every log is parsed. Raises UsageError for a path without results, WorkError for one
    that cannot be read.
    """
    cache = cache or RunCache(None)
    with ExitStack() as stack:
        notes: list[str] = []
        given = [one for path in paths for one in _expand_archives(path)]
        unpacked = {path: _unpack_archive(path, stack, notes) for path in given}
        discovered = [(path, one) for path in unpacked for one in _discover(path, unpacked[path])]
        found = _merge_repeated_folders(discovered)
        rounds = {
            log: package_results.round
            for _, package_results in found
            for result in package_results.results
            for log in result.logs
        }
        logs = list(rounds)
        folders = [
            list_power_folder(log)
            for _, package_results in found
            for result in package_results.results
            if any(path.name == POWER for path in result.others)
            for log in result.logs
        ]
        on_start(len(logs) + len(folders))
        runs = read_runs(logs, cache, on_read, {log: name for log, name in rounds.items() if name is not None})
        powers = read_powers(folders, cache, on_read)
        results: list[Result] = []
        notes += [
            f"{path}: {format_list([_relative(one, unpacked[path]) for one in package_results.irregular], 3)} not "
            "read: links, pipes and devices are not followed or opened"
            for path, package_results in discovered
            if package_results.irregular
        ]
        notes += [
            f"{path}: logs of {format_list([one.name for one in package_results.left_out])} of "
            f"{package_results.package.name} are left out: they are in no folder of a benchmark"
            for path, package_results in discovered
            if package_results.left_out
        ]
        for path in dict.fromkeys(path for path, _ in found):
            part = _results_of_path(
                path, [package_results for top, package_results in found if top == path], runs, powers
            )
            # Users know the archive's path, not that of the temporary folder.
            to_archive = str(unpacked[path]), str(path)
            results += [replace(one, source=one.source.replace(*to_archive)) for one in part.results]
            notes += [note.replace(*to_archive) for note in part.notes]
    if cache.problem:
        notes.append(cache.problem)
    order = sorted(
        results, key=lambda one: (one.own, one.round or "", one.benchmark, one.submitter.lower(), one.system)
    )
    return Comparison(tuple(mark_repeats(order)), tuple(printable(note) for note in notes))


def _relative(path: Path, top: Path) -> str:
    return str(path.relative_to(top)) if path.is_relative_to(top) else str(path)


def _discover(path: Path, unpacked: Path) -> list[PackageResults]:
    """Return the results in a path; an error names the path, not the folder that an archive was unpacked to."""
    folder, first = unpacked, None
    while True:
        try:
            return discover_results(folder)
        except UsageError as error:
            first = first or UsageError(str(error).replace(str(unpacked), str(path)))
        inside = [] if unpacked == path else list(folder.iterdir())
        if len(inside) != 1 or not inside[0].is_dir():
            raise first from None
        folder = inside[0]  # an archive may have any number of folders around its results


def _expand_archives(path: Path) -> list[Path]:
    """Return the path, or for a folder with archives these, and the folder if it has results besides them."""
    try:
        archives = sorted(one for one in path.iterdir() if is_archive(one) and one.is_file()) if path.is_dir() else []
    except OSError as error:
        raise WorkError(f"{path}: cannot be read ({error.strerror})") from error
    if not archives or is_package(path):
        return [path]
    has_results = attempt(discover_results, path)[1] is None
    return [path, *archives] if has_results else archives


def _unpack_archive(path: Path, stack: ExitStack, notes: list[str]) -> Path:
    """Return the path, or for an archive the temporary folder that it is unpacked to until `stack` is closed.

    What is not unpacked, such as links, is added to `notes`.
    """
    try:
        if not (path.is_file() and is_archive(path)):
            return path
    except OSError as error:
        raise WorkError(f"{path}: cannot be read ({error.strerror})") from error
    # Both names may become those of a system and its benchmark, where the archive has logs alone.
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="podium-compare-"))) / archive_stem(path)
    folder.mkdir()
    tally = Tally(Limits())
    unpack(path, folder / folder.name, tally)
    if not tally.whole:
        raise WorkError(f"{path}: {tally.findings[-1].message}")
    if tally.findings:
        first = tally.findings[0]
        notes.append(
            f"{path}: {len(tally.findings)} of its entries are not read; the first: {first.path}: {first.message}"
        )
    return folder / folder.name


def _merge_repeated_folders(found: Sequence[tuple[Path, PackageResults]]) -> list[tuple[Path, PackageResults]]:
    """Merge folders of logs that several paths contain: keep the first, with the logs of all of them."""
    same: dict[Path, list[ResultFolder]] = {}
    for _, package_results in found:
        for result in package_results.results:
            same.setdefault(result.path.resolve(), []).append(result)
    distinct = []
    for path, package_results in found:
        merged = tuple(
            _merge_logs(entries) for one in package_results.results if (entries := same.pop(one.path.resolve(), None))
        )
        if merged:
            distinct.append((path, replace(package_results, results=merged)))
    return distinct


def _merge_logs(entries: Sequence[ResultFolder]) -> ResultFolder:
    """Merge entries of the same folder, each of which may have only some of its logs."""
    folder = entries[0].path
    logs = sort_logs({folder / log.name for one in entries for log in one.logs})
    others = sorted({folder / path.name for one in entries for path in one.others})
    return replace(entries[0], logs=logs, others=tuple(others))


def _results_of_path(
    path: Path, found: Sequence[PackageResults], runs: Mapping[Path, Run | str], powers: Mapping[Path, RunPower]
) -> Comparison:
    """Build the results of one of the paths, and the notes on what is left out."""
    results: list[Result] = []
    notes: list[str] = []
    unnamed = [package_results for package_results in found if package_results.round is None]
    starts = [
        run.start_ms
        for package_results in unnamed
        for result in package_results.results
        for log in result.logs
        if isinstance(run := runs[log], Run) and run.start_ms is not None
    ]
    dated = round_from_dates(starts)
    if unnamed and dated:
        notes.append(f"{path}: no folder names the round; {dated} is assumed from the dates of the runs")
    for package_results in found:
        for folder in package_results.results:
            readable = {log: run for log in folder.logs if isinstance(run := runs[log], Run)}
            problems = [f"{log.name}: {run}" for log in folder.logs if isinstance(run := runs[log], str)]
            round_name, of_runs = package_results.round or dated, list(readable.values())
            result = build_result(
                package_results, folder, round_name, of_runs, problems, [log.name for log in readable]
            )
            if any(path.name == POWER for path in folder.others):
                result = add_energy(result, [powers[power_folder(log)] for log in readable])
            results.append(result)
    return Comparison(tuple(results), tuple(notes))
