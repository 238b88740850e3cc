"""What the folders under runs/ say against a choice of results: runs left out, times changed, another machine."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.errors import Interrupted, PodiumError
from podium.config import RunFolder
from podium.config.description import Description
from podium.submission.packaging.runs import Record, Run, read_run

SECONDS_APART = 0.5
SHARE_APART = 0.01
"""A log's clock and the run's own are read one after the other and never differ by more than the greater of these."""
NO_ACCELERATORS = ("", "0", "n/a", "none", "-")

Records = Mapping[Path, Record]
Rule = Callable[[Sequence[Run], Records, Description], Iterator[str]]


def contradictions(runs: Sequence[Run], records: Records, description: Description) -> list[str]:
    """Why these runs, in the order of time, are not what they are handed in as: "RULE: a sentence" each.

    Without any records nothing is said. `records` are by the logs' paths, `description` is what would be submitted.
    """
    if not records:
        return []
    return [f"{rule}: {sentence}" for rule, check in RULES.items() for sentence in check(runs, records, description)]


def _one_set(runs: Sequence[Run], records: Records, description: Description) -> Iterator[str]:
    lost = [run.name for run in runs if run.path not in records]
    if lost:
        yield (
            f"{', '.join(lost)}: no folder of a run has the seed, so that it is not known in which set it was made; "
            "put the folders back, or make a new set"
        )
    by_set = {record.folder.path.parent: path.name for path, record in records.items()}
    for (one, first), (other, second) in pairwise(by_set.items()):
        yield f"{first} was made in the set {one} and {second} in {other}; runs of two sets are not consecutive"


def _none_left_out(runs: Sequence[Run], records: Records, description: Description) -> Iterator[str]:
    known = {record.folder.path for record in records.values()}
    for one in sorted({folder.parent for folder in known}):
        for folder in sorted(one.glob("run_*")):
            kept = RunFolder(folder)
            if folder not in known and not kept.restarted_result.exists() and _began(kept):
                yield (
                    f"{folder} is a run of this set, and its log is not among the results; runs are not picked: put "
                    "the log back, or make a new set"
                )


def _not_restarted(runs: Sequence[Run], records: Records, description: Description) -> Iterator[str]:
    times = [run.start_ms for run in runs if run.start_ms is not None]
    sets = {record.folder.path.parent for record in records.values()}
    for log in sorted(log for one in sets for log in one.glob(f"run_*/{RunFolder(one).restarted_result.name}")):
        start = _start_ms(log)
        if start is None or (times and min(times) <= start <= max(times)):
            yield f"{log} began between these runs, so that they are not consecutive; make a new set"


def _own_times(runs: Sequence[Run], records: Records, description: Description) -> Iterator[str]:
    for run in runs:
        if run.path not in records or not run.converged or run.start_ms is None or run.stop_ms is None:
            continue
        summary = records[run.path].folder.summary
        seconds = _seconds(summary)
        if seconds is None:
            yield f"{run.name}: {summary} does not say how many seconds the run took; put the run's own file back"
        elif not abs(run.seconds - seconds) <= max(SECONDS_APART, SHARE_APART * seconds):
            yield (
                f"{run.name} says that the run took {run.seconds:.2f} s, and {summary} {seconds:.2f} s; logs are not "
                "edited: put back what the run wrote, or make a new set"
            )


def _own_machine(runs: Sequence[Run], records: Records, description: Description) -> Iterator[str]:
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
        return read_run(log).start_ms
    except Interrupted:
        raise
    except PodiumError:
        return None


def _seconds(summary: Path) -> float | None:
    try:
        told: Any = json.loads(summary.read_text(encoding="utf-8"))["seconds"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    return float(told) if isinstance(told, int | float) and not isinstance(told, bool) else None
