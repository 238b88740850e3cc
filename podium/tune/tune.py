"""`podium tune`: one or several searches of the same budget, the best of each repeated against the shipped settings."""

import json
import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import yaml
from matplotlib.axes import Axes
from optuna.trial import FrozenTrial
from rich.console import Console
from rich.table import Table

from podium.config.load import load_system
from podium.config.schema import RunConfig
from podium.core.console import number_table, print_line
from podium.core.errors import UsageError, WorkError
from podium.core.files import make_folder, write_atomically
from podium.core.locks import folder_lock
from podium.core.yaml_files import dump_yaml
from podium.html.chart import picture
from podium.planning.costs import with_measured_costs
from podium.run.data import with_data
from podium.run.prepare import check_checkpoint
from podium.run.progress import Progress
from podium.run.run_set import RUNS
from podium.tune.objective import Outcome
from podium.tune.search import Tell, Workers, repeat, search
from podium.tune.space import SearchSpace, changed, load_space, searches_of
from podium.tune.study import best, ended, open_study

SHIPPED = "shipped"
# Seeds of repeats begin so far above the trials' own, so that nothing is repeated with what it was chosen by.
FIRST_REPEAT = 1000


@dataclass(frozen=True)
class Options:
    """What to search, and how much."""

    searches: tuple[str, ...]  # empty: all that are made for the system
    trials: int | None  # None: as the searches say
    workers: int
    repeats: int
    folder: Path | None


@dataclass(frozen=True)
class Repeats:
    """Trainings of the same settings under several seeds."""

    name: str
    values: tuple[float, ...]  # samples to target, those that did not reach it with their penalty
    reached: int
    samples: float  # mean samples trained on, whole evaluations counted

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
    is_shipped: bool  # whether the best trial is that of the shipped settings

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
    # The shipped settings first, then each search that found others; empty where none were asked for.
    repeats: tuple[Repeats, ...]


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
    names = options.searches or tuple(searches_of(shipped))
    if not names:
        raise UsageError(f"there is no search for {shipped.system} in systems/search; name one by --search")
    spaces = [load_space(name) for name in names]
    if options.trials is not None:
        spaces = [space.model_copy(update={"trials": options.trials}) for space in spaces]
    for what in ("trials", "seed", "repeats_per_trial"):
        values = {space.name: getattr(space, what) for space in spaces}
        if len(set(values.values())) > 1:
            raise UsageError(f"{what}: found {values}; searches that are compared need the same")
    if len({space.name for space in spaces}) < len(spaces) or SHIPPED in {space.name for space in spaces}:
        raise UsageError(f"--search: found {', '.join(s.name for s in spaces)}; allowed are different names")
    return spaces


def _prepared(config: RunConfig, data: RunConfig) -> RunConfig:
    return with_measured_costs(config.model_copy(update={"data": data.data, "phases": data.phases}))


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
                "repeats_per_trial": one.space.repeats_per_trial,
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
    write_atomically(tuned.folder / "report.json", json.dumps(as_json(tuned), indent=2) + "\n")
    for one in tuned.found:
        write_atomically(tuned.folder / f"{one.space.name}.yaml", as_yaml(one.settings))


COLOURS = ("#d62728", "#1f77b4", "#2ca02c", "#9467bd", "#ff7f0e")
SHIPPED_COLOUR = "#555555"
SURE = 2.0  # standard errors that a difference has to be worth to be told as one


def print_tuned(console: Console, tuned: Tuned) -> None:
    """A line a search, its best settings, and the repeats against the shipped settings."""
    headings = ("trials", "pruned", "best trial", "samples to target", "accuracy")
    table = number_table(f"{tuned.shipped.system}: searches", "search", *headings)
    for one in tuned.found:
        pruned = sum(trial.state.name == "PRUNED" for trial in one.trials)
        reached = "" if one.best.user_attrs["reached"] else " (not reached)"
        accuracy = f"{one.best.user_attrs['accuracy']:.4f}"
        counts = (str(len(one.trials)), str(pruned), str(one.best.number))
        table.add_row(one.space.name, *counts, f"{one.best.value:,.0f}{reached}", accuracy)
    console.print(table)
    for one in tuned.found:
        console.print(f"\nbest of {one.space.name}:", style="bold", highlight=False)
        print_line(console, shlex.join(as_words(one.settings)))
        console.print(as_yaml(one.settings), markup=False, highlight=False)
    if tuned.repeats:
        console.print(_repeat_table(tuned.repeats))
    for sentence in verdicts(tuned.found, tuned.repeats):
        print_line(console, sentence)


