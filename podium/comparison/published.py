"""`podium compare --published SYSTEM`: whether a system's runs have the published time and samples to target.

The published runs are those that the system's file names under `reproduces`. Their logs, where they are given, show how
the published time was spent; without them only totals are compared.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.console import Console

from podium.comparison.ab.operands import OutputFolders, ReadRuns, configured, find_logs, mixed_settings
from podium.comparison.result import Result
from podium.config.load import load_system, system_path
from podium.config.schema import Reproduces, is_stated
from podium.core.console import print_figures, print_line, result_table
from podium.core.errors import UsageError, attempt
from podium.core.text import format_list
from podium.mllog.benchmarks import find_benchmark
from podium.mllog.run import BERT, Run
from podium.mllog.significance import Summary, Welch, format_p_value, summarize, welch_test
from podium.run.records import RunRecord, runs_of_system
from podium.submission.describe import same_accelerator

ROUND = re.compile(r"v\d+\.\d+")
# Parts of a run's time: samples come first, as the number of steps; the others are seconds that each run spends.
START, EVALUATION, STEPS = "start-up", "evaluation", "steps"


@dataclass(frozen=True)
class Part:
    """A share of the difference of the mean times, in seconds; positive where your runs took longer."""

    name: str
    seconds: float
    published: float | None = None  # seconds of a run that were spent in it; None where it is not a span of time
    own: float | None = None


@dataclass(frozen=True)
class PublishedComparison:
    """A system's runs beside the published ones."""

    system: str
    name: str  # of the published result
    verdict: str
    seconds: tuple[Summary, Summary]  # yours, published
    seconds_test: Welch | str
    samples: tuple[Summary, Summary]
    samples_test: Welch | str
    parts: tuple[Part, ...]  # of the difference of the times; they add up to it
    notes: tuple[str, ...]


def compare_published(
    system: str, published: Sequence[Result], read: ReadRuns, folders: OutputFolders = OutputFolders()
) -> PublishedComparison:
    """Compare the runs of a system with the result that it reproduces. `published`: results in the given paths, if any.

    Raises UsageError for a system without `reproduces`, one without runs, paths without its result, and runs of
    another task: of another size of the model, or with another target accuracy.
    """
    path, config = system_path(system), load_system(system)
    wanted = config.reproduces
    if wanted is None:
        raise UsageError(
            f"{path}: reproduces is missing, the published result to compare with; write a system with "
            "`podium systems new NAME --from PUBLISHED`"
        )
    settings, records, notes = _own_records(path.stem, folders)
    result = _published_result(wanted, published)
    name = f"{wanted.round} {wanted.submitter} {wanted.system}"
    other_task = _other_task(settings, wanted)
    if other_task:
        raise UsageError(
            f"{folders.runs / path.stem}: not the same task: {'; '.join(other_task)}, {name} second; run the system "
            "with the published settings to compare them"
        )
    differences = _other_hardware(settings, wanted, result)
    runs, of_runs = _own_runs(folders.runs / path.stem, records, read, folders)
    notes += of_runs
    theirs = [run for run in result.runs if run.converged] if result is not None else []
    own_seconds = [run.seconds for run in runs if run.seconds is not None]
    own_samples = [run.samples for run in runs if run.samples is not None]
    seconds = summarize(own_seconds), summarize(wanted.seconds)
    samples = summarize(own_samples), summarize(wanted.samples)
    seconds_test, samples_test = welch_test(*seconds), welch_test(*samples)
    parts = _parts_by_phases(runs, theirs) or _parts_of_totals(seconds, samples)
    if not theirs:
        notes.append(
            "name the published logs as PATH to see how their time was spent; without them there are totals only"
        )
    elif len(parts) < len((START, EVALUATION, STEPS)):
        notes.append("the logs of both sides do not all state samples and evaluations' times: only totals are compared")
    if len(runs) < len(wanted.seconds):
        notes.append(f"{len(runs)} of your runs against {len(wanted.seconds)}: more runs narrow the interval")
    first = f"Not the same task: {'; '.join(differences)}, {name} second. " if differences else ""
    verdict = (
        f"{first}{_sentence('Time-to-train', name, seconds, seconds_test, ' s')} "
        f"{_sentence('Samples to target', name, samples, samples_test, '')}{_cause(parts, seconds_test)}"
    )
    return PublishedComparison(
        path.stem, name, verdict, seconds, seconds_test, samples, samples_test, parts, tuple(notes)
    )


def _own_records(system: str, folders: OutputFolders) -> tuple[Mapping[str, Any], list[RunRecord], list[str]]:
    """Return the settings of a system's newest run, the runs that have them, and what is left out."""
    records = [one for one in runs_of_system(folders.runs / system) if one.configured]
    if not records:
        raise UsageError(f"{folders.runs / system}: has no runs of {system}; start some with `podium run {system}`")
    newest = records[-1].settings
    same = [one for one in records if _has_settings(one, newest)]
    notes = []
    if len(same) < len(records):
        notes.append(f"{len(records) - len(same)} runs with other settings than the newest are left out")
    return newest, same, notes


