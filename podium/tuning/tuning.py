"""`podium tune`: one or several searches of the same budget, the best of each repeated against the shipped settings."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import yaml
from optuna.trial import FrozenTrial

from benchmarks.errors import UsageError, WorkError
from benchmarks.files import make_folder, write_whole
from benchmarks.locks import folder_lock
from podium.config import RunConfig, load_system
from podium.config.yaml_files import dump_yaml
from podium.costs import with_measured_costs
from podium.data import with_data
from podium.progress import Progress
from podium.running import RUNS, check_checkpoint
from podium.tuning.curve import Outcome
from podium.tuning.searching import Tell, Workers, repeat, search
from podium.tuning.space import SearchSpace, changed, load_space, searches_of
from podium.tuning.study import best, ended, open_study

SHIPPED = "shipped"
FIRST_REPEAT = 1000
"""Seeds of repeats begin so far above the trials' own, so that nothing is repeated with what it was chosen by."""


@dataclass(frozen=True)
class Options:
    """What to search, and how much."""

    searches: tuple[str, ...]
    """None: all that are made for the system."""
    trials: int | None
    """None: as the searches say."""
    workers: int
    repeats: int
    folder: Path | None


@dataclass(frozen=True)
class Repeats:
    """Trainings of the same settings under several seeds."""

    name: str
    values: tuple[float, ...]
    """Samples to target, those that did not reach it with their penalty."""
    reached: int
    samples: float
    """Mean samples trained on, whole evaluations counted."""

    @property
    def mean(self) -> float:
        return mean(self.values)

    @property
    def deviation(self) -> float:
        return stdev(self.values) if len(self.values) > 1 else math.nan

    @classmethod
    def of(cls, name: str, outcomes: Sequence[Outcome]) -> "Repeats":
        reached = sum(one.reached for one in outcomes)
        return cls(name, tuple(o.value for o in outcomes), reached, mean(o.samples for o in outcomes))

    def as_json(self) -> dict[str, Any]:
        deviation = None if math.isnan(self.deviation) else self.deviation
        return asdict(self) | {"n": len(self.values), "mean": self.mean, "sd": deviation}


@dataclass(frozen=True)
class Found:
    """What came of one search."""

    space: SearchSpace
    trials: tuple[FrozenTrial, ...]
    best: FrozenTrial
    is_shipped: bool
    """Whether the best trial is that of the shipped settings."""

    @property
    def settings(self) -> dict[str, Any]:
        """All keys that differ from the shipped settings, or may."""
        return {**self.space.settings, **self.best.params}


@dataclass(frozen=True)
class Tuned:
    """Everything that `podium tune` has to say."""

    folder: Path
    shipped: RunConfig
    found: tuple[Found, ...]
    repeats: tuple[Repeats, ...]
    """The shipped settings first, then each search that found others; empty where none were asked for."""


def tune(
    system: str, recipe: str | None, settings: Sequence[str], options: Options, progress: Progress, tell: Tell
) -> Tuned:
    """Make whatever trials and repeats the folder lacks. Raises UsageError before long work for what does not fit."""
    shipped = load_system(system, recipe, settings)
    spaces = _spaces(shipped, options)
    if shipped.target_accuracy is None:
        raise UsageError("target_accuracy: found null, but samples to a target are searched for; set one")
    bases = [space.base(shipped) for space in spaces]
    folder = make_folder((options.folder or RUNS / shipped.system / "tune").resolve())
    with folder_lock(folder, "podium tune"):
        check_checkpoint(shipped)
        data = with_data(shipped, progress.note)
        shipped = _prepared(shipped, data)
        workers = Workers.sharing(shipped, options.workers)
        found = []
        for space, base in zip(spaces, bases, strict=True):
            base = _prepared(base, data)
            # Searches that are compared all begin with nothing; a single one with what it is to improve on.
            first = space.values_of(base) if len(spaces) == 1 and base == shipped else None
            search(folder / space.name, space, base, first, workers, tell)
            found.append(_found(folder / space.name, space, base, shipped))
        repeats = _repeat(folder, shipped, found, options.repeats, workers, tell)
    return Tuned(folder, shipped, tuple(found), tuple(repeats))


