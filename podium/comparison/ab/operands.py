"""The operands of `--ab A B`: a result, a folder of logs or of runs, or the code that made runs.

Local runs are found under runs/, each with its configuration, the code that made it, and its log. A log does not
contain the name of its run's folder: the two are matched by the seed. A log is in its set's folder,
runs/SYSTEM/DATE_TIME. In the layout before it was in results/SYSTEM/bert until the next set moved it into its own
folder, runs/SYSTEM/DATE_TIME/replaced_results.

The settings that runs were made with are compared as well: in which of them two operands differ.
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

# The run of each log, or why it cannot be read: `load.read_runs` with a cache.
ReadRuns = Callable[[Sequence[Path]], Mapping[Path, Run | str]]


@dataclass(frozen=True)
class Home:
    """Where Podium keeps runs and results."""

    runs: Path = WORKING_FOLDER / "runs"
    results: Path = WORKING_FOLDER / "results"


@dataclass(frozen=True)
class Found:
    """Runs with what their logs say."""

    runs: tuple[Run, ...]
    of: tuple[RunRecord, ...]  # the folder of each
    notes: tuple[str, ...]  # which runs have no log, and why


def runs_in(folder: Path) -> list[RunRecord]:
    """The run whose folder that is, or the runs of the set, as far as they have a configuration."""
    record = RunRecord(RunFolder(folder.resolve()))
    found = [record] if RUN_NAME.fullmatch(record.path.name) else runs_of_set(record.path)
    return [run for run in found if run.configured]


def home_of(folder: Path) -> Home:
    """Of a run's folder in runs/SYSTEM/DATE_TIME/run_N: that tree, and the results beside it."""
    runs = folder.resolve().parents[2]
    return Home(runs, runs.parent / "results")


def place_of(folder: Path) -> tuple[str, Home] | None:
    """The system whose logs are in a folder, and where its runs are; None where Podium leaves no logs there.

    That is results/SYSTEM/bert, runs/SYSTEM/DATE_TIME, or replaced_results in that.
    """
    above = folder.resolve().parents
    if (folder / SET).is_file() and len(above) > 2:
        return above[0].name, Home(above[1], above[2] / "results")
    if folder.resolve().name == REPLACED and len(above) > 3:
        return above[1].name, Home(above[2], above[3] / "results")
    if len(above) > 2 and above[1].name == "results":
        return above[0].name, Home(above[2] / "runs", above[1])
    return None


def with_logs(own: Sequence[RunRecord], home: Home, read: ReadRuns) -> Found:
    """Find the runs' logs, in their sets or wherever later sets of the layout before have moved them."""
    logs = [log for place in log_folders((run.set_folder for run in own), home.results) for log in logs_in(place)]
    by_seed: dict[int, dict[str, Run]] = {}
    for run in read(logs).values():
        if isinstance(run, Run):
            for seed in run.seeds:
                by_seed.setdefault(seed, {})[run.digest] = run
    runs: list[Run] = []
    of: list[RunRecord] = []
    notes = []
    for one in own:
        alike = list(by_seed.get(one.seed, {}).values()) if one.seed is not None else []
        pair = _only_pair([(run, one) for run in alike])
        if pair is None:
            notes.append(f"{one.name} is left out: {_why(one, len(alike), home)}")
        else:
            runs.append(pair[0])
            of.append(one)
    return Found(tuple(runs), tuple(of), tuple(notes))


def by_seeds(runs: Sequence[Run], system: str, home: Home) -> list[RunRecord]:
    """The folder of each run whose seed tells it, or of several with its seed the totals; none of the others."""
    wanted = {seed for run in runs for seed in run.seeds}
    found: dict[int, list[RunRecord]] = {}
    for record in runs_of_system(home.runs / system):
        if record.seed is not None and record.seed in wanted and attempt(getattr, record, "settings")[0]:
            found.setdefault(record.seed, []).append(record)
    pairs = [_only_pair([(run, own) for seed in run.seeds for own in found.get(seed, ())]) for run in runs]
    return [pair[1] for pair in pairs if pair is not None]


def made_by(code: str, commit: str | None, home: Home) -> list[RunRecord]:
    """All runs of this commit, or of the code or commit whose hash begins with `code`."""
    return [run for run in runs_of_all_systems(home.runs) if run.configured and _is_of_code(run.source, code, commit)]


def known_code(home: Home) -> list[str]:
    """The commits, or where there are none the code hashes, that have runs, abbreviated."""
    sources = [run.source for run in reversed(runs_of_all_systems(home.runs))]
    return list(dict.fromkeys((source.commit or source.code)[:12] for source in sources if source is not None))