def _own_runs(
    folder: Path, records: Sequence[RunRecord], read: ReadRuns, folders: OutputFolders
) -> tuple[list[Run], list[str]]:
    """Return the runs that reached the target, and what is left out."""
    found = find_logs(records, folders, read)
    converged = [run for run in found.runs if run.converged]
    notes = list(found.notes)
    if missed := len(found.runs) - len(converged):
        runs = "1 run that did not reach the target is" if missed == 1 else f"{missed} runs that did not reach it are"
        notes.append(f"{runs} left out")
    if not converged:
        why = format_list(notes, most=3) or "there is none"
        raise UsageError(f"{folder}: has no run with a complete log that reached the target ({why})")
    return converged, notes


def _other_task(settings: Mapping[str, Any], wanted: Reproduces) -> list[str]:
    """Return the settings by which the runs train another task than the published ones, each with both values."""
    rules = find_benchmark(BERT)
    assert rules is not None
    targets = rules.targets_in(wanted.round if ROUND.fullmatch(wanted.round) else None)
    target = targets[0].value
    own = settings.get("target_accuracy", target)
    found = []
    if settings.get("size", wanted.size) != wanted.size:
        found.append(f"size {settings['size']} against {wanted.size}")
    if own != target:
        found.append(f"target accuracy {'none' if own is None else own} against {target:g}")
    return found


def _other_hardware(settings: Mapping[str, Any], wanted: Reproduces, result: Result | None) -> list[str]:
    """Return batch and accelerators where they differ from the published ones, each with both values."""
    launch = settings.get("launch", {})
    description = settings.get("description", {})
    batch, accelerators, model = wanted.global_batch_size, wanted.accelerators, wanted.accelerator
    if result is not None:
        batch = batch or result.global_batch_size
        accelerators = result.accelerators if accelerators is None else accelerators
        model = model or result.accelerator or ""
    found = []
    own_batch = settings.get("global_batch_size", batch)
    if batch is not None and own_batch != batch:
        found.append(f"global batch size {own_batch:,} against {batch:,}")
    if "processes_per_node" in launch and accelerators is not None:
        own = launch["nodes"] * launch["processes_per_node"] if launch["device"] == "cuda" else 0
        if own != accelerators:
            found.append(f"{f'{own:,}' if own else 'no'} accelerator{'s' * (own != 1)} against {accelerators:,}")
    own_model = str(description.get("accelerator_model_name", ""))
    if model and is_stated(own_model) and not same_accelerator(own_model, model):
        found.append(f"accelerator {own_model} against {model}")
    return found


def _has_settings(record: RunRecord, wanted: Mapping[str, Any]) -> bool:
    """Whether a run's configuration can be read and agrees with another one."""
    settings: Mapping[str, Any] | None = attempt(getattr, record, "settings")[0]
    return settings is not None and not mixed_settings(configured([wanted, settings]))


def _published_result(wanted: Reproduces, published: Sequence[Result]) -> Result | None:
    """Return the result that a system reproduces, of the given ones; None where no path is given."""
    if not published:
        return None
    found = [one for one in published if (one.submitter, one.system) == (wanted.submitter, wanted.system)]
    found = [one for one in found if (one.round or "own") == wanted.round] or found
    if not found:
        names = format_list(sorted({one.name for one in published}), most=4)
        raise UsageError(
            f"PATH: has no result {wanted.round} {wanted.submitter} {wanted.system}, which the system reproduces; it "
            f"has {names}"
        )
    return found[0]


def _sentence(what: str, name: str, both: tuple[Summary, Summary], test: Welch | str, unit: str) -> str:
    own, published = both
    unknown = [side for side, one in (("your runs", own), (name, published)) if one.mean is None]
    if unknown:
        stated = "the logs state none at an evaluation that reaches MLPerf's target" if not unit else "not stated"
        return f"{what} cannot be compared: {stated} (of {' and '.join(unknown)})."
    figures = f"{_mean(own)}{unit} (n = {own.n}) against {_mean(published)}{unit} (n = {published.n}) of {name}"
    if isinstance(test, str):
        if own.mean == published.mean:
            return f"{what} is that published: {figures}, all runs alike."
        few = "a test needs two runs on either side" if min(own.n, published.n) < 2 else test
        return f"Whether {what[0].lower()}{what[1:]} is that published cannot be tested: {figures}; {few}."
    interval = ""
    if test.interval is not None:
        interval = f", {test.interval[0]:.3f} to {test.interval[1]:.3f} with 95% confidence"
    ratio = f"the ratio is {test.ratio:.3f}{interval}, {format_p_value(test.p)}"
    if test.significant:
        return f"{what} is not that published: {figures}; {ratio}."
    percent = None if test.detectable_ratio is None else 100 * (test.detectable_ratio - 1)
    least = "even a hundredfold difference would rarely be detected by so few runs"
    if percent is not None:
        least = f"a difference of {percent:,.{0 if percent >= 10 else 1}f}% would mostly be detected"
    return f"{what} does not differ from that published: {figures}; {ratio}; {least}."


