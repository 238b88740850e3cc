"""Loads runs from their folders. A missing or damaged file leaves its values empty and adds a note."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from podium.config.run_folder import RunFolder
from podium.core.errors import UsageError
from podium.core.files import open_regular
from podium.core.json_files import parse_json
from podium.core.locks import is_locked
from podium.core.yaml_files import parse_yaml
from podium.mllog.lines import parse_bounded_json
from podium.mllog.run import as_number
from podium.report.find import FoundRuns
from podium.report.metrics import Metrics, read_metrics
from podium.report.rates import ResultLogs
from podium.report.run import ReportedRun, ReportedSet, Setting
from podium.run.outcome import Outcome, finished_outcome, stopped_outcome
from podium.run.source import read_source

MAX_BYTES = 1 << 20  # of any file but the metrics; a resolved configuration has 3 kB
MAX_SETTINGS = 500
MAX_TEXT = 300
# In this order; other phases follow.
PHASES = ("data_wait", "forward", "backward", "synchronisation", "optimizer", "evaluation")
MAX_PHASES = 24
MAX_RESTARTS = 1_000
MAX_CODES = 10


def read_sets(found: FoundRuns) -> list[ReportedSet]:
    """Read all runs that were found."""
    sets = []
    for path, runs in found.sets.items():
        logs = ResultLogs(path)
        sets.append(ReportedSet(path, tuple(_read_run(run, logs) for run in runs)))
    return sets


def _read_run(path: Path, logs: ResultLogs) -> ReportedRun:
    """Read the folder of one run; `logs` are those of its set."""
    folder, notes = RunFolder(path), list[str]()
    settings = _read_settings(folder, notes)
    try:
        metrics = read_metrics(folder.metrics)
    except OSError as error:
        notes.append(f"{folder.metrics.name}: cannot be read ({error.strerror})")
        metrics = Metrics()
    summary = _read_json_object(folder.summary, notes)
    totals = _totals(summary)
    if summary and not totals:
        notes.append(f"{folder.summary.name}: has no totals of a run")
    failure, code = _read_failure(folder, notes)
    source, hosts = read_source(folder.source), _read_json_object(folder.hosts, notes)
    restarts, seed = tuple(_read_restarts(folder, notes)), settings.get("seed")
    accuracies = tuple(one.accuracy for one in metrics.evaluations)
    rates = () if restarts else logs.rates(folder, seed if isinstance(seed, int) else None, accuracies)
    notes += _metrics_notes(folder, metrics, ended=bool(totals))
    if source is not None and len(source.codes) > 1:
        codes = ", then by ".join(code[:12] for code in source.codes[:MAX_CODES])
        notes.append(f"{folder.source.name}: started by code {codes}: the code was changed before the run was resumed")
    return ReportedRun(
        folder=path,
        outcome=_outcome(folder, summary if totals else {}, settings, metrics, failure, code),
        settings=settings,
        code=source.code[:MAX_TEXT] if source else None,
        commit=source.commit[:MAX_TEXT] if source and source.commit else None,
        metrics=metrics,
        totals=totals,
        phases_ms=_phases(summary) if totals else {},
        precision=_text(summary.get("precision")) or _text(settings.get("precision")),
        failure=None if totals else failure,
        rates=rates,
        restarts=restarts,
        hosts={key[:MAX_TEXT]: host for key, name in hosts.items() if (host := _text(name)) is not None},
        notes=tuple(notes),
    )


def _outcome(
    folder: RunFolder,
    summary: Mapping[str, Any],
    settings: Mapping[str, Setting],
    metrics: Metrics,
    failure: str | None,
    code: float | None,
) -> Outcome:
    if summary:
        has_target = settings.get("target_accuracy", 0) is not None
        return finished_outcome(summary.get("reached_target") is True, 1.0 if has_target else None)
    if is_locked(folder.lock):
        return Outcome.RUNNING
    if failure is not None:
        return stopped_outcome(code)
    return Outcome.UNFINISHED if metrics.steps else Outcome.NOT_STARTED


def _read_text(path: Path, notes: list[str]) -> str | None:
    """Read the text of a small file; None if it is missing, also with a note if it cannot be read."""
    try:
        with open_regular(path) as file:
            content = file.read(MAX_BYTES + 1)
        if len(content) <= MAX_BYTES:
            return content.decode("utf-8")
        notes.append(f"{path.name}: has more than {MAX_BYTES:,} bytes and is not read")
    except FileNotFoundError:
        pass
    except OSError as error:
        notes.append(f"{path.name}: cannot be read ({error.strerror})")
    except UnicodeDecodeError:
        notes.append(f"{path.name}: is not UTF-8 and is not read")
    return None


def _read_json_object(path: Path, notes: list[str]) -> Mapping[str, Any]:
    """Read the JSON object in a file; empty if it is missing, also with a note if it is not valid."""
    text = _read_text(path, notes)
    if text is None:
        return {}
    try:
        found, _ = parse_bounded_json(text)
    except ValueError as error:
        notes.append(f"{path.name}: {error}")
        return {}
    if isinstance(found, dict):
        return found
    notes.append(f"{path.name}: is not a JSON object")
    return {}


def _read_settings(folder: RunFolder, notes: list[str]) -> dict[str, Setting]:
    text = _read_text(folder.config, notes)
    if text is None:
        if not notes:
            notes.append(f"{folder.config.name}: is missing, so that settings are unknown")
        return {}
    try:
        document = parse_yaml(text, folder.config.name)
    except UsageError:
        notes.append(f"{folder.config.name}: is not valid YAML, so that settings are unknown")
        return {}
    found: dict[str, Setting] = {}
    for key, value in flatten(document, ""):
        if len(found) == MAX_SETTINGS:
            notes.append(f"{folder.config.name}: has more than {MAX_SETTINGS} settings; the others are ignored")
            break
        found[key] = value
    return found


def flatten(value: Any, key: str) -> Iterator[tuple[str, Setting]]:
    """Yield each scalar with its dotted key; a list becomes a text."""
    if isinstance(value, dict):
        for name, below in value.items():
            yield from flatten(below, f"{key}.{name}"[:MAX_TEXT] if key else str(name)[:MAX_TEXT])
    elif key and (value is None or isinstance(value, bool | float)):
        yield key, value
    elif key and isinstance(value, int):
        yield key, value if abs(value) < 10**18 else "a number of many digits"
    elif key and isinstance(value, list):
        items = [item for item in value[:50] if not isinstance(item, dict | list)]
        yield key, f"[{', '.join(str(item)[:50] for item in items)}]" if items else "none" if not value else "a list"
    elif key:
        yield key, str(value)[:MAX_TEXT]


def _totals(summary: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers of a run's summary; empty for another summary, such as that of `podium predict`."""
    if not isinstance(summary.get("reached_target"), bool) or as_number(summary.get("seconds")) is None:
        return {}
    totals = {key: float(number) for key, value in summary.items() if (number := _scalar_number(value)) is not None}
    evaluation, phases = summary.get("evaluation"), _phases(summary)
    share = as_number(evaluation.get("share_of_run")) if isinstance(evaluation, dict) else None
    if share is None and "evaluation" in phases and sum(phases.values()) > 0:
        share = phases["evaluation"] / sum(phases.values())  # for runs of older versions
    if share is not None:
        totals["evaluation_share"] = share
    return totals


