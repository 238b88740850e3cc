"""What `--ab A B` names: a result, a folder of logs or of runs, or the code that made runs. Each becomes a side."""

import os
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from glob import glob
from pathlib import Path

from benchmarks.errors import UsageError
from podium.comparison.ab.own_runs import (
    Home,
    ReadRuns,
    by_seeds,
    home_of,
    known_code,
    made_by,
    place_of,
    runs_in,
    with_logs,
)
from podium.comparison.ab.settings import Values, configured, facts, logged, unequal
from podium.comparison.result import Result
from podium.config.loading import ROOT
from podium.reading.run_log import Run
from podium.records import RunRecord
from podium.source import commit_of

MOST_NAMED = 12
"""Candidates that a refusal names."""
_HASH = re.compile(r"[0-9a-f]{7,64}")


@dataclass(frozen=True)
class Readers:
    """How a side's logs are read and found."""

    results: Callable[[Path], Sequence[Result]]
    """The results in a path: `gathering.gather`."""
    runs: ReadRuns
    home: Home = Home()
    root: Path = ROOT
    """The repository whose commits can be named."""


@dataclass(frozen=True)
class Side:
    """Runs that are compared as one."""

    asked: str
    """As it was named."""
    name: str
    """What that is."""
    runs: tuple[Run, ...]
    """No log twice."""
    full_size: bool
    """Whether BERT-large was trained, as far as is known."""
    settings: Values
    """By the configurations of the runs where `configured`, else by their logs."""
    configured: bool
    facts: Values
    """What the description tells of the system, and the code where it is known."""
    notes: tuple[str, ...] = ()


def find_side(asked: str, results: Sequence[Result], readers: Readers) -> Side:
    """The side of that name. The first of these that there is counts:

    a result, named SYSTEM, SUBMITTER/SYSTEM or ROUND/SUBMITTER/SYSTEM (or with spaces between them); a path of results,
    of a log, a run or a set of runs, several of these with commas between them or by a pattern (runs/laptop/2026*);
    parts of a result's name; COMMIT or COMMIT:SYSTEM, where COMMIT is a revision of the repository or begins the hash
    of a commit or of code. UsageError where nothing or more than one thing has the name.
    """
    for find in (_by_name, _by_path, _by_parts, _by_code):
        side = find(asked, results, readers)
        if side is not None:
            return side
    code = known_code(readers.home)
    made = f"; code with runs: {_several(code)}" if code else ""
    raise UsageError(
        f"--ab {asked!r}: there is no such result, path or commit. Name a result by SYSTEM, SUBMITTER/SYSTEM or "
        f"ROUND/SUBMITTER/SYSTEM ({len(results):,} are read), a folder of results, a set of runs "
        f"(runs/SYSTEM/DATE_TIME) or a commit{made}"
    )


def _by_name(asked: str, results: Sequence[Result], readers: Readers) -> Side | None:
    words = _words(asked)
    found = [result for result in results if words and words in _names(result)]
    return _one_result(asked, found, readers) if found else None


def _by_parts(asked: str, results: Sequence[Result], readers: Readers) -> Side | None:
    words = _words(asked)
    found = [result for result in results if words and all(word in result.name.casefold() for word in words)]
    return _one_result(asked, found, readers) if found else None


def _by_path(asked: str, results: Sequence[Result], readers: Readers) -> Side | None:
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
            f"pattern: {_several(latest)}"
        )
    return _one_result(asked, readers.results(path), readers)


def _paths(asked: str) -> list[Path]:
    """Those that are named and exist; none where one of several does not."""
    names = [asked] if os.path.lexists(asked) else asked.split(",")
    found = [[one] if os.path.lexists(one) else sorted(glob(one)) for one in names if one]  # noqa: PTH207 — absolute too
    return [Path(path) for some in found for path in some] if all(found) else []


def _by_code(asked: str, results: Sequence[Result], readers: Readers) -> Side | None:
    code, _, system = asked.partition(":")
    if not code or not code.isprintable():
        return None
    commit = commit_of(readers.root, code)
    if commit is None and not _HASH.fullmatch(code.lower()):
        return None
    made = made_by(code.lower(), commit, readers.home)
    own = [run for run in made if not system or run.system.casefold() == system.casefold()]
    if not own:
        others = f" (it has of {_several(sorted({run.system for run in made}))})" if made else ""
        known = known_code(readers.home)
        raise UsageError(
            f"--ab {asked!r}: {readers.home.runs} has no run{f' of {system}' if made else ''} that "
            f"{f'commit {commit[:12]}' if commit else 'this code'} made{others}"
            f"{'' if made else f'; code with runs: {_several(known)}' if known else ''}"
        )
    _require_one_system(asked, own, f"{code}:")
    _require_one_code(asked, own)
    _require_one_configuration(asked, own)
    return _of_own(asked, own, readers.home, readers)


