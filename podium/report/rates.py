"""Training throughput between evaluations, from the result log, since metrics.jsonl has no times.

The log is in the run's folder while the run is in progress, and then in its set's folder. In the former layout it was
then among the system's results, and in the folder of the next set once that had started. A log is matched to a run by
its seed and all its accuracies.
"""

from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path

from podium.config.run_folder import RunFolder
from podium.core.errors import attempt
from podium.mllog.read import read_log
from podium.mllog.run import RunLog, as_number
from podium.run.records import log_folders, logs_in

MAX_LOGS = 100  # that are read for one set
MAX_BYTES = 4 << 20  # of a log; one of ten evaluations has 12 kB
MAX_LATER_SETS = 3  # later sets that are searched for a set's results; one without results has none of them

RunIdentity = tuple[int, tuple[float, ...]]


@dataclass(frozen=True)
class Rate:
    """Throughput of the part of a run up to an evaluation."""

    samples: float  # trained on at its end
    sequences_per_second: float  # in training, without the evaluation


class ResultLogs:
    """The result logs that the runs of one set may have left."""

    def __init__(self, set_folder: Path) -> None:
        self._set_folder = set_folder

    def rates(self, folder: RunFolder, seed: int | None, accuracies: tuple[float, ...]) -> tuple[Rate, ...]:
        """Return the rates of a run with that seed and those accuracies; empty if its log is not found."""
        if seed is None:
            return ()
        own = _read(folder.log)
        if own is not None and own.seeds[:1] == (seed,):
            return _training_rates(own)
        found = self._by_identity.get((seed, accuracies))
        return () if found is None else _training_rates(found)

    @cached_property
    def _by_identity(self) -> dict[RunIdentity, RunLog]:
        """Logs of the set, of the system's results, and those that later sets moved from there."""
        own, results, *replaced = log_folders([self._set_folder], self._set_folder.parents[2] / "results")
        later = [folder for folder in replaced if folder.parent.name > self._set_folder.name]
        found: dict[RunIdentity, RunLog] = {}
        for path in islice(
            (log for folder in (own, results, *later[:MAX_LATER_SETS]) for log in logs_in(folder)), MAX_LOGS
        ):
            log = _read(path)
            if log is not None and log.seeds:
                found.setdefault((log.seeds[0], tuple(one.accuracy for one in log.evaluations)), log)
        return found


def _read(path: Path) -> RunLog | None:
    """Read a log; None if it is missing, too large or not readable."""
    try:
        return attempt(read_log, path)[0] if path.is_file() and path.stat().st_size <= MAX_BYTES else None
    except OSError:
        return None


def _training_rates(log: RunLog) -> tuple[Rate, ...]:
    """Compute the rates of all blocks with a valid start and end, in log order."""
    starts = {as_number(event.metadata.get("first_epoch_num")): event.time_ms for event in log.all("block_start")}
    found: list[Rate] = []
    for event in log.all("block_stop"):
        first, last = (as_number(event.metadata.get(name)) for name in ("first_epoch_num", "epoch_num"))
        if first is None or last is None or first not in starts:
            continue
        seconds = (event.time_ms - starts[first]) / 1e3
        if last > first >= 0 and seconds > 0:
            found.append(Rate(last, (last - first) / seconds))
    return tuple(found)
