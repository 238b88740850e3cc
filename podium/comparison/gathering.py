"""Reads trees of results: from paths to results that can be compared."""

import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.errors import UsageError, WorkError
from benchmarks.text import one_line, printable
from podium.comparison.building import build
from podium.comparison.cache import RunCache
from podium.comparison.places import BENCHMARK, Place, places
from podium.comparison.reading import read_runs
from podium.comparison.repeats import mark_repeats
from podium.comparison.result import Result
from podium.comparison.rounds import round_by_dates
from podium.reading.package import ResultFolder, in_order
from podium.reading.run_log import Run
from podium.submission.copying import Limits, Tally
from podium.submission.unpacking import archive_stem, is_archive, unpack

Told = Callable[[int], None]


@dataclass(frozen=True)
class Comparison:
    """Everything that was found."""

    results: tuple[Result, ...]
    """In the order of round, submitter and system; one's own last."""
    notes: tuple[str, ...] = ()
    """What was left out and why, a sentence each."""
    others: tuple[Result, ...] = ()
    """Read too, and not shown."""


def gather(
    paths: Sequence[Path],
    cache: RunCache,
    starting: Told = lambda logs: None,
    told: Told = lambda logs: None,
) -> Comparison:
    """All BERT results in trees of results or archives of some.

    `starting` is called with the number of logs, `told` with the numbers of logs read since. UsageError for a path
    that holds none, WorkError for one that cannot be read.
    """
    with ExitStack() as stack:
        unpacked = {path: _unpacked(path, stack) for path in paths}
        found = _once([(path, place) for path in unpacked for place in _places(path, unpacked[path])])
        logs = [log for _, place in found for result in place.results for log in result.logs]
        starting(len(logs))
        runs = read_runs(logs, cache, told)
        results: list[Result] = []
        notes: list[str] = []
        for path in dict.fromkeys(path for path, _ in found):
            some = _gather(path, [place for top, place in found if top == path], runs)
            inside = str(unpacked[path]), str(path)
            results += [replace(one, source=one.source.replace(*inside)) for one in some.results]
            notes += [note.replace(*inside) for note in some.notes]
    if cache.problem:
        notes.append(cache.problem)
    ordered = sorted(results, key=lambda one: (one.own, one.round or "", one.submitter.lower(), one.system))
    return Comparison(tuple(mark_repeats(ordered)), tuple(printable(note) for note in notes))


def _places(path: Path, unpacked: Path) -> list[Place]:
    """The places in a path; an error names it, and not where an archive was unpacked to."""
    try:
        return places(unpacked)
    except UsageError as error:
        raise UsageError(str(error).replace(str(unpacked), str(path))) from None


def _unpacked(path: Path, stack: ExitStack) -> Path:
    """The path, or where an archive was unpacked to."""
    try:
        if not (path.is_file() and is_archive(path)):
            return path
    except OSError as error:
        raise WorkError(f"{path}: cannot be read ({error.strerror})") from error
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="podium-compare-")))
    tally = Tally(Limits())
    unpack(path, folder / archive_stem(path), tally)
    if not tally.whole:
        raise WorkError(f"{path}: {tally.findings[-1].message}")
    return folder / archive_stem(path)


def _once(found: Sequence[tuple[Path, Place]]) -> list[tuple[Path, Place]]:
    """Each folder of logs where it is first named, with the logs that any of the paths names."""
    same: dict[Path, list[ResultFolder]] = {}
    for _, place in found:
        for result in place.results:
            same.setdefault(result.path.resolve(), []).append(result)
    kept = []
    for path, place in found:
        whole = tuple(_joined(named) for one in place.results if (named := same.pop(one.path.resolve(), None)))
        if whole:
            kept.append((path, replace(place, results=whole)))
    return kept


def _joined(named: Sequence[ResultFolder]) -> ResultFolder:
    """The same folder, of which some paths may name but some of the logs."""
    folder = named[0].path
    logs = in_order({folder / log.name for one in named for log in one.logs})
    others = sorted({folder / path.name for one in named for path in one.others})
    return replace(named[0], logs=logs, others=tuple(others))


def _gather(path: Path, found: Sequence[Place], runs: Mapping[Path, Run | str]) -> Comparison:
    """The results of one of the paths."""
    results: list[Result] = []
    notes: list[str] = []
    others = sum(place.others for place in found)
    if others:
        notes.append(f"{path}: {others:,} result(s) of other benchmarks are left out")
    unnamed = [place for place in found if place.round is None]
    starts = [
        run.start_ms
        for place in unnamed
        for result in place.results
        for log in result.logs
        if isinstance(run := runs[log], Run) and run.start_ms is not None
    ]
    dated = round_by_dates(starts)
    if unnamed and dated:
        notes.append(f"{path}: no folder names the round; {dated} is taken, by the dates of the runs")
    for place in found:
        for folder in place.results:
            kept = [run for log in folder.logs if isinstance(run := runs[log], Run)]
            problems = [f"{log.name}: {run}" for log in folder.logs if isinstance(run := runs[log], str)]
            logged = {run.benchmark for run in kept if run.benchmark is not None}
            if logged and BENCHMARK not in logged:
                words = one_line(", ".join(sorted(logged)))
                notes.append(f"{folder.path}: is left out, its logs are of {words}")
            else:
                results.append(build(place, folder, place.round or dated, kept, problems))
    return Comparison(tuple(results), tuple(notes))
