"""What the folders under runs/ say against a choice of results: runs left out, times changed, another machine."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from benchmarks.errors import Interrupted, PodiumError
from podium.config import RunFolder
from podium.config.description import Description
from podium.mllog import SUCCESS
from podium.reading.log import read_log
from podium.reading.run_log import RunLog
from podium.records import RunRecord, runs_of_set

SECONDS_APART = 0.5
SHARE_APART = 0.01
"""A log's clock and the run's own are read one after the other and never differ by more than the greater of these."""
NO_ACCELERATORS = ("", "0", "n/a", "none", "-")

Records = Mapping[Path, RunRecord]
Rule = Callable[[Sequence[RunLog], Records, Description], Iterator[str]]


def contradictions(runs: Sequence[RunLog], records: Records, description: Description) -> list[str]:
    """Why these runs, in the order of time, are not what they are handed in as: "RULE: a sentence" each.

    Without any records nothing is said. `records` are by the logs' paths, `description` is what would be submitted.
    """
    if not records:
        return []
    return [f"{rule}: {sentence}" for rule, check in RULES.items() for sentence in check(runs, records, description)]


def _one_set(runs: Sequence[RunLog], records: Records, description: Description) -> Iterator[str]:
    lost = [run.name for run in runs if run.path not in records]
    if lost:
        yield (
            f"{', '.join(lost)}: no folder of a run has the seed, so that it is not known in which set it was made; "
            "put the folders back, or make a new set"
        )
    by_set = {record.set_folder: path.name for path, record in records.items()}
    for (one, first), (other, second) in pairwise(by_set.items()):
        yield f"{first} was made in the set {one} and {second} in {other}; runs of two sets are not consecutive"


def _none_left_out(runs: Sequence[RunLog], records: Records, description: Description) -> Iterator[str]:
    known = {record.path for record in records.values()}
    for one in sorted({record.set_folder for record in records.values()}):
        for record in runs_of_set(one):
            kept = record.folder
            if record.path not in known and not kept.restarted_result.exists() and _began(kept):
                yield (
                    f"{record.path} is a run of this set, and its log is not among the results; runs are not picked: "
                    "put the log back, or make a new set"
                )


def _not_restarted(runs: Sequence[RunLog], records: Records, description: Description) -> Iterator[str]:
    times = [run.start_ms for run in runs if run.start_ms is not None]
    sets = sorted({record.set_folder for record in records.values()})
    for log in (record.folder.restarted_result for one in sets for record in runs_of_set(one)):
        if not log.exists():
            continue
        start = _start_ms(log)
        if start is None or (times and min(times) <= start <= max(times)):
            yield f"{log} began between these runs, so that they are not consecutive; make a new set"


def _own_times(runs: Sequence[RunLog], records: Records, description: Description) -> Iterator[str]:
    for run in runs:
        if run.path not in records or run.status != SUCCESS or run.elapsed_seconds is None:
            continue
        summary, seconds = records[run.path].folder.summary, records[run.path].total("seconds")
        if seconds is None:
            yield f"{run.name}: {summary} does not say how many seconds the run took; put the run's own file back"
        elif not abs(run.elapsed_seconds - seconds) <= max(SECONDS_APART, SHARE_APART * seconds):
            yield (
                f"{run.name} says that the run took {run.elapsed_seconds:.2f} s, and {summary} {seconds:.2f} s; "
                "logs are not edited: put back what the run wrote, or make a new set"
            )


def _own_machine(runs: Sequence[RunLog], records: Records, description: Description) -> Iterator[str]:
    launches = dict.fromkeys(
        (record.config.launch.nodes, record.config.launch.processes_per_node, record.config.launch.device)
        for record in records.values()
    )
    for nodes, processes, device in launches:
        stated = description.number_of_nodes.strip()
        if stated != str(nodes):
            yield f"description.number_of_nodes is {stated!r}, and the runs used {nodes} (launch.nodes); mend it"
        stated = description.accelerators_per_node.strip()
        allowed = NO_ACCELERATORS if device == "cpu" else (str(processes),)
        if stated.lower() not in allowed:
            used = "none (launch.device is cpu)" if device == "cpu" else f"{processes} (launch.processes_per_node)"
            yield f"description.accelerators_per_node is {stated!r}, and the runs used {used}; mend it"


RULES: dict[str, Rule] = {
    "one set": _one_set,
    "no run left out": _none_left_out,
    "no restarted run": _not_restarted,
    "logs as written": _own_times,
    "described machine": _own_machine,
}


def _began(folder: RunFolder) -> bool:
    """Whether the run's clock was started: its log is moved away at its end, its metrics and its summary stay."""
    return folder.summary.exists() or folder.samples_trained() > 0 or _start_ms(folder.log) is not None


def _start_ms(log: Path) -> float | None:
    try:
        return read_log(log).start_ms
    except Interrupted:
        raise
    except PodiumError:
        return None