def _spaces(shipped: RunConfig, options: Options) -> list[SearchSpace]:
    names = options.searches or tuple(searches_of(shipped.system))
    if not names:
        raise UsageError(f"there is no search for {shipped.system} in systems/search; name one by --search")
    spaces = [load_space(name) for name in names]
    if options.trials is not None:
        spaces = [space.model_copy(update={"trials": options.trials}) for space in spaces]
    for what in ("trials", "seed"):
        values = {space.name: getattr(space, what) for space in spaces}
        if len(set(values.values())) > 1:
            raise UsageError(f"{what}: found {values}; searches that are compared need the same")
    if len({space.name for space in spaces}) < len(spaces) or SHIPPED in {space.name for space in spaces}:
        raise UsageError(f"--search: found {', '.join(s.name for s in spaces)}; allowed are different names")
    return spaces


def _prepared(config: RunConfig, data: RunConfig) -> RunConfig:
    return with_measured_costs(config.model_copy(update={"data": data.data}))


def _found(folder: Path, space: SearchSpace, base: RunConfig, shipped: RunConfig) -> Found:
    trials = ended(open_study(folder, space))
    chosen = best(trials)
    if chosen is None:
        raise WorkError(f"{folder}: no trial came to its end; allow more with --trials")
    is_shipped = changed(base, chosen.params, space.name) == changed(shipped, {}, space.name)
    return Found(space, tuple(trials), chosen, is_shipped)


def _repeat(
    folder: Path, shipped: RunConfig, found: Sequence[Found], repeats: int, workers: Workers, tell: Tell
) -> list[Repeats]:
    """All under the same seeds."""
    if not repeats:
        return []
    seeds = range(found[0].space.seed + FIRST_REPEAT, found[0].space.seed + FIRST_REPEAT + repeats)
    made = [Repeats.of(SHIPPED, repeat(folder / "repeats" / SHIPPED, shipped, seeds, workers, tell))]
    for one in (one for one in found if not one.is_shipped):
        name = one.space.name
        config = changed(shipped, one.settings, name)
        place = folder / "repeats" / f"{name}_trial_{one.best.number:04d}"
        made.append(Repeats.of(name, repeat(place, config, seeds, workers, tell)))
    return made


def difference(shipped: Repeats, other: Repeats) -> tuple[float, float]:
    """How many samples fewer the other needs in the mean, and the standard error of that, the variances being unequal
    (Welch, 1947); NaN for fewer than two repeats."""
    errors = [repeats.deviation**2 / len(repeats.values) for repeats in (shipped, other)]
    return shipped.mean - other.mean, math.sqrt(sum(errors))


def as_words(settings: Mapping[str, Any]) -> list[str]:
    """As the command line takes them."""
    return [word for key, value in settings.items() for word in ("--set", f"{key}={_scalar(value)}")]


def as_yaml(settings: Mapping[str, Any]) -> str:
    """As a system's file takes them."""
    document: dict[str, Any] = {}
    for key, value in settings.items():
        *above, last = key.split(".")
        section = document
        for part in above:
            section = section.setdefault(part, {})
        section[last] = value
    return dump_yaml({"bert": document})


def _scalar(value: Any) -> str:
    """A value as YAML has it, so that it is read back as what it is."""
    return yaml.safe_dump(value, default_flow_style=True).removesuffix("\n...\n").strip()


def as_json(tuned: Tuned) -> dict[str, Any]:
    """One object for programs."""
    return {
        "system": tuned.shipped.system,
        "folder": str(tuned.folder),
        "searches": {
            one.space.name: {
                "trials": len(one.trials),
                "pruned": sum(trial.state.name == "PRUNED" for trial in one.trials),
                "best_trial": one.best.number,
                "best_samples": one.best.value,
                "is_shipped": one.is_shipped,
                "settings": one.settings,
                "set": as_words(one.settings),
                "values": [trial.value if trial.state.name == "COMPLETE" else None for trial in one.trials],
            }
            for one in tuned.found
        },
        "repeats": {one.name: one.as_json() for one in tuned.repeats},
    }


def keep_report(tuned: Tuned) -> None:
    """report.json, and the best settings of each search as NAME.yaml, in the folder."""
    write_whole(tuned.folder / "report.json", json.dumps(as_json(tuned), indent=2) + "\n")
    for one in tuned.found:
        write_whole(tuned.folder / f"{one.space.name}.yaml", as_yaml(one.settings))
