"""The operands of `--ab A B`: a result, a folder of logs or of runs, or the code that made runs.

Local runs are found under runs/, each with its configuration, the code that made it, and its log. A log does not
contain the name of its run's folder: the two are matched by the seed. A log is in its set's folder,
runs/SYSTEM/DATE_TIME. In the previous layout it was in results/SYSTEM/bert until the next set moved it into its own
folder, runs/SYSTEM/DATE_TIME/replaced_results.

The settings of two operands are compared as well.
"""

import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from glob import glob
from pathlib import Path
from typing import Any

from podium.comparison.result import Result
from podium.config.run_folder import RunFolder
from podium.core.errors import UsageError, attempt
from podium.core.paths import CODE_FOLDER, INSTALLED, WORKING_FOLDER
from podium.core.text import format_list, one_line
from podium.mllog.run import Run
from podium.run.records import (
    REPLACED,
    RUN_NAME,
    RunRecord,
    log_folders,
    logs_in,
    runs_of_all_systems,
    runs_of_set,
    runs_of_system,
)
from podium.run.set_record import SET
from podium.run.source import Source, commit_of

# Returns the run of each log, or the reason why it cannot be read: `load.read_runs` with a cache.
ReadRuns = Callable[[Sequence[Path]], Mapping[Path, Run | str]]


@dataclass(frozen=True)
class OutputFolders:
    """The folders that Podium writes runs and results to."""

    runs: Path = WORKING_FOLDER / "runs"
    results: Path = WORKING_FOLDER / "results"


@dataclass(frozen=True)
class RunsWithLogs:
    """Parsed logs of runs, and the runs' folders."""

    runs: tuple[Run, ...]
    records: tuple[RunRecord, ...]  # the folder of each of `runs`
    notes: tuple[str, ...]  # runs without a log, with the reason, as sentence fragments


def find_runs(folder: Path) -> list[RunRecord]:
    """Return the run in a run's folder, or the runs in a set's folder, without those that have no configuration."""
    record = RunRecord(RunFolder(folder.resolve()))
    found = [record] if RUN_NAME.fullmatch(record.path.name) else runs_of_set(record.path)
    return [run for run in found if run.configured]


def folders_of_run(folder: Path) -> OutputFolders:
    """Return the runs/ that contains runs/SYSTEM/DATE_TIME/run_N, and the results/ beside it."""
    runs = folder.resolve().parents[2]
    return OutputFolders(runs, runs.parent / "results")


def locate_logs(folder: Path) -> tuple[str, OutputFolders] | None:
    """Return the system of a folder of logs and the folders of its runs; None if Podium does not write logs there.

    Podium writes logs to results/SYSTEM/bert, to runs/SYSTEM/DATE_TIME, and to replaced_results in the latter.
    """
    above = folder.resolve().parents
    if (folder / SET).is_file() and len(above) > 2:
        return above[0].name, OutputFolders(above[1], above[2] / "results")
    if folder.resolve().name == REPLACED and len(above) > 3:
        return above[1].name, OutputFolders(above[2], above[3] / "results")
    if len(above) > 2 and above[1].name == "results":
        return above[0].name, OutputFolders(above[2] / "runs", above[1])
    return None


def find_logs(own: Sequence[RunRecord], folders: OutputFolders, read: ReadRuns) -> RunsWithLogs:
    """Find the runs' logs, in their sets or where later sets of the previous layout have moved them."""
    logs = [log for folder in log_folders((run.set_folder for run in own), folders.results) for log in logs_in(folder)]
    by_seed: dict[int, dict[str, Run]] = {}
    for run in read(logs).values():
        if isinstance(run, Run):
            for seed in run.seeds:
                by_seed.setdefault(seed, {})[run.digest] = run
    runs: list[Run] = []
    records: list[RunRecord] = []
    notes = []
    for record in own:
        candidates = list(by_seed.get(record.seed, {}).values()) if record.seed is not None else []
        pair = _only_pair([(run, record) for run in candidates])
        if pair is None:
            notes.append(f"{record.name} is left out: {_missing_log_reason(record, len(candidates), folders)}")
        else:
            runs.append(pair[0])
            records.append(record)
    return RunsWithLogs(tuple(runs), tuple(records), tuple(notes))


