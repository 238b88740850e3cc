"""Many logs at once: each is read by one of several processes, or not at all where what it says is known already."""

from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from pathlib import Path

from benchmarks.errors import Interrupted, PodiumError, WorkError
from benchmarks.files import sha256_of
from benchmarks.processes import processors
from podium.comparison.cache import RunCache
from podium.reading.log import read_log
from podium.reading.run_log import Run

FEW = 24
"""Logs that are read sooner than processes are started."""
CHUNK = 8
"""Logs that a process takes at a time."""


def read_runs(
    logs: Sequence[Path], cache: RunCache, told: Callable[[int], None] = lambda logs: None
) -> dict[Path, Run | str]:
    """The run of each log, or why it cannot be read. `told` is called with the numbers of logs done since."""
    with ThreadPoolExecutor(processors()) as threads:
        digests = dict(zip(logs, threads.map(_digest_or_problem, logs), strict=True))
    runs: dict[Path, Run | str] = {log: str(found) for log, found in digests.items() if isinstance(found, PodiumError)}
    known = cache.get([found for found in digests.values() if isinstance(found, str)])
    runs.update({log: known[found] for log, found in digests.items() if isinstance(found, str) and found in known})
    told(len(runs))
    left = [log for log in logs if log not in runs]
    for log, run in _read(left, told):
        runs[log] = run
    cache.put(run for log in left if isinstance(run := runs[log], Run) and run.digest == digests[log])
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
    try:
        return read_log(log).run(sha256_of(log))
    except Interrupted:
        raise
    except PodiumError as error:
        return str(error)


def _digest_or_problem(log: Path) -> str | PodiumError:
    try:
        return sha256_of(log)
    except WorkError as error:
        return error