def _is_of_code(source: Source | None, code: str, commit: str | None) -> bool:
    if source is None or commit is not None:
        return source is not None and source.commit == commit
    return source.code.startswith(code) or (source.commit or "").startswith(code)


def _only_pair(alike: Sequence[tuple[Run, RunRecord]]) -> tuple[Run, RunRecord] | None:
    """Of a log and a folder with one seed: the only pair, or of several the only one whose totals agree."""
    pairs = [pair for pair in alike if _is_of(*pair)] if len(alike) > 1 else alike
    return pairs[0] if len(pairs) == 1 else None


def _is_of(run: Run, record: RunRecord) -> bool:
    """Whether a log is of this run, and not of another with its seed: by the samples and the seconds of its totals."""
    seconds, samples = record.summary_number("seconds"), record.summary_number("samples")
    if seconds is None or samples is None or run.seconds is None:
        return False
    return abs(run.seconds - seconds) <= CLOCKS and run.train_samples == samples


CLOCKS = 0.1  # seconds by which a run's own time and its log's differ at most


def _why(one: RunRecord, logs: int, home: Home) -> str:
    if one.seed is None:
        return "its configuration has no seed to find its log by"
    if logs > 1:
        return f"{logs} logs have its seed {one.seed}, and its totals do not tell which is its own"
    if one.folder.restarted_result.is_file():
        return "it was restarted, which is no result"
    if one.folder.log.is_file():
        return "its log is not whole yet"
    return f"no log in {one.set_folder}, {home.results} or a {REPLACED} of {home.runs} has its seed {one.seed}"


# By setting, the values that runs have, without repetitions, as text. Runs of one setting have one value.
Values = Mapping[str, tuple[str, ...]]

# Of a description: what differs and may matter.
FACTS = (
    "number_of_nodes",
    "accelerators_per_node",
    "accelerator_model_name",
    "host_processor_model_name",
    "framework",
)
# Of a configuration: what differs from run to run, and what changes no number. FACTS tell of the description.
ASIDE = ("seed", "system", "description", "launch.rendezvous", "launch.timeout_seconds")


@dataclass(frozen=True)
class Difference:
    """A setting that two sides do not have in common."""

    key: str
    a: tuple[str, ...]
    b: tuple[str, ...]


def logged(runs: Sequence[Run]) -> dict[str, tuple[str, ...]]:
    """What logs tell of the settings."""
    pairs: list[tuple[str, Any]] = []
    for run in runs:
        pairs += [("global_batch_size", run.global_batch_size), ("eval_samples", run.eval_samples)]
        pairs += run.hyperparameters.items()
    return gathered(pairs)


def configured(configs: Iterable[Mapping[str, Any]]) -> dict[str, tuple[str, ...]]:
    """What configurations of runs tell, as dotted keys."""
    return gathered(pair for config in configs for pair in flat(config))