def match_by_seed(runs: Sequence[Run], system: str, folders: OutputFolders) -> list[RunRecord]:
    """Return the folders of the runs that are found by seed, or by their totals if several folders have the seed."""
    wanted = {seed for run in runs for seed in run.seeds}
    found: dict[int, list[RunRecord]] = {}
    for record in runs_of_system(folders.runs / system):
        if record.seed is not None and record.seed in wanted and attempt(getattr, record, "settings")[0]:
            found.setdefault(record.seed, []).append(record)
    pairs = [_only_pair([(run, own) for seed in run.seeds for own in found.get(seed, ())]) for run in runs]
    return [pair[1] for pair in pairs if pair is not None]


def runs_of_code(code: str, commit: str | None, folders: OutputFolders) -> list[RunRecord]:
    """Return all runs of this commit, or without one all runs whose code or commit hash begins with `code`."""
    return [
        run
        for run in runs_of_all_systems(folders.runs)
        if run.configured and _is_made_by_code(run.source, code, commit)
    ]


def known_code(folders: OutputFolders) -> list[str]:
    """Return the commits that have runs, abbreviated; the code's hash for runs without a commit."""
    sources = [run.source for run in reversed(runs_of_all_systems(folders.runs))]
    return list(dict.fromkeys((source.commit or source.code)[:12] for source in sources if source is not None))


def _is_made_by_code(source: Source | None, code: str, commit: str | None) -> bool:
    if source is None or commit is not None:
        return source is not None and source.commit == commit
    return source.code.startswith(code) or (source.commit or "").startswith(code)


def _only_pair(candidates: Sequence[tuple[Run, RunRecord]]) -> tuple[Run, RunRecord] | None:
    """Return the only pair of a log and a folder with equal seeds, or of several the only one whose totals agree."""
    pairs = [pair for pair in candidates if _totals_agree(*pair)] if len(candidates) > 1 else candidates
    return pairs[0] if len(pairs) == 1 else None


def _totals_agree(run: Run, record: RunRecord) -> bool:
    """Whether a log has the samples and seconds of this run's totals, unlike logs of other runs with its seed."""
    seconds, samples = record.summary_number("seconds"), record.summary_number("samples")
    if seconds is None or samples is None or run.seconds is None:
        return False
    return abs(run.seconds - seconds) <= MAX_CLOCK_DIFFERENCE and run.train_samples == samples


MAX_CLOCK_DIFFERENCE = 0.1  # seconds between the time in a run's summary and that in its log


def _missing_log_reason(record: RunRecord, logs: int, folders: OutputFolders) -> str:
    if record.seed is None:
        return "its configuration has no seed to find its log by"
    if logs > 1:
        return f"{logs} logs have its seed {record.seed}, and its totals do not identify one of them"
    if record.folder.restarted_result.is_file():
        return "it was restarted, and a restarted run is not a result"
    if record.folder.profiled_result.is_file():
        return "it was profiled, and a profiled run is not a result"
    if record.folder.log.is_file():
        return "its log is not complete yet"
    return (
        f"no log in {record.set_folder}, {folders.results} or a {REPLACED} of {folders.runs} has its seed {record.seed}"
    )


# The distinct values of each setting in several runs, as text. A setting that all runs share has one value.
SettingValues = Mapping[str, tuple[str, ...]]

# Fields of a system's description that may affect its time.
DESCRIPTION_FIELDS = (
    "number_of_nodes",
    "accelerators_per_node",
    "accelerator_model_name",
    "host_processor_model_name",
    "framework",
)
# Settings that differ from run to run or have no effect on results. The description is compared by DESCRIPTION_FIELDS.
IGNORED_SETTINGS = ("seed", "system", "description", "reproduces", "launch.rendezvous", "launch.timeout_seconds")


@dataclass(frozen=True)
class Difference:
    """A setting with different values on the two sides."""

    key: str
    a: tuple[str, ...]
    b: tuple[str, ...]