def _repeat_table(repeats: Sequence[Repeats]) -> Table:
    headings = ("n", "reached", "samples to target", "sd", "least", "greatest")
    table = number_table("Repeats under the same other seeds", "settings", *headings)
    for one in repeats:
        deviation = "–" if math.isnan(one.deviation) else f"{one.deviation:,.0f}"
        figures = (f"{one.mean:,.0f}", deviation, f"{min(one.values):,.0f}", f"{max(one.values):,.0f}")
        table.add_row(one.name, str(len(one.values)), str(one.reached), *figures)
    return table


def verdicts(found: Sequence[Found], repeats: Sequence[Repeats]) -> Iterator[str]:
    """A sentence on each search: what its best settings are worth against the shipped ones."""
    made = {one.name: one for one in repeats}
    for one in found:
        name = one.space.name
        if one.is_shipped:
            yield f"{name}: no trial was better than the shipped settings"
        elif name in made:
            fewer, error = difference(made[SHIPPED], made[name])
            if math.isnan(error):
                yield f"{name}: one repeat says nothing; make more with --repeats"
                continue
            words = f"{abs(fewer):,.0f} ± {error:,.0f} samples {'fewer' if fewer > 0 else 'more'} than as shipped"
            sure = abs(fewer) > SURE * error
            yield f"{name}: {words}" + ("" if sure else f", no difference by {SURE:g} standard errors")


def plot_tuned(tuned: Tuned, path: Path) -> None:
    """Draw each search's trials, its best so far and its repeats. WorkError if the file cannot be written."""
    with picture(path, 9, 5) as axes:
        longest = max(len(one.trials) for one in tuned.found)
        colours = {one.space.name: COLOURS[number % len(COLOURS)] for number, one in enumerate(tuned.found)}
        for one in tuned.found:
            _draw_trials(axes, one, colours[one.space.name])
        for number, repeats in enumerate(tuned.repeats):
            colour = colours.get(repeats.name, SHIPPED_COLOUR)
            _draw_repeats(axes, repeats, longest + 2 + 2 * number, colour)
        axes.axhline(tuned.shipped.max_samples, color="#bbbbbb", linewidth=0.8, label="max_samples: above, not reached")
        axes.set_yscale("log")
        axes.set_xlabel("trial; right of them, repeats of the best under other seeds with mean ± sd")
        axes.set_ylabel("samples to target")
        axes.set_title(f"Samples to the target of {tuned.shipped.target_accuracy} on {tuned.shipped.system}")
        axes.legend()


def _draw_trials(axes: Axes, one: Found, colour: str) -> None:
    complete = [(n, t.value) for n, t in enumerate(one.trials) if t.state.name == "COMPLETE" and t.value is not None]
    values = [value for _, value in complete]
    so_far = [min(values[: n + 1]) for n in range(len(values))]
    places = [n for n, _ in complete]
    axes.scatter(places, values, s=14, color=colour, alpha=0.5, gid=f"trials-{one.space.name}")
    label = f"{one.space.name}, best so far"
    axes.plot(places, so_far, drawstyle="steps-post", color=colour, label=label, gid=f"best-{one.space.name}")


def _draw_repeats(axes: Axes, repeats: Repeats, place: float, colour: str) -> None:
    count = len(repeats.values)
    axes.scatter([place] * count, repeats.values, s=14, color=colour, marker="x", gid=f"repeats-{repeats.name}")
    error = 0.0 if math.isnan(repeats.deviation) else repeats.deviation
    label = f"{repeats.name}, {count} repeats"
    axes.errorbar([place + 0.5], [repeats.mean], yerr=[error], fmt="o", color=colour, capsize=3, label=label)