def facts(description: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """What a description tells of a system."""
    return gathered((key, description[key]) for key in FACTS if description.get(key) not in (None, ""))


def flat(config: Mapping[str, Any], above: str = "") -> list[tuple[str, Any]]:
    """The keys of a configuration that count, with dots between their parts, and their values."""
    found: list[tuple[str, Any]] = []
    for key, value in config.items():
        name = f"{above}{key}"
        if name in ASIDE:
            continue
        if isinstance(value, Mapping):
            found += flat(value, f"{name}.")
        else:
            found.append((name, value))
    return found


def gathered(pairs: Iterable[tuple[str, Any]]) -> dict[str, tuple[str, ...]]:
    """Settings with their values, those that are None left out."""
    found: dict[str, dict[str, None]] = {}
    for key, value in pairs:
        if value is not None:
            found.setdefault(one_line(key), {})[_text(value)] = None
    return {key: tuple(sorted(values)) for key, values in found.items()}


def unequal(settings: Values) -> list[str]:
    """The settings that runs of one side do not have in common."""
    return [key for key, values in settings.items() if len(values) > 1]


def differences(a: Values, b: Values) -> tuple[Difference, ...]:
    """In the order of the keys; a key that one side does not tell is no difference."""
    return tuple(Difference(key, a[key], b[key]) for key in sorted(a) if key in b and a[key] != b[key])


def _text(value: Any) -> str:
    """Numbers that are equal are one text."""
    if isinstance(value, str):
        return one_line(value)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return f"{value:,}" if isinstance(value, int) else f"{value:.10g}"
    return one_line(json.dumps(value, default=str))


BY_HASH = " (by its hash; other revisions need a clone of Podium)" if INSTALLED else ""
_HASH = re.compile(r"[0-9a-f]{7,64}")


@dataclass(frozen=True)
class Readers:
    """How a side's logs are read and found."""

    results: Callable[[Path], Sequence[Result]]  # the results in a path: `load.gather`
    runs: ReadRuns
    home: Home = Home()
    root: Path = CODE_FOLDER  # the repository whose commits can be named


@dataclass(frozen=True)
class Side:
    """Runs that are compared as one."""

    asked: str  # as it was named
    name: str  # what that is
    runs: tuple[Run, ...]  # no log twice
    full_size: bool  # whether BERT-large was trained, as far as is known
    settings: Values  # by the configurations of the runs where `configured`, else by their logs
    configured: bool
    facts: Values  # what the description tells of the system, and the code where it is known
    notes: tuple[str, ...] = ()


def find_side(asked: str, results: Sequence[Result], readers: Readers) -> Side:
    """The side of that name. The first of these that there is counts:

    a result, named SYSTEM, SUBMITTER/SYSTEM or ROUND/SUBMITTER/SYSTEM (or with spaces between them); a path of results,
    of a log, a run or a set of runs, several of these with commas between them or by a pattern (runs/laptop/2026*);
    parts of a result's name; COMMIT or COMMIT:SYSTEM, where COMMIT is a revision of the repository or begins the hash
    of a commit or of code. UsageError where nothing or more than one thing has the name.
    """
    words = _words(asked)
    named = [result for result in results if words and words in _names(result)]
    if named:
        return _of_result(asked, named, readers)
    side = _by_path(asked, readers)
    if side is not None:
        return side
    named = [result for result in results if words and all(word in result.name.casefold() for word in words)]
    side = _of_result(asked, named, readers) if named else _by_code(asked, readers)
    if side is not None:
        return side
    code = known_code(readers.home)
    made = f"; code with runs: {format_list(code)}" if code else ""
    raise UsageError(
        f"--ab {asked!r}: there is no such result, path or commit. Name a result by SYSTEM, SUBMITTER/SYSTEM or "
        f"ROUND/SUBMITTER/SYSTEM ({len(results):,} are read), a folder of results, a set of runs "
        f"(runs/SYSTEM/DATE_TIME) or a commit{BY_HASH}{made}"
    )


def _by_path(asked: str, readers: Readers) -> Side | None:
    paths = _paths(asked)
    own = [run for path in paths for run in runs_in(path)]
    if own:
        _require_one_system(asked, own)
        _require_one_configuration(asked, own)
        return _of_own(asked, own, home_of(own[0].path), readers)
    if len(paths) != 1:
        return None
    path = paths[0]
    sets = [folder for folder in sorted(path.glob("*")) if folder.is_dir() and runs_in(folder)]
    if sets:
        latest = [str(folder) for folder in reversed(sets)]
        raise UsageError(
            f"--ab {asked!r}: holds {len(sets):,} sets of runs; name one, or several with commas between them or by a "
            f"pattern: {format_list(latest)}"
        )
    return _of_result(asked, readers.results(path), readers)


def _paths(asked: str) -> list[Path]:
    """Those that are named and exist; none where one of several does not."""
    names = [asked] if os.path.lexists(asked) else asked.split(",")
    found = [[one] if os.path.lexists(one) else sorted(glob(one)) for one in names if one]  # noqa: PTH207 — absolute too
    return [Path(path) for some in found for path in some] if all(found) else []


def _by_code(asked: str, readers: Readers) -> Side | None:
    code, _, system = asked.partition(":")
    if not code or not code.isprintable():
        return None
    commit = commit_of(readers.root, code)
    if commit is None and not _HASH.fullmatch(code.lower()):
        return None
    made = made_by(code.lower(), commit, readers.home)
    own = [run for run in made if not system or run.system.casefold() == system.casefold()]
    if not own:
        others = f" (it has of {format_list(sorted({run.system for run in made}))})" if made else ""
        known = known_code(readers.home)
        raise UsageError(
            f"--ab {asked!r}: {readers.home.runs} has no run{f' of {system}' if made else ''} that "
            f"{f'commit {commit[:12]}' if commit else 'this code'} made{others}"
            f"{'' if made else f'; code with runs: {format_list(known)}' if known else ''}"
        )
    _require_one_system(asked, own, f"{code}:")
    _require_one_code(asked, own)
    _require_one_configuration(asked, own)
    return _of_own(asked, own, readers.home, readers)


def _require_one_system(asked: str, own: Sequence[RunRecord], before: str = "") -> None:
    systems = sorted({str(run.path.parents[1]) for run in own})
    if len(systems) > 1:
        choices = format_list([before + Path(one).name if before else one for one in systems])
        raise UsageError(f"--ab {asked!r}: is runs on {len(systems)} systems; name one of them: {choices}")


def _require_one_code(asked: str, own: Sequence[RunRecord]) -> None:
    codes = sorted({run.source.code[:12] for run in own if run.source is not None})
    if len(codes) > 1:
        raise UsageError(
            f"--ab {asked!r}: these runs are of {len(codes)} versions of the code (files were changed); name one by "
            f"its hash: {format_list(codes)}"
        )


def _require_one_configuration(asked: str, own: Sequence[RunRecord]) -> None:
    different = unequal(configured(run.settings for run in own))
    if different:
        sets = list(dict.fromkeys(str(run.set_folder) for run in own))
        raise UsageError(
            f"--ab {asked!r}: these runs are not of one configuration (they differ in {format_list(different)}); "
            f"name a set of them: {format_list(sets)}"
        )


def _options(found: Sequence[Result]) -> list[str]:
    """What each can be named by: its folder, where results have the same name."""
    names = Counter(result.name for result in found)
    parts = ("/".join((result.round or "own", result.submitter, result.system)) for result in found)
    return [
        f"'{result.source}'" if names[result.name] > 1 else f"'{name}'" if " " in name else name
        for result, name in zip(found, parts, strict=True)
    ]


def _of_result(asked: str, found: Sequence[Result], readers: Readers) -> Side:
    if len(found) > 1:
        names = format_list(_options(found))
        raise UsageError(f"--ab {asked!r}: is {len(found):,} results; name one of them: {names}")
    result = found[0]
    runs, notes = _once(result.runs)
    system, home = place_of(Path(result.source)) or (result.system, readers.home)
    own = by_seeds(runs, system, home) if result.own or home == readers.home else []
    if not own or len(own) < len(runs):
        return Side(asked, result.name, runs, result.full_size, logged(runs), False, facts(result.description), notes)
    name = f"{_titled(own)}, {system}" if system != result.system else result.name
    return _configured_side(asked, name, runs, own, result.description, notes)


def _of_own(asked: str, own: Sequence[RunRecord], home: Home, readers: Readers) -> Side:
    found = with_logs(own, home, readers.runs)
    if not found.runs:
        raise UsageError(f"--ab {asked!r}: no run of it has a log that is whole; {found.notes[0]}")
    runs, notes = _once(found.runs)
    described = found.of[0].settings.get("description")
    description = described if isinstance(described, dict) else {}
    name = f"{_titled(found.of)}, {own[0].system}"
    return _configured_side(asked, name, runs, found.of, description, (*found.notes, *notes))


def _configured_side(
    asked: str,
    name: str,
    runs: tuple[Run, ...],
    own: Sequence[RunRecord],
    description: Mapping[str, Any],
    notes: tuple[str, ...],
) -> Side:
    """Runs whose folders are known, those of `own`: their code, as a fact, where every run kept it."""
    full_size = all(run.settings.get("size") == "large" for run in own)
    codes = [run.source.code for run in own if run.source is not None]
    code = {"code": tuple(sorted(set(codes)))} if len(codes) == len(own) else {}
    settings = configured(run.settings for run in own)
    return Side(asked, name, runs, full_size, settings, True, {**facts(description), **code}, notes)


def _titled(own: Sequence[RunRecord]) -> str:
    sets = {run.set_folder for run in own}
    if len(own) == 1:
        return f"run {own[0].name}"
    where = f"set {sets.pop().name}" if len(sets) == 1 else f"{len(sets)} sets"
    source = own[0].source
    return where if source is None else f"{where} of {(source.commit or source.code)[:12]}"


def _once(runs: Sequence[Run]) -> tuple[tuple[Run, ...], tuple[str, ...]]:
    """Without logs that are there twice, and a note of them."""
    unique = tuple({run.digest: run for run in runs}.values())
    more = len(runs) - len(unique)
    return unique, (f"{more} of its logs are there twice and counted once",) if more else ()


def _words(text: str) -> tuple[str, ...]:
    return tuple(word for word in re.split(r"[/\s]+", text.casefold()) if word)


def _names(result: Result) -> set[tuple[str, ...]]:
    """Whole names of a result, as words."""
    system, submitter, round_name = _words(result.system), _words(result.submitter), _words(result.round or "own")
    return {system, (*submitter, *system), (*round_name, *submitter, *system)}
