"""`podium sweep`: the cross product of recipes and settings, a set of runs for each combination.

A combination has a folder in the sweep's, named by its values and by a hash of its configuration, and run_N in it has
seed N. What is finished there is not made again, so that a sweep resumes after an interruption, and can be extended by
further values and seeds. The runs are marked as no results: their seeds are stated, and a set may be made in parts.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from re import sub as replace_pattern
from typing import Any

from podium.config.hyperparameters import describe_hyperparameters
from podium.config.load import LoadedSystem, load_resolved, resolve_system, system_path
from podium.config.run_data import RunData, read_run_data
from podium.config.run_folder import RunFolder
from podium.config.schema import RunConfig
from podium.core.errors import Interrupted, PodiumError, StoppedAfterSaving, UsageError, WorkError, attempt
from podium.core.files import make_folder, make_named_folder, require_folder_or_no_file, sha256_of, write_error
from podium.core.json_files import json_digest
from podium.core.locks import assert_unlocked, folder_lock
from podium.core.text import format_list, truncate
from podium.launch.node_group import NodeGroup, node_group
from podium.planning.hardware import hardware_warnings, require_hardware
from podium.run import run_set
from podium.run.collect import FinishedRun
from podium.run.prepare import check_checkpoint, prepare_set
from podium.run.progress import Progress
from podium.run.records import differing_settings
from podium.run.results import RESULTS, final_log_path
from podium.run.run_set import launch_and_collect, prepare_recorded, system_lock
from podium.run.set_record import SET, SetRecord, read_set, write_set
from podium.run.source import current_source, read_source

SWEPT = "it is a run of `podium sweep`, with a stated seed"  # EndedRun.fault in set.json: do not change
EARLIER = "earlier_attempts"  # a folder in a set's, with runs that did not finish and were made again
MAX_NAME = 80  # characters of a folder's name before the hash
MAX_SETS = 1_000
CLOSING = {"[": "]", "{": "}"}


@dataclass(frozen=True)
class SweepRequest:
    """The options of a `podium sweep`."""

    system: str  # a name in systems/, or the path of a system's YAML file
    recipes: Sequence[str]  # empty: the system's
    settings: Sequence[str]  # each key=value or key=value,value,…
    seeds: int
    folder: Path | None = None  # None: runs/SYSTEM/sweep


@dataclass(frozen=True)
class SweepSet:
    """One combination of a sweep, and the set of its runs."""

    name: str  # the values that differ between the sets, such as `indexed, optimizer.learning_rate=0.002`
    recipe: str | None
    settings: tuple[str, ...]
    config: RunConfig
    folder: Path
    seeds: range
    warnings: tuple[str, ...] = ()  # what a user should know about the configuration, one line each

    def run(self, seed: int) -> RunFolder:
        return RunFolder(self.folder / f"run_{seed}")

    @property
    def unfinished(self) -> Mapping[int, str]:
        """Seeds of the runs that are to be made, each with why it is made again; empty if it was never begun.

        WorkError if the set's record cannot be read.
        """
        record, error = attempt(read_set, self.folder)
        if error is not None:
            raise WorkError(f"{error}; or move {self.folder} away, so that its runs are made again")
        reasons = ((seed, self._reason(record, seed)) for seed in self.seeds)
        return {seed: reason for seed, reason in reasons if reason is not None}

    def _reason(self, record: SetRecord | None, seed: int) -> str | None:
        """Return why a run does not count as finished; None if it does, which needs all that it left, unchanged."""
        run, ended = self.run(seed), record.by_number.get(seed) if record is not None else None
        if not run.path.exists():
            return "" if ended is None else "its folder is missing"
        if record is None:
            return f"{self.folder / SET} is missing"
        if ended is None or ended.log is None or attempt(run.read_summary)[0] is None:
            return "it did not finish"
        if ended.fault != SWEPT:
            return f"{self.folder / SET} has it as no run of a sweep"
        log = self.folder / ended.log
        if not log.is_file():
            return f"{log.name} is missing"
        if sha256_of(log) != ended.sha256:
            return f"{log.name} was changed after the run"
        if not run.config.is_file():
            return f"{run.config.name} is missing"
        config, error = attempt(load_resolved, run.config)
        if config is None:
            return f"its configuration cannot be read: {error}"
        keys = differing_settings(config, self.config)
        return f"{run.config.name} has other settings than this combination: {format_list(keys, 5)}" if keys else None

    @property
    def finished(self) -> tuple[int, ...]:
        """Seeds of the runs that have trained to their end."""
        unfinished = self.unfinished
        return tuple(seed for seed in self.seeds if seed not in unfinished)

    @property
    def missing(self) -> tuple[int, ...]:
        return tuple(self.unfinished)

    @property
    def notes(self) -> list[str]:
        """Why runs that were begun are made again, one line each."""
        return [f"{self.run(seed).path}: {why}; the run is made again" for seed, why in self.unfinished.items() if why]

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "folder": str(self.folder),
            "recipe": self.config.recipe,
            "settings": list(self.settings),
            "finished_seeds": list(self.finished),
            "missing_seeds": list(self.missing),
            "warnings": list(self.warnings),
            "notes": self.notes,
        }


@dataclass(frozen=True)
class Sweep:
    """The sets of a sweep, in the order of the command's values."""

    folder: Path
    sets: tuple[SweepSet, ...]

    @property
    def total(self) -> int:
        """Number of runs, finished or not."""
        return sum(len(one.seeds) for one in self.sets)

    @property
    def missing(self) -> int:
        """Number of runs that are not finished."""
        return sum(len(one.missing) for one in self.sets)

    @property
    def named_keys(self) -> frozenset[str]:
        """Dotted keys of the settings that the command gives."""
        keys = (setting.partition("=")[0].strip() for one in self.sets for setting in one.settings)
        return frozenset(key.removeprefix("bert.") for key in keys) | {"recipe"}

    @property
    def messages(self) -> list[str]:
        """Warnings about the configurations, and why runs are made again, each once."""
        warnings = dict.fromkeys(f"warning: {warning}" for one in self.sets for warning in one.warnings)
        return [*warnings, *(note for one in self.sets for note in one.notes)]


