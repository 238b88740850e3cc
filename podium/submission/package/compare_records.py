"""Compare logs with what their runs recorded: the set's number of runs and hashes, totals, metrics, code.

This finds accidents and edits of a log only: a run left out or restarted, times or a status changed, a log copied. It
does not find edits of both logs and records. The package's README lists what was compared.
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

# By how much a log's time may be shorter and longer than the run's own: seconds, or a share where that is greater.
# A log's time begins before a barrier of all ranks and ends after the run's own. Older logs used the machine's clock,
# which NTP slews by up to 0.05%.
SHORTER, LONGER = (0.1, 0.001), (0.5, 0.01)
NO_ACCELERATORS = ("", "0", "n/a", "none", "-")


@dataclass(frozen=True)
class RecordedRuns:
    """Runs in the order of time, the records in their folders, and the description to be submitted with them."""

    runs: Sequence[RunLog]
    records: Mapping[Path, RunRecord]  # by the logs' paths
    description: Description

    @cached_property
    def sets(self) -> Mapping[Path, SetRecord | None]:
        """The record of each set by its folder; None for a set of an older version. WorkError for an unusable one."""
        return {folder: read_set(folder) for folder in sorted({record.set_folder for record in self.records.values()})}

    @cached_property
    def run_folders(self) -> frozenset[Path]:
        """The folders of the runs."""
        return frozenset(record.path for record in self.records.values())

    def with_records(self) -> Iterator[tuple[RunLog, RunRecord]]:
        for run in self.runs:
            if run.path in self.records:
                yield run, self.records[run.path]


def find_contradictions(recorded: RecordedRuns) -> list[str]:
    """Return each contradiction between logs and records as "RULE: a sentence"; empty without any records."""
    if not recorded.records:
        return []
    return [f"{rule}: {sentence}" for rule, check in RECORD_RULES.items() for sentence in check(recorded)]


def describe_comparison(recorded: RecordedRuns) -> tuple[list[str], list[str]]:
    """Describe what was compared, for runs without contradictions, and what could not be compared."""
    found, not_compared = [], []
    for folder, set_record in recorded.sets.items():
        name = "/".join(folder.parts[-3:])
        if set_record is None:
            not_compared.append(
                f"{name} is a set of an older version without {SET}: neither the number of requested runs nor the "
                "logs' SHA-256 could be compared, so that its last runs could have been deleted with their "
                f"folders, or times shortened by {SHORTER[1]:.1%}"
            )
        else:
            found.append(
                f"{name}: {set_record.runs} runs were requested and {len(set_record.by_number)} have ended; the logs "
                f"have the SHA-256 that {SET} recorded when each run ended"
            )
    codes = {code for record in recorded.records.values() if record.source for code in record.source.codes}
    made = f"; all were made by code {codes.pop()[:12]}" if len(codes) == 1 else ""
    found.append(
        f"{len(recorded.runs)} logs: status, seconds, samples and accuracy are those of summary.json, and every "
        f"evaluation is in metrics.jsonl; no run was restarted or resumed{made}"
    )
    return found, not_compared


def _check_one_set(recorded: RecordedRuns) -> Iterator[str]:
    lost = [run.name for run in recorded.runs if run.path not in recorded.records]
    if lost:
        yield (
            f"{', '.join(lost)}: no run folder has this log's seed, so its set is unknown; "
            "restore the folders, or make a new set"
        )
    by_set = {record.set_folder: path.name for path, record in recorded.records.items()}
    for (first_set, first), (second_set, second) in pairwise(by_set.items()):
        text = f"{first} was made in the set {first_set} and {second} in {second_set}"
        yield f"{text}; runs of two sets are not consecutive"


def _check_whole_set(recorded: RecordedRuns) -> Iterator[str]:
    for folder, set_record in recorded.sets.items():
        if set_record is None and logs_in(folder):
            yield f"{folder / SET} is missing, which `podium run` wrote beside the set's logs; restore it"
        if set_record is not None and set_record.runs < len(set_record.by_number):
            yield (
                f"{folder / SET}: {set_record.runs} runs were requested, and {len(set_record.by_number)} have ended; "
                "restore the file that `podium run` wrote"
            )
        if set_record is not None and not set_record.complete:
            yield (
                f"{folder / SET}: {set_record.runs} runs were requested, and {len(set_record.by_number)} have ended; "
                "the number is fixed before the first run and all are submitted: make a new set"
            )
        for run in set_record.by_number.values() if set_record is not None else ():
            if run.fault is not None:
                yield f"{folder / f'run_{run.number}'}: its log is not a result: {run.fault}; make a new set"


def _check_none_left_out(recorded: RecordedRuns) -> Iterator[str]:
    run_folders = recorded.run_folders
    for folder, set_record in recorded.sets.items():
        for run in set_record.by_number.values() if set_record is not None else ():
            path = folder / f"run_{run.number}"
            if run.is_result and path not in run_folders:
                gone = "" if path.is_dir() else ", and its folder is gone"
                yield (
                    f"{path} is a run of this set ({SET} has {run.log}, {run.status}), and its log is not among the "
                    f"results{gone}; no run may be left out: restore it, or make a new set"
                )
        made = runs_of_set(folder)
        for record in made:
            unrecorded = set_record is None or record.number not in set_record.by_number
            kept = record.folder
            if (
                unrecorded
                and record.path not in run_folders
                and not kept.restarted_result.exists()
                and _clock_was_started(kept)
            ):
                yield (
                    f"{record.path} is a run of this set, and its log is not among the results; no run may be "
                    "left out: restore the log, or make a new set"
                )
        numbers = {record.number for record in made}
        for number in sorted(set(range(max(numbers, default=0))) - numbers) if set_record is None else ():
            yield f"{folder / f'run_{number}'} is missing, and later runs exist; no run may be left out: restore it"


def _check_not_restarted(recorded: RecordedRuns) -> Iterator[str]:
    for run, record in recorded.with_records():
        if record.folder.was_restarted or record.summary_number("restarts"):
            codes = record.source.codes if record.source is not None else ()
            by = f" (started by code {codes[0][:12]}, resumed by {codes[-1][:12]})" if len(codes) > 1 else ""
            yield (
                f"{run.name}: by its record {record.path} the run was restarted or resumed{by}, and a run's clock "
                "cannot be paused; make a new set"
            )
    times = [run.start_ms for run in recorded.runs if run.start_ms is not None]
    for folder, set_record in recorded.sets.items():
        for ended in set_record.by_number.values() if set_record is not None else ():
            if ended.restarted:
                yield (
                    f"{folder / f'run_{ended.number}'} was restarted or resumed, so that it is not a result; no "
                    "run may be left out: make a new set"
                )
        for log in (record.folder.restarted_result for record in runs_of_set(folder)) if set_record is None else ():
            start = _start_ms(log) if log.exists() else math.inf
            if start is None or (times and min(times) <= start <= max(times)):
                yield f"{log} began between these runs, so that they are not consecutive; make a new set"


def _check_as_written(recorded: RecordedRuns) -> Iterator[str]:
    """Compare each log with its SHA-256 in the set's record, and with the run's summary and metrics."""
    for run, record in recorded.with_records():
        set_record = recorded.sets[record.set_folder]
        ended = set_record.by_number.get(record.number) if set_record is not None else None
        if ended is not None and ended.is_result and ended.sha256 != sha256_of(run.path):
            yield (
                f"{run.name} is not the log that {record.path} left: its SHA-256 is not the one in "
                f"{record.set_folder / SET}; logs must not be edited: restore {record.set_folder / str(ended.log)}"
            )
        for difference in (*_summary_differences(run, record), *_metrics_differences(run, record)):
            yield f"{run.name} {difference}; logs must not be edited: restore what the run wrote, or make a new set"


def _summary_differences(run: RunLog, record: RunRecord) -> Iterator[str]:
    """Yield what differs between a log and the run's summary; a run that broke off has no summary."""
    summary = record.folder.summary
    if run.status != SUCCESS and not summary.exists():
        return
    seconds, logged = record.summary_number("seconds"), run.elapsed_seconds
    if seconds is None:
        yield f"cannot be compared with {summary}, which has no number of seconds"
    elif logged is not None and not -_tolerance(SHORTER, seconds) <= logged - seconds <= _tolerance(LONGER, seconds):
        yield f"has a run of {logged:.2f} s, and {summary} one of {seconds:.2f} s"
    reached = record.summary_flag("reached_target")
    if reached is not (run.status == SUCCESS):
        yield f"has the status {run.status}, and in {summary} reached_target is {_format_value(reached)}"
    last = run.evaluations[-1].accuracy if run.evaluations else None
    for key, value in (("samples", run.train_samples), ("accuracy", last)):
        if record.summary_number(key) != value:
            yield f"has {key} {_format_value(value)}, and {summary} {_format_value(record.summary_number(key))}"