def settings_from_logs(runs: Sequence[Run]) -> dict[str, tuple[str, ...]]:
    """Return the settings that are in logs."""
    pairs: list[tuple[str, Any]] = []
    for run in runs:
        pairs += [("global_batch_size", run.global_batch_size), ("eval_samples", run.eval_samples)]
        pairs += run.hyperparameters.items()
    return collect_values(pairs)


def configured(configs: Iterable[Mapping[str, Any]]) -> dict[str, tuple[str, ...]]:
    """Return the settings in configurations of runs, with dotted keys."""
    return collect_values(pair for config in configs for pair in flatten(config))


def facts(description: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """Return the fields of a system's description that are compared."""
    return collect_values(
        (key, description[key]) for key in DESCRIPTION_FIELDS if description.get(key) not in (None, "")
    )


def flatten(config: Mapping[str, Any], above: str = "") -> list[tuple[str, Any]]:
    """Return the dotted keys of a configuration, without IGNORED_SETTINGS, and their values."""
    found: list[tuple[str, Any]] = []
    for key, value in config.items():
        name = f"{above}{key}"
        if name in IGNORED_SETTINGS:
            continue
        if isinstance(value, Mapping):
            found += flatten(value, f"{name}.")
        else:
            found.append((name, value))
    return found


def collect_values(pairs: Iterable[tuple[str, Any]]) -> dict[str, tuple[str, ...]]:
    """Group values by setting as text, each once and sorted; None is left out."""
    found: dict[str, dict[str, None]] = {}
    for key, value in pairs:
        if value is not None:
            found.setdefault(one_line(key), {})[_normalise_value(value)] = None
    return {key: tuple(sorted(values)) for key, values in found.items()}


def mixed_settings(settings: SettingValues) -> list[str]:
    """Return the settings in which the runs of one side differ."""
    return [key for key, values in settings.items() if len(values) > 1]


def differences(a: SettingValues, b: SettingValues) -> tuple[Difference, ...]:
    """Return the settings that differ, by key. A setting that one side does not have is unknown, not different."""
    return tuple(Difference(key, a[key], b[key]) for key in sorted(a) if key in b and a[key] != b[key])


def _normalise_value(value: Any) -> str:
    """Format a value, so that equal numbers from logs and configurations have equal texts."""
    if isinstance(value, str):
        return one_line(value)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return f"{value:,}" if isinstance(value, int) else f"{value:.10g}"
    return one_line(json.dumps(value, default=str))


BY_HASH = " (by its hash; other revisions need a clone of Podium)" if INSTALLED else ""
_HASH = re.compile(r"[0-9a-f]{7,64}")


@dataclass(frozen=True)
class Readers:
    """The functions and folders by which a side's logs are found and read."""

    results: Callable[[Path], Sequence[Result]]  # loads the results in a path
    runs: ReadRuns
    folders: OutputFolders = OutputFolders()
    root: Path = CODE_FOLDER  # the repository whose commits can be named


@dataclass(frozen=True)
class Side:
    """The runs of one side of a comparison."""

    operand: str  # as in the command line
    name: str  # for the verdict
    runs: tuple[Run, ...]  # without duplicate logs
    full_size: bool  # False if it is known that the runs did not train BERT-large
    settings: SettingValues  # from the runs' configurations if `configured`, otherwise from their logs
    configured: bool
    facts: SettingValues  # fields of the system's description, and the code's hash if it is known
    notes: tuple[str, ...] = ()


def find_side(operand: str, results: Sequence[Result], readers: Readers) -> Side:
    """Return the side that an operand of --ab names. The first match of these is used:

    1. a result's name: SYSTEM, SUBMITTER/SYSTEM or ROUND/SUBMITTER/SYSTEM (or with spaces in place of slashes);
    2. a path of results, a log, a run or a set of runs; several with commas, or by a pattern (runs/laptop/2026*);
    3. parts of a result's name;
    4. COMMIT or COMMIT:SYSTEM, where COMMIT is a revision of the repository or the start of a commit or code hash.

    Raises UsageError if nothing matches, or if several results, systems or configurations do.
    """
    parts = _name_parts(operand)
    named = [result for result in results if parts and parts in _accepted_names(result)]
    if named:
        return _side_from_results(operand, named, readers)
    side = _side_from_path(operand, readers)
    if side is not None:
        return side
    named = [result for result in results if parts and all(part in result.name.casefold() for part in parts)]
    side = _side_from_results(operand, named, readers) if named else _side_from_code(operand, readers)
    if side is not None:
        return side
    code = known_code(readers.folders)
    made = f"; code with runs: {format_list(code)}" if code else ""
    raise UsageError(
        f"--ab {operand!r}: there is no such result, path or commit. Name a result by SYSTEM, SUBMITTER/SYSTEM or "
        f"ROUND/SUBMITTER/SYSTEM ({len(results):,} are read), a folder of results, a set of runs "
        f"(runs/SYSTEM/DATE_TIME) or a commit{BY_HASH}{made}"
    )


def _side_from_path(operand: str, readers: Readers) -> Side | None:
    paths = _existing_paths(operand)
    own = [run for path in paths for run in find_runs(path)]
    if own:
        _require_one_system(operand, own)
        _require_one_configuration(operand, own)
        return _side_from_runs(operand, own, folders_of_run(own[0].path), readers)
    if len(paths) != 1:
        return None
    path = paths[0]
    sets = [folder for folder in sorted(path.glob("*")) if folder.is_dir() and find_runs(folder)]
    if sets:
        latest = [str(folder) for folder in reversed(sets)]
        raise UsageError(
            f"--ab {operand!r}: is a folder of sets of runs ({len(sets):,}); name one, or several with commas between "
            f"them or by a pattern: {format_list(latest)}"
        )
    return _side_from_results(operand, readers.results(path), readers)


def _existing_paths(operand: str) -> list[Path]:
    """Return the paths that an operand names; an empty list if one of them does not exist."""
    names = [operand] if os.path.lexists(operand) else operand.split(",")
    found = [[one] if os.path.lexists(one) else sorted(glob(one)) for one in names if one]  # noqa: PTH207 — patterns may be absolute
    return [Path(path) for matches in found for path in matches] if all(found) else []


def _side_from_code(operand: str, readers: Readers) -> Side | None:
    code, _, system = operand.partition(":")
    if not code or not code.isprintable():
        return None
    commit = commit_of(readers.root, code)
    if commit is None and not _HASH.fullmatch(code.lower()):
        return None
    made = runs_of_code(code.lower(), commit, readers.folders)
    own = [run for run in made if not system or run.system.casefold() == system.casefold()]
    if not own:
        others = f" (it has runs of {format_list(sorted({run.system for run in made}))})" if made else ""
        known = known_code(readers.folders)
        raise UsageError(
            f"--ab {operand!r}: {readers.folders.runs} has no run{f' of {system}' if made else ''} that "
            f"{f'commit {commit[:12]}' if commit else 'this code'} made{others}"
            f"{'' if made else f'; code with runs: {format_list(known)}' if known else ''}"
        )
    _require_one_system(operand, own, f"{code}:")
    _require_one_code(operand, own)
    _require_one_configuration(operand, own)
    return _side_from_runs(operand, own, readers.folders, readers)


def _require_one_system(operand: str, own: Sequence[RunRecord], before: str = "") -> None:
    systems = sorted({str(run.path.parents[1]) for run in own})
    if len(systems) > 1:
        choices = format_list([before + Path(one).name if before else one for one in systems])
        raise UsageError(f"--ab {operand!r}: these runs are on {len(systems)} systems; name one of them: {choices}")


def _require_one_code(operand: str, own: Sequence[RunRecord]) -> None:
    codes = sorted({run.source.code[:12] for run in own if run.source is not None})
    if len(codes) > 1:
        raise UsageError(
            f"--ab {operand!r}: these runs are of {len(codes)} versions of the code (their files differ); "
            f"name one by its hash: {format_list(codes)}"
        )


def _require_one_configuration(operand: str, own: Sequence[RunRecord]) -> None:
    different = mixed_settings(configured(run.settings for run in own))
    if different:
        sets = list(dict.fromkeys(str(run.set_folder) for run in own))
        raise UsageError(
            f"--ab {operand!r}: these runs have different configurations (they differ in {format_list(different)}); "
            f"name a set of them: {format_list(sets)}"
        )


def _choices(found: Sequence[Result]) -> list[str]:
    """Return an operand for each result: its name, or its folder if several results have that name."""
    names = Counter(result.name for result in found)
    parts = ("/".join((result.round or "own", result.submitter, result.system)) for result in found)
    return [
        f"'{result.source}'" if names[result.name] > 1 else f"'{name}'" if " " in name else name
        for result, name in zip(found, parts, strict=True)
    ]


def _side_from_results(operand: str, found: Sequence[Result], readers: Readers) -> Side:
    if len(found) > 1:
        names = format_list(_choices(found))
        raise UsageError(f"--ab {operand!r}: matches {len(found):,} results; name one of them: {names}")
    result = found[0]
    runs, notes = _drop_duplicates(result.runs)
    system, folders = locate_logs(Path(result.source)) or (result.system, readers.folders)
    own = match_by_seed(runs, system, folders) if result.own or folders == readers.folders else []
    if not own or len(own) < len(runs):
        return Side(
            operand,
            result.name,
            runs,
            result.full_size,
            settings_from_logs(runs),
            False,
            facts(result.description),
            notes,
        )
    name = f"{_describe_source(own)}, {system}" if system != result.system else result.name
    return _configured_side(operand, name, runs, own, result.description, notes)


def _side_from_runs(operand: str, own: Sequence[RunRecord], folders: OutputFolders, readers: Readers) -> Side:
    found = find_logs(own, folders, readers.runs)
    if not found.runs:
        raise UsageError(f"--ab {operand!r}: none of its runs has a complete log; {found.notes[0]}")
    runs, notes = _drop_duplicates(found.runs)
    described = found.records[0].settings.get("description")
    description = described if isinstance(described, dict) else {}
    name = f"{_describe_source(found.records)}, {own[0].system}"
    return _configured_side(operand, name, runs, found.records, description, (*found.notes, *notes))


def _configured_side(
    operand: str,
    name: str,
    runs: tuple[Run, ...],
    own: Sequence[RunRecord],
    description: Mapping[str, Any],
    notes: tuple[str, ...],
) -> Side:
    """Return the side of runs whose folders, `own`, are known. Their code is a fact if it is known for every run."""
    full_size = all(run.settings.get("size") == "large" for run in own)
    codes = [run.source.code for run in own if run.source is not None]
    code = {"code": tuple(sorted(set(codes)))} if len(codes) == len(own) else {}
    settings = configured(run.settings for run in own)
    return Side(operand, name, runs, full_size, settings, True, {**facts(description), **code}, notes)


def _describe_source(own: Sequence[RunRecord]) -> str:
    """Return the set, sets or run that these runs are, with their commit, for the name of a side."""
    sets = {run.set_folder for run in own}
    if len(own) == 1:
        return f"run {own[0].name}"
    where = f"set {sets.pop().name}" if len(sets) == 1 else f"{len(sets)} sets"
    source = own[0].source
    return where if source is None else f"{where} of {(source.commit or source.code)[:12]}"


def _drop_duplicates(runs: Sequence[Run]) -> tuple[tuple[Run, ...], tuple[str, ...]]:
    """Return the runs without duplicate logs, and a note if there were some: a test needs independent runs."""
    unique = tuple({run.digest: run for run in runs}.values())
    duplicates = len(runs) - len(unique)
    return unique, (f"{duplicates} of its logs are duplicates and not counted",) if duplicates else ()


def _name_parts(text: str) -> tuple[str, ...]:
    return tuple(part for part in re.split(r"[/\s]+", text.casefold()) if part)


def _accepted_names(result: Result) -> set[tuple[str, ...]]:
    """Return the full names of a result, split into parts."""
    system, submitter, round_name = (
        _name_parts(result.system),
        _name_parts(result.submitter),
        _name_parts(result.round or "own"),
    )
    return {system, (*submitter, *system), (*round_name, *submitter, *system)}
