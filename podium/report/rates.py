"""Training rate of a run between its evaluations, from its result log, since its metrics contain no times.

A run's log is in its folder while the run is in progress, then in its set's. In the layout before it was then among the
system's results, and when the next set had begun, in that set's folder. It is identified by the seed and by every
accuracy in it.
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

MOST_LOGS = 100  # read for one set
MOST_BYTES = 4 << 20  # of a log; ours of ten evaluations have 12 kB
MOST_LATER = 3  # later sets that are looked through for a set's results: more than one where one left no result itself

Identity = tuple[int, tuple[float, ...]]


@dataclass(frozen=True)
class Rate:
    """A part of a run that ends with an evaluation."""

    samples: float  # trained on at its end
    sequences_per_second: float  # in training, without the evaluation


class Logs:
    """The result logs that the runs of one set may have left."""

    def __init__(self, set_folder: Path) -> None:
        self._set_folder = set_folder

    def rates(self, folder: RunFolder, seed: int | None, accuracies: tuple[float, ...]) -> tuple[Rate, ...]:
        """Of a run with that seed and those accuracies; nothing where its log is not found."""
        if seed is None:
            return ()
        own = _read(folder.log)
        if own is not None and own.seeds[:1] == (seed,):
            return _rates(own)
        found = self._by_identity.get((seed, accuracies))
        return () if found is None else _rates(found)

    @cached_property
    def _by_identity(self) -> dict[Identity, RunLog]:
        """The logs of the set, of the system's results, and of what the sets after this one found there."""
        own, results, *replaced = log_folders([self._set_folder], self._set_folder.parents[2] / "results")
        later = [place for place in replaced if place.parent.name > self._set_folder.name]
        found: dict[Identity, RunLog] = {}
        for path in islice((log for place in (own, results, *later[:MOST_LATER]) for log in logs_in(place)), MOST_LOGS):
            log = _read(path)
            if log is not None and log.seeds:
                found.setdefault((log.seeds[0], tuple(one.accuracy for one in log.evaluations)), log)
        return found


def _read(path: Path) -> RunLog | None:
    """None for a log that is not there, or cannot be read or believed."""
    try:
        return attempt(read_log, path)[0] if path.is_file() and path.stat().st_size <= MOST_BYTES else None
    except OSError:
        return None


def _rates(log: RunLog) -> tuple[Rate, ...]:
    """Of the blocks that the log tells begin and end of, in its order."""
    begun = {as_number(event.metadata.get("first_epoch_num")): event.time_ms for event in log.all("block_start")}
    found: list[Rate] = []
    for event in log.all("block_stop"):
        first, last = (as_number(event.metadata.get(name)) for name in ("first_epoch_num", "epoch_num"))
        if first is None or last is None or first not in begun:
            continue
        seconds = (event.time_ms - begun[first]) / 1e3
        if last > first >= 0 and seconds > 0:
            found.append(Rate(last, (last - first) / seconds))
    return tuple(found)
