"""Comparison of logs with what their runs recorded: the set's number of runs and hashes, totals, metrics, code.

It finds accidents and edits of a log alone: a run left out or restarted, times or a status changed, a log copied. It
does not find who edits the records too; a record's worth ends there. What was compared is said with the package.
"""

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path

from mlperf_logging.mllog import constants

from podium.config.run_folder import RunFolder
from podium.config.schema import Description
from podium.core.errors import attempt
from podium.core.files import sha256_of
from podium.mllog.read import read_log
from podium.mllog.run import RunLog, as_number
from podium.mllog.write import SUCCESS
from podium.run.records import RunRecord, logs_in, runs_of_set
from podium.run.set_record import SET, SetRecord, read_set

# What a log may say less than the run's own clock, and more, as seconds or as a share where that is greater. A log's
# time begins before a barrier of all ranks and ends after the run's own. Older logs had the machine's clock, which NTP
# slews by up to 0.05%.
LESS, MORE = (0.1, 0.001), (0.5, 0.01)
NO_ACCELERATORS = ("", "0", "n/a", "none", "-")


@dataclass(frozen=True)
class Recorded:
    """Runs in the order of time, what their folders hold, and what would be submitted as their machine."""

    runs: Sequence[RunLog]
    records: Mapping[Path, RunRecord]  # by the logs' paths
    description: Description

    @cached_property
    def sets(self) -> Mapping[Path, SetRecord | None]:
        """The record of each set; None for a set of the layout before. WorkError for one that cannot be used."""
        return {folder: read_set(folder) for folder in sorted({record.set_folder for record in self.records.values()})}

    @cached_property
    def known(self) -> frozenset[Path]:
        """The folders of the runs."""
        return frozenset(record.path for record in self.records.values())

    def recorded(self) -> Iterator[tuple[RunLog, RunRecord]]:
        for run in self.runs:
            if run.path in self.records:
                yield run, self.records[run.path]


def contradictions(recorded: Recorded) -> list[str]:
    """Why these runs are not what they are handed in as: "RULE: a sentence" each; nothing without any records."""
    if not recorded.records:
        return []
    return [f"{rule}: {sentence}" for rule, check in RECORD_RULES.items() for sentence in check(recorded)]


def compared(recorded: Recorded) -> tuple[list[str], list[str]]:
    """What was compared, for runs in which no contradiction was found, and what could not be."""
    found, not_compared = [], []
    for folder, one in recorded.sets.items():
        name = "/".join(folder.parts[-3:])
        if one is None:
            not_compared.append(
                f"{name} is a set of an older version without {SET}: neither the number of runs that were requested "
                "nor the logs' SHA-256 could be compared, so that its last runs could have been deleted with their "
                f"folders, or times made shorter by {LESS[1]:.1%}"
            )
        else:
            found.append(
                f"{name}: {one.runs} runs were requested and {len(one.by_number)} have ended; the logs have the "
                f"SHA-256 that {SET} recorded when each run ended"
            )
    codes = {code for record in recorded.records.values() if record.source for code in record.source.codes}
    made = f"; all were made by code {codes.pop()[:12]}" if len(codes) == 1 else ""
    found.append(
        f"{len(recorded.runs)} logs: status, seconds, samples and accuracy are those of summary.json, and every "
        f"evaluation is in metrics.jsonl; no run was restarted or resumed{made}"
    )
    return found, not_compared


def _one_set(recorded: Recorded) -> Iterator[str]:
    lost = [run.name for run in recorded.runs if run.path not in recorded.records]
    if lost:
        yield (
            f"{', '.join(lost)}: no folder of a run has the seed, so that it is not known in which set it was made; "
            "put the folders back, or make a new set"
        )
    by_set = {record.set_folder: path.name for path, record in recorded.records.items()}
    for (one, first), (other, second) in pairwise(by_set.items()):
        yield f"{first} was made in the set {one} and {second} in {other}; runs of two sets are not consecutive"