def _require_one_system(asked: str, own: Sequence[RunRecord], before: str = "") -> None:
    systems = sorted({str(run.path.parents[1]) for run in own})
    if len(systems) > 1:
        choices = _several([before + Path(one).name if before else one for one in systems])
        raise UsageError(f"--ab {asked!r}: is runs on {len(systems)} systems; name one of them: {choices}")


def _require_one_code(asked: str, own: Sequence[RunRecord]) -> None:
    codes = sorted({run.source.code[:12] for run in own if run.source is not None})
    if len(codes) > 1:
        raise UsageError(
            f"--ab {asked!r}: these runs are of {len(codes)} versions of the code (files were changed); name one by "
            f"its hash: {_several(codes)}"
        )


def _require_one_configuration(asked: str, own: Sequence[RunRecord]) -> None:
    different = unequal(configured(run.settings for run in own))
    if different:
        sets = list(dict.fromkeys(str(run.set_folder) for run in own))
        raise UsageError(
            f"--ab {asked!r}: these runs are not of one configuration (they differ in {_several(different)}); name a "
            f"set of them: {_several(sets)}"
        )


def _one_result(asked: str, found: Sequence[Result], readers: Readers) -> Side:
    if len(found) > 1:
        names = _several(_told(found))
        raise UsageError(f"--ab {asked!r}: is {len(found):,} results; name one of them: {names}")
    result = found[0]
    return _of_result(asked, result, readers)


def _told(found: Sequence[Result]) -> list[str]:
    """What each can be named by: its folder, where results have the same name."""
    names = Counter(result.name for result in found)
    parts = ("/".join((result.round or "own", result.submitter, result.system)) for result in found)
    return [
        f"'{result.source}'" if names[result.name] > 1 else f"'{name}'" if " " in name else name
        for result, name in zip(found, parts, strict=True)
    ]


def _of_result(asked: str, result: Result, readers: Readers) -> Side:
    runs, notes = _once(result.runs)
    system, home = place_of(Path(result.source)) or (result.system, readers.home)
    own = by_seeds(runs, system, home) if result.own or home == readers.home else []
    known = len(own) == len(runs) and bool(own)
    return Side(
        asked,
        f"{_titled(own)}, {system}" if known and system != result.system else result.name,
        runs,
        all(run.settings.get("size") == "large" for run in own) if known else result.full_size,
        configured(run.settings for run in own) if known else logged(runs),
        known,
        {**facts(result.description), **_code(own if known else [])},
        notes,
    )


def _of_own(asked: str, own: Sequence[RunRecord], home: Home, readers: Readers) -> Side:
    found = with_logs(own, home, readers.runs)
    if not found.runs:
        raise UsageError(f"--ab {asked!r}: no run of it has a log that is whole; {found.notes[0]}")
    runs, notes = _once(found.runs)
    description = found.of[0].settings.get("description")
    return Side(
        asked,
        f"{_titled(found.of)}, {own[0].system}",
        runs,
        all(run.settings.get("size") == "large" for run in found.of),
        configured(run.settings for run in found.of),
        True,
        {**facts(description if isinstance(description, dict) else {}), **_code(found.of)},
        (*found.notes, *notes),
    )


def _titled(own: Sequence[RunRecord]) -> str:
    sets = {run.set_folder for run in own}
    if len(own) == 1:
        return f"run {own[0].name}"
    where = f"set {sets.pop().name}" if len(sets) == 1 else f"{len(sets)} sets"
    source = own[0].source
    return where if source is None else f"{where} of {(source.commit or source.code)[:12]}"


def _code(own: Sequence[RunRecord]) -> dict[str, tuple[str, ...]]:
    """The code as a fact, where every run kept it."""
    codes = [run.source.code for run in own if run.source is not None]
    return {"code": tuple(sorted(set(codes)))} if own and len(codes) == len(own) else {}


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


def _several(names: Sequence[str]) -> str:
    rest = len(names) - MOST_NAMED
    return ", ".join(names[:MOST_NAMED]) + (f" and {rest:,} more" if rest > 0 else "")