def _metrics_differences(run: RunLog, record: RunRecord) -> Iterator[str]:
    """Yield the first difference between a log's evaluations and metrics.jsonl.

    Of a run that broke off, either may lack the last evaluation.
    """
    found, metrics = record.evaluations, record.folder.metrics
    if found is None:
        yield f"cannot be compared with {metrics}, which is missing or cannot be read"
        return
    events = run.all(constants.EVAL_ACCURACY)
    logged = [(as_number(event.metadata.get("epoch_num")), as_number(event.value)) for event in events]
    pairs = enumerate(zip(logged, found, strict=False), 1)
    difference = next(((number, one, other) for number, (one, other) in pairs if one != other), None)
    if difference is not None:
        number, one, other = difference
        yield f"has samples and accuracy {one} for evaluation {number}, and {metrics} {other}"
    elif len(logged) != len(found) and run.status == SUCCESS:
        yield f"has {len(logged)} evaluations, and {metrics} {len(found)}"


def _check_same_code(recorded: RecordedRuns) -> Iterator[str]:
    by_code: dict[str, str] = {}
    for run, record in recorded.with_records():
        for code in record.source.codes if record.source is not None else ():
            by_code.setdefault(code, run.name)
    for (one, first), (other, second) in pairwise(by_code.items()):
        yield (
            f"{first} was made by code {one[:12]} and {second} by {other[:12]}; all runs of a result must be made by "
            "the same code: make a new set"
        )


def _check_described_machine(recorded: RecordedRuns) -> Iterator[str]:
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


RECORD_RULES: dict[str, Callable[[RecordedRuns], Iterator[str]]] = {
    "one set": _check_one_set,
    "whole set": _check_whole_set,
    "no run left out": _check_none_left_out,
    "no restarted run": _check_not_restarted,
    "logs as written": _check_as_written,
    "same code": _check_same_code,
    "described machine": _check_described_machine,
}


def _clock_was_started(folder: RunFolder) -> bool:
    """Whether the run reached run_start; summary and metrics count too, since its log may have been moved."""
    return folder.summary.exists() or folder.samples_trained() > 0 or _start_ms(folder.log) is not None


def _start_ms(log: Path) -> float | None:
    run, _ = attempt(read_log, log)
    return None if run is None else run.start_ms


def _tolerance(allowed: tuple[float, float], seconds: float) -> float:
    return max(allowed[0], allowed[1] * seconds)


def _format_value(value: float | bool | None) -> str:
    return "missing" if value is None else json.dumps(value)