def _whole_set(recorded: Recorded) -> Iterator[str]:
    for folder, one in recorded.sets.items():
        if one is None and logs_in(folder):
            yield f"{folder / SET} is missing, which `podium run` wrote beside the set's logs; put it back"
        if one is not None and one.runs < len(one.by_number):
            yield (
                f"{folder / SET}: {one.runs} runs were requested, and {len(one.by_number)} have ended; "
                "put back the file that `podium run` wrote"
            )
        if one is not None and not one.whole:
            yield (
                f"{folder / SET}: {one.runs} runs were requested, and {len(one.by_number)} have ended; how many are "
                "made is settled before the first, so that a set is submitted whole: make a new set"
            )
        for run in one.by_number.values() if one is not None else ():
            if run.fault is not None:
                yield f"{folder / f'run_{run.number}'}: its log is no result: {run.fault}; make a new set"


def _none_left_out(recorded: Recorded) -> Iterator[str]:
    known = recorded.known
    for folder, one in recorded.sets.items():
        for run in one.by_number.values() if one is not None else ():
            path = folder / f"run_{run.number}"
            if run.is_result and path not in known:
                gone = "" if path.is_dir() else ", and its folder is gone"
                yield (
                    f"{path} is a run of this set ({SET} has {run.log}, {run.status}), and its log is not among the "
                    f"results{gone}; runs are not picked: put it back, or make a new set"
                )
        made = runs_of_set(folder)
        for record in made:
            unrecorded = one is None or record.number not in one.by_number
            kept = record.folder
            if unrecorded and record.path not in known and not kept.restarted_result.exists() and _began(kept):
                yield (
                    f"{record.path} is a run of this set, and its log is not among the results; runs are not picked: "
                    "put the log back, or make a new set"
                )
        numbers = {record.number for record in made}
        for number in sorted(set(range(max(numbers, default=0))) - numbers) if one is None else ():
            yield f"{folder / f'run_{number}'} is gone, and later runs are there; runs are not picked: put it back"


def _not_restarted(recorded: Recorded) -> Iterator[str]:
    for run, record in recorded.recorded():
        if record.folder.gone_on_with or record.total("restarts"):
            codes = record.source.codes if record.source is not None else ()
            by = f" (begun by code {codes[0][:12]}, resumed by {codes[-1][:12]})" if len(codes) > 1 else ""
            yield (
                f"{run.name}: {record.path} says that the run was restarted or resumed{by}, and a run's clock cannot "
                "be paused; make a new set"
            )
    times = [run.start_ms for run in recorded.runs if run.start_ms is not None]
    for folder, one in recorded.sets.items():
        for ended in one.by_number.values() if one is not None else ():
            if ended.restarted:
                yield (
                    f"{folder / f'run_{ended.number}'} was restarted or resumed, so that it is no result; runs are "
                    "not picked: make a new set"
                )
        for log in (record.folder.restarted_result for record in runs_of_set(folder)) if one is None else ():
            start = _start_ms(log) if log.exists() else math.inf
            if start is None or (times and min(times) <= start <= max(times)):
                yield f"{log} began between these runs, so that they are not consecutive; make a new set"


def _as_written(recorded: Recorded) -> Iterator[str]:
    """Each log by its hash where the set has one, and by what else the run wrote of itself."""
    for run, record in recorded.recorded():
        one = recorded.sets[record.set_folder]
        ended = one.by_number.get(record.number) if one is not None else None
        if ended is not None and ended.is_result and ended.sha256 != sha256_of(run.path):
            yield (
                f"{run.name} is not the log that {record.path} left: its SHA-256 is not the one in "
                f"{record.set_folder / SET}; logs are not edited: put back {record.set_folder / str(ended.log)}"
            )
        for difference in (*_unlike_summary(run, record), *_unlike_metrics(run, record)):
            yield f"{run.name} {difference}; logs are not edited: put back what the run wrote, or make a new set"