def split_values(setting: str) -> list[str]:
    """Split key=v1,v2 into key=v1 and key=v2; a comma within brackets, braces or quotes does not separate values.

    UsageError for an empty value, of which `key=` alone is none.
    """
    key, sign, text = setting.partition("=")
    values, start, closing, quote = [], 0, list[str](), ""
    for place, character in enumerate(text):
        if quote:
            quote = "" if character == quote else quote
        elif character in "'\"" and (closing or not text[start:place].strip()):  # within a plain text it is a letter
            quote = character
        elif character in CLOSING:
            closing.append(CLOSING[character])
        elif closing and character == closing[-1]:
            closing.pop()
        elif character == "," and not closing:
            values.append(text[start:place])
            start = place + 1
    values.append(text[start:])
    if len(values) > 1 and not all(value.strip() for value in values):
        raise UsageError(
            f"--set {setting}: value {[bool(value.strip()) for value in values].index(False) + 1} of {len(values)} is "
            f"empty; separate values by single commas, and write a list as {key}=[a,b] and a text with commas in quotes"
        )
    return [f"{key}{sign}{value.strip()}" for value in values]


def plan_sweep(request: SweepRequest) -> Sweep:
    """Resolve all combinations. UsageError, which names all that are not valid, before anything is written."""
    choices = [split_values(setting) for setting in request.settings]
    keys = [one[0].partition("=")[0].strip().removeprefix("bert.") for one in choices]
    for place, key in enumerate(keys):
        if key in keys[:place]:
            raise UsageError(f"--set {key}: is given twice; give all its values in one, as --set {key}=A,B")
        if key in ("seed", "recipe"):
            raise UsageError(f"--set {key}: use --{'seeds N' if key == 'seed' else 'recipe A,B'} in a sweep")
    recipes: Sequence[str | None] = request.recipes or [None]
    combinations = [(recipe, settings) for recipe in recipes for settings in product(*choices)]
    if len(combinations) > MAX_SETS:
        raise UsageError(
            f"these are {len(combinations):,} combinations; allowed are up to {MAX_SETS:,}: leave out values"
        )
    parent = (request.folder or run_set.RUNS / system_path(request.system).stem / "sweep").resolve()
    if parent.is_relative_to(RESULTS.resolve()):
        raise UsageError(f"--out {request.folder}: is in {RESULTS}, which is for results; name another folder")
    require_folder_or_no_file(parent)
    sets, errors = list[SweepSet](), list[str]()
    for recipe, settings in combinations:
        varied = [one for one, values in zip(settings, choices, strict=True) if len(values) > 1]
        parts = [*([recipe] if recipe is not None and (len(recipes) > 1 or not varied) else []), *varied]
        name = ", ".join(parts)
        loaded, error = attempt(_resolve, request.system, recipe, settings)
        if loaded is None:
            errors.append(f"{name}: {error}" if name else str(error))
            continue
        config = loaded.config
        digest = json_digest(config.model_dump(mode="json", by_alias=True, exclude={"description"}))[:8]
        slug = replace_pattern(r"[^A-Za-z0-9._=+-]+", "_", name or config.recipe)[:MAX_NAME]
        folder = parent / f"{slug}_{digest}"
        same = next((one for one in sets if one.folder.name.endswith(f"_{digest}")), None)
        if same is not None:
            errors.append(f"{name}: has the same configuration as {same.name}; leave one of them out")
            continue
        seeds, warnings = range(request.seeds), (*loaded.warnings, *hardware_warnings(config))
        sets.append(SweepSet(name or config.recipe, recipe, settings, config, folder, seeds, warnings))
    if errors and len(combinations) == 1:
        raise UsageError(errors[0])
    if errors:
        raise UsageError(
            f"{len(errors)} of {len(combinations)} combinations cannot be run, so nothing was started:\n"
            + "\n".join(errors)
        )
    return Sweep(parent, tuple(sets))