def _scalar_number(value: Any) -> float | None:
    return None if isinstance(value, list) else as_number(value)


def _phases(summary: Mapping[str, Any]) -> dict[str, float]:
    phases = summary.get("phases_ms")
    if not isinstance(phases, dict):
        return {}
    known = {
        name: number for name, value in phases.items() if (number := _scalar_number(value)) is not None and number >= 0
    }
    names = dict.fromkeys([*(name for name in PHASES if name in known), *known])
    return {name[:40]: known[name] for name in list(names)[:MAX_PHASES]}


def _read_failure(folder: RunFolder, notes: list[str]) -> tuple[str | None, float | None]:
    """Read the message and exit code of the process that ended the run with an error."""
    failure = _read_json_object(folder.path / "failure.json", notes)
    return _text(failure.get("message")), _scalar_number(failure.get("exit_code"))


def _text(value: Any) -> str | None:
    return value[:MAX_TEXT] if isinstance(value, str) and value else None


def _read_restarts(folder: RunFolder, notes: list[str]) -> Iterator[float]:
    text = _read_text(folder.path / "restarts.jsonl", notes) or ""
    for line in text.splitlines()[:MAX_RESTARTS]:
        try:
            samples = as_number(parse_json(line)["samples"])
        except (ValueError, KeyError, TypeError):
            samples = None
        if samples is None:
            notes.append("restarts.jsonl: has a line that is not a restart")
            return
        yield samples


def _metrics_notes(folder: RunFolder, metrics: Metrics, ended: bool) -> Iterator[str]:
    """Describe what is damaged or missing in metrics.jsonl, and values that are not finite."""
    name = folder.metrics.name
    if metrics.damaged:
        lines = "line is" if metrics.damaged == 1 else "lines are"
        yield (
            f"{name}: {metrics.damaged:,} {lines} left out; the first, line {metrics.first_damaged:,}, "
            f"{metrics.why_damaged}"
        )
    if metrics.unfinished and ended:
        yield f"{name}: its last line is incomplete and left out"
    if metrics.rank_work.invalid:
        yield f"{name}: rank_work_ms of {metrics.rank_work.invalid:,} steps is not a list of milliseconds; left out"
    if metrics.backwards:
        yield f"{name}: samples decrease in line {metrics.backwards:,}, so that some steps are repeated"
    if ended and not metrics.steps:
        yield f"{name}: is missing or empty, so that there are no curves"
    for quantity, found in metrics.not_finite.items():
        times = "once" if found.count == 1 else f"{found.count:,} times"
        yield f"{quantity} was not a finite number {times}, first after {found.samples:,.0f} samples; omitted in curves"
    if folder.not_finite.is_file():
        yield f"{folder.not_finite.name}: has the batch whose loss was not finite, which ended the run"