def _unlike_summary(run: RunLog, record: RunRecord) -> Iterator[str]:
    """A run that broke off has no summary; any other has one that says what the log says."""
    summary = record.folder.summary
    if run.status != SUCCESS and not summary.exists():
        return
    seconds, logged = record.total("seconds"), run.elapsed_seconds
    if seconds is None:
        yield f"cannot be compared with {summary}, which does not say how many seconds the run took"
    elif logged is not None and not -_most(LESS, seconds) <= logged - seconds <= _most(MORE, seconds):
        yield f"says that the run took {logged:.2f} s, and {summary} {seconds:.2f} s"
    reached = record.says("reached_target")
    if reached is not (run.status == SUCCESS):
        yield f"says {run.status}, and {summary} that reached_target is {_json(reached)}"
    last = run.evaluations[-1].accuracy if run.evaluations else None
    for key, value in (("samples", run.train_samples), ("accuracy", last)):
        if record.total(key) != value:
            yield f"says that {key} is {_json(value)}, and {summary} {_json(record.total(key))}"


def _unlike_metrics(run: RunLog, record: RunRecord) -> Iterator[str]:
    """Evaluations as the run wrote them down beside its log; of a run that broke off either may lack the last."""
    found, metrics = record.evaluations, record.folder.metrics
    if found is None:
        yield f"cannot be compared with {metrics}, which is missing or cannot be read"
        return
    events = run.all(constants.EVAL_ACCURACY)
    logged = [(as_number(event.metadata.get("epoch_num")), as_number(event.value)) for event in events]
    pairs = enumerate(zip(logged, found, strict=False), 1)
    unlike = next(((number, one, other) for number, (one, other) in pairs if one != other), None)
    if unlike is not None:
        number, one, other = unlike
        yield f"says of evaluation {number} that samples and accuracy are {one}, and {metrics} {other}"
    elif len(logged) != len(found) and run.status == SUCCESS:
        yield f"has {len(logged)} evaluations, and {metrics} {len(found)}"


def _same_code(recorded: Recorded) -> Iterator[str]:
    by_code: dict[str, str] = {}
    for run, record in recorded.recorded():
        for code in record.source.codes if record.source is not None else ():
            by_code.setdefault(code, run.name)
    for (one, first), (other, second) in pairwise(by_code.items()):
        yield (
            f"{first} was made by code {one[:12]} and {second} by {other[:12]}; all runs of a result are made by the "
            "same code: make a new set"
        )


def _own_machine(recorded: Recorded) -> Iterator[str]:
    launches = dict.fromkeys(
        (record.config.launch.nodes, record.config.launch.processes_per_node, record.config.launch.device)
        for record in recorded.records.values()
    )
    for nodes, processes, device in launches:
        stated = recorded.description.number_of_nodes.strip()
        if stated != str(nodes):
            yield f"description.number_of_nodes is {stated!r}, and the runs used {nodes} (launch.nodes); correct it"
        stated = recorded.description.accelerators_per_node.strip()
        allowed = NO_ACCELERATORS if device == "cpu" else (str(processes),)
        if stated.lower() not in allowed:
            used = "none (launch.device is cpu)" if device == "cpu" else f"{processes} (launch.processes_per_node)"
            yield f"description.accelerators_per_node is {stated!r}, and the runs used {used}; correct it"


RECORD_RULES: dict[str, Callable[[Recorded], Iterator[str]]] = {
    "one set": _one_set,
    "whole set": _whole_set,
    "no run left out": _none_left_out,
    "no restarted run": _not_restarted,
    "logs as written": _as_written,
    "same code": _same_code,
    "described machine": _own_machine,
}


def _began(folder: RunFolder) -> bool:
    """Whether the run's clock was started: its log is moved away at its end, its metrics and its summary stay."""
    return folder.summary.exists() or folder.samples_trained() > 0 or _start_ms(folder.log) is not None


def _start_ms(log: Path) -> float | None:
    run, _ = attempt(read_log, log)
    return None if run is None else run.start_ms


def _most(apart: tuple[float, float], seconds: float) -> float:
    return max(apart[0], apart[1] * seconds)


def _json(value: float | bool | None) -> str:
    return "not there" if value is None else json.dumps(value)