def _resolve(system: str, recipe: str | None, settings: Sequence[str]) -> LoadedSystem:
    loaded = resolve_system(system, recipe, settings)
    config = loaded.config
    require_hardware(config, loaded.origins.locate)
    if config.launch.launcher != "torchrun" or config.launch.nodes > 1:
        raise UsageError(
            f"{config.system}: launch.launcher is {config.launch.launcher} and launch.nodes {config.launch.nodes}; a "
            "sweep runs on this machine only: start it inside the container or the job, with --set "
            "launch.launcher=torchrun and launch.nodes=1"
        )
    # After the launcher, whose container has other paths than this machine.
    check_checkpoint(config, loaded.origins.locate(("initial_checkpoint",)))
    return loaded


def run_sweep(sweep: Sweep, progress: Progress) -> Iterator[tuple[SweepSet, int, FinishedRun | PodiumError]]:
    """Make the runs that are missing; yield each, with its set and seed, when it has finished or failed.

    All sets make their run of one seed before the next seed's, in alternating order, so that other load on the machine,
    or a slow drift of its clock rates, meets all sets alike. A set whose data cannot be prepared yields its error, with
    its first missing seed, and is left out.
    """
    left = sweep.missing
    folder, system = make_named_folder(sweep.folder), sweep.sets[0].config.system
    with system_lock(system), folder_lock(folder, "podium sweep"), ExitStack() as stack:
        prepared = list[_PreparedSet]()
        for place, one in enumerate(sweep.sets, 1):
            title, missing = f"Set {place} of {len(sweep.sets)}, {one.name}", one.missing
            if not missing:
                progress.note(f"{title}: all runs are finished")
                continue
            progress.note(f"{title}: {len(missing)} of {len(one.seeds)} runs are to be made")
            try:
                nodes = stack.enter_context(node_group(one.config, run_set.RUNS, progress.note))
                prepared.append(_prepare(one, f"Set {place} of {len(sweep.sets)}", missing, progress, nodes))
            except PodiumError as error:
                left -= len(missing)
                yield one, missing[0], error
        for seed in sorted({seed for each in prepared for seed in each.missing}):
            for each in prepared if seed % 2 == 0 else reversed(prepared):
                if seed in each.missing:
                    left -= 1
                    yield each.set, seed, _run(each, seed, progress, more=left > 0)