def _mean(one: Summary) -> str:
    assert one.mean is not None
    return f"{one.mean:,.0f}" if one.mean >= 1e4 else f"{one.mean:,.2f}"


def _cause(parts: Sequence[Part], test: Welch | str) -> str:
    """Return a sentence on the largest parts of a difference that is significant, or that cannot be tested."""
    if not parts or (isinstance(test, Welch) and not test.significant):
        return ""
    shares = ", ".join(f"{one.seconds:+.2f} s {one.name}" for one in sorted(parts, key=lambda p: -abs(p.seconds)))
    return f" Of the difference of {sum(one.seconds for one in parts):+.2f} s: {shares}."


def _parts_by_phases(own: Sequence[Run], published: Sequence[Run]) -> tuple[Part, ...]:
    """Split the difference of the mean times into start-up, evaluation, steps' speed and samples; () if not logged."""
    ours, theirs = _phases(own), _phases(published)
    if ours is None or theirs is None:
        return ()
    by_samples, by_speed = _split(ours["samples"], ours[STEPS], theirs["samples"], theirs[STEPS])
    return (
        Part("by other samples to target", by_samples),
        Part("in the speed of steps", by_speed, theirs[STEPS], ours[STEPS]),
        Part("in evaluation", ours[EVALUATION] - theirs[EVALUATION], theirs[EVALUATION], ours[EVALUATION]),
        Part("in start-up", ours[START] - theirs[START], theirs[START], ours[START]),
    )


def _phases(runs: Sequence[Run]) -> dict[str, float] | None:
    """Return the mean seconds of start-up, evaluation and steps, and mean samples; None if a run does not log them.

    Start-up is what the first evaluation is later than the pace after it predicts; steps are the rest.
    """
    rows = []
    for run in runs:
        if run.seconds is None or run.samples is None or run.evaluating_seconds is None:
            return None
        start = max(0.0, run.startup_seconds or 0.0)
        steps = run.seconds - run.evaluating_seconds - start
        rows.append({START: start, EVALUATION: run.evaluating_seconds, STEPS: steps, "samples": run.samples})
    return {key: fmean(row[key] for row in rows) for key in rows[0]} if rows else None


def _parts_of_totals(seconds: tuple[Summary, Summary], samples: tuple[Summary, Summary]) -> tuple[Part, ...]:
    """Split the difference of the mean times into samples and time per sample."""
    values = [one.mean for one in (samples[0], seconds[0], samples[1], seconds[1])]
    known = [value for value in values if value]
    if len(known) < len(values):
        return ()
    by_samples, by_speed = _split(*known)
    return Part("by other samples to target", by_samples), Part("in the time per sample", by_speed)


def _split(own_samples: float, own_seconds: float, samples: float, seconds: float) -> tuple[float, float]:
    """Split a difference of seconds = samples · seconds per sample into the shares of the two factors; they add up."""
    own_rate, rate = own_seconds / own_samples, seconds / samples
    return (own_samples - samples) * (own_rate + rate) / 2, (own_rate - rate) * (own_samples + samples) / 2


def as_json(found: PublishedComparison) -> dict[str, Any]:
    """Return the comparison as one JSON object."""
    return {
        "system": found.system,
        "published": found.name,
        "verdict": found.verdict,
        "seconds": _quantity_json(found.seconds, found.seconds_test),
        "samples": _quantity_json(found.samples, found.samples_test),
        "difference_seconds": [asdict(part) for part in found.parts],
        "notes": list(found.notes),
    }


def _quantity_json(both: tuple[Summary, Summary], test: Welch | str) -> dict[str, Any]:
    return {
        "own": asdict(both[0]),
        "published": asdict(both[1]),
        "same": None if isinstance(test, str) else not test.significant,
        "welch": asdict(test) if isinstance(test, Welch) else None,
        "untested": test if isinstance(test, str) else None,
    }


def print_published(console: Console, found: PublishedComparison) -> None:
    """Print the sentence, and where the time went."""
    print_line(console, found.verdict, style="bold")
    if found.parts:
        table = result_table(None, ["where the time went"], ["published", "yours", "difference"])
        for part in found.parts:
            spans = ("–" if value is None else f"{value:,.2f} s" for value in (part.published, part.own))
            table.add_row(part.name, *spans, f"{part.seconds:+,.2f} s")
        total = [f"{one.mean:,.2f} s" if one.mean is not None else "–" for one in reversed(found.seconds)]
        table.add_row("time-to-train", *total, f"{sum(part.seconds for part in found.parts):+,.2f} s")
        print_figures(console, table)
    for note in found.notes:
        print_line(console, note)