@dataclass
class _PreparedSet:
    """A set of a sweep whose data is prepared, and the seeds of its missing runs."""

    set: SweepSet
    number: str  # such as `Set 2 of 4`: names of sets may only differ where a narrow terminal cuts them
    missing: tuple[int, ...]
    config: RunConfig
    nodes: NodeGroup  # of one node, with the data that was verified for the set
    data: RunData | None  # what the set's runs train on, as soon as one has begun


def _prepare(
    one: SweepSet, number: str, missing: tuple[int, ...], progress: Progress, nodes: NodeGroup
) -> _PreparedSet:
    """Prepare a set's data and write its record. Raises PodiumError."""
    progress.note(describe_hyperparameters(one.config))
    config = prepare_set(one.config, progress.note, nodes)
    record = read_set(make_folder(one.folder))
    ended = record.ended if record is not None else ()
    write_set(one.folder, SetRecord(config.system, max(len(one.seeds), record.runs if record else 0), ended))
    _note_other_code(one, progress)
    data = next((found for seed in one.finished if (found := read_run_data(one.run(seed).data))), None)
    return _PreparedSet(one, number, missing, config, nodes, data)


def _run(each: _PreparedSet, seed: int, progress: Progress, more: bool) -> FinishedRun | PodiumError:
    """Make a set's run of a seed; return the error if it fails. Raises Interrupted."""
    try:
        _set_aside(each.set.run(seed))
        title = f"{each.number}, seed {seed}, {truncate(each.set.name, MAX_NAME)}"
        seeded = each.config.model_copy(update={"seed": seed})
        run = prepare_recorded(seeded, each.set.run(seed).path, each.nodes, each.data)
        each.data = run.data
        return launch_and_collect(replace(run, fault=SWEPT, swept=True), title, each.nodes, progress, more=more)
    except StoppedAfterSaving as error:  # it is made again: a resumed run has no time-to-train
        raise Interrupted(str(error).partition(";")[0]) from None
    except PodiumError as error:
        return error


def _note_other_code(one: SweepSet, progress: Progress) -> None:
    here = current_source().code
    others = [seed for seed in one.finished if (made := read_source(one.run(seed).source)) and made.code != here]
    if others:
        progress.note(f"{one.folder}: run {', '.join(map(str, others))} was made by other code than that of this sweep")


def _set_aside(run: RunFolder) -> None:
    """Move a run that did not finish, and its log, to the set's folder EARLIER, so that the run can be made again."""
    if not run.path.exists():
        return
    assert_unlocked(run.lock, f"{run.path}: processes of this run are still running; wait for their end")
    number, log = 1, final_log_path(run)
    while (destination := run.path.parent / EARLIER / f"{run.path.name}_{number}").exists():
        number += 1
    make_folder(destination.parent)
    try:
        if log.exists():
            log.rename(run.path / log.name)
        run.path.rename(destination)
    except OSError as error:
        raise write_error(run.path, error) from None


def sweep_json(sweep: Sweep) -> Mapping[str, Any]:
    """Return the plan of a sweep for JSON, with what is finished."""
    return {"folder": str(sweep.folder), "sets": [one.as_json() for one in sweep.sets]}
