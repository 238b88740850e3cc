"""`podium tune`: searches with the same budget, and repeats of the best settings of each and of the shipped ones."""

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
from podium.core.files import make_named_folder, write_atomically
from podium.core.locks import folder_lock
from podium.core.yaml_files import dump_yaml
from podium.html.chart import svg_axes
from podium.planning.costs import with_measured_costs
from podium.run.data import with_data
from podium.run.prepare import check_checkpoint
from podium.run.progress import Progress
from podium.run.run_set import RUNS
from podium.tune.objective import Outcome
from podium.tune.search import Report, Workers, repeat, search
from podium.tune.space import SearchSpace, load_space, searches_of, with_values
from podium.tune.study import best_trial, finished_trials, open_study

SHIPPED = "shipped"
# Seeds of repeats start this far above the trials', so that settings are not repeated with the seed that selected them.
REPEAT_SEED_OFFSET = 1000


@dataclass(frozen=True)
class Options:
    """Options of `podium tune`."""

    searches: tuple[str, ...]  # empty: all for the system
    trials: int | None  # None: as in the search files
    workers: int
    repeats: int
    folder: Path | None


@dataclass(frozen=True)
class Repeats:
    """Trainings of the same settings with several seeds."""

    name: str
    # Of each training: samples at which its accuracy curve crosses the target, or the penalty if it did not reach it.
    objectives: tuple[float, ...]
    reached: int
    samples_trained: float  # mean, in whole evaluation intervals

    @property
    def mean(self) -> float:
        return mean(self.objectives)

    @property
    def deviation(self) -> float:
        return stdev(self.objectives) if len(self.objectives) > 1 else math.nan

    @classmethod
    def of(cls, name: str, outcomes: Sequence[Outcome]) -> "Repeats":
        reached = sum(one.reached for one in outcomes)
        return cls(name, tuple(o.value for o in outcomes), reached, mean(o.samples for o in outcomes))

    def as_json(self) -> dict[str, Any]:
        deviation = None if math.isnan(self.deviation) else self.deviation
        all_reached = self.reached == len(self.objectives)
        return asdict(self) | {
            "n": len(self.objectives),
            "mean_objective": self.mean,
            "sd_objective": deviation,
            "mean_samples_to_target": self.mean if all_reached else None,
        }


@dataclass(frozen=True)
class SearchResult:
    """Result of one search."""

    space: SearchSpace
    trials: tuple[FrozenTrial, ...]
    best: FrozenTrial
    is_shipped: bool  # whether the best trial has the shipped settings

    @property
    def settings(self) -> dict[str, Any]:
        """Fixed and best values of the search's keys, which may differ from the shipped settings."""
        return {**self.space.settings, **self.best.params}


@dataclass(frozen=True)
class TuneResult:
    """Result of `podium tune`."""

    folder: Path
    shipped: RunConfig
    results: tuple[SearchResult, ...]
    # The shipped settings first, then each search whose best settings are others; empty if --repeats is 0.
    repeats: tuple[Repeats, ...]


def tune(
    system: str, recipe: str | None, settings: Sequence[str], options: Options, progress: Progress, report: Report
) -> TuneResult:
    """Run the trials and repeats that are missing in the folder. Raises UsageError for invalid options first."""
    shipped = load_system(system, recipe, settings)
    spaces = _spaces(shipped, options)
    if shipped.target_accuracy is None:
        raise UsageError("target_accuracy: found null, but the objective is samples to a target accuracy; set one")
    bases = [space.base(shipped) for space in spaces]
    folder = make_named_folder((options.folder or RUNS / shipped.system / "tune").resolve())
    with folder_lock(folder, "podium tune"):
        check_checkpoint(shipped)
        data = with_data(shipped, progress.note)
        shipped = _with_data_and_costs(shipped, data)
        workers = Workers.from_config(shipped, options.workers)
        results = []
        for space, base in zip(spaces, bases, strict=True):
            base = _with_data_and_costs(base, data)
            # A single search starts from the settings that it should improve; several, which are compared, do not.
            first = space.values_of(base) if len(spaces) == 1 and base == shipped else None
            search(folder / space.name, space, base, first, workers, report)
            results.append(_load_result(folder / space.name, space, base, shipped))
        repeats = _repeat(folder, shipped, results, options.repeats, workers, report)
    return TuneResult(folder, shipped, tuple(results), tuple(repeats))


def _spaces(shipped: RunConfig, options: Options) -> list[SearchSpace]:
    names = options.searches or tuple(searches_of(shipped))
    if not names:
        raise UsageError(f"there is no search for {shipped.system} in systems/search; name one with --search")
    spaces = [load_space(name) for name in names]
    if options.trials is not None:
        spaces = [space.model_copy(update={"trials": options.trials}) for space in spaces]
    for key in ("trials", "seed", "repeats_per_trial"):
        values = {space.name: getattr(space, key) for space in spaces}
        if len(set(values.values())) > 1:
            raise UsageError(f"{key}: found {values}; searches that are compared must have the same value")
    if len({space.name for space in spaces}) < len(spaces) or SHIPPED in {space.name for space in spaces}:
        raise UsageError(
            f"--search: found {', '.join(s.name for s in spaces)}; allowed are distinct names other than {SHIPPED}"
        )
    return spaces


def _with_data_and_costs(config: RunConfig, data: RunConfig) -> RunConfig:
    return with_measured_costs(config.model_copy(update={"data": data.data, "phases": data.phases}))


def _load_result(folder: Path, space: SearchSpace, base: RunConfig, shipped: RunConfig) -> SearchResult:
    trials = finished_trials(open_study(folder, space))
    chosen = best_trial(trials)
    if chosen is None:
        raise WorkError(f"{folder}: no trial is complete; allow more with --trials")
    is_shipped = with_values(base, chosen.params, space.name) == with_values(shipped, {}, space.name)
    return SearchResult(space, tuple(trials), chosen, is_shipped)


def _repeat(
    folder: Path, shipped: RunConfig, results: Sequence[SearchResult], repeats: int, workers: Workers, report: Report
) -> list[Repeats]:
    """Repeat the shipped settings and the best ones of each search, all with the same seeds."""
    if not repeats:
        return []
    seeds = range(results[0].space.seed + REPEAT_SEED_OFFSET, results[0].space.seed + REPEAT_SEED_OFFSET + repeats)
    repeated = [Repeats.of(SHIPPED, repeat(folder / "repeats" / SHIPPED, shipped, seeds, workers, report))]
    for one in (one for one in results if not one.is_shipped):
        name = one.space.name
        config = with_values(shipped, one.settings, name)
        place = folder / "repeats" / f"{name}_trial_{one.best.number:04d}"
        repeated.append(Repeats.of(name, repeat(place, config, seeds, workers, report)))
    return repeated


def difference(shipped: Repeats, other: Repeats) -> tuple[float, float]:
    """Difference of mean objectives, shipped − other, and its standard error (Welch, 1947: unequal variances).

    The error is NaN for fewer than two repeats.
    """
    errors = [repeats.deviation**2 / len(repeats.objectives) for repeats in (shipped, other)]
    return shipped.mean - other.mean, math.sqrt(sum(errors))


def as_arguments(settings: Mapping[str, Any]) -> list[str]:
    """Format settings as arguments of the command line."""
    return [argument for key, value in settings.items() for argument in ("--set", f"{key}={_scalar(value)}")]


def as_yaml(settings: Mapping[str, Any]) -> str:
    """Format settings as YAML for a system's file."""
    document: dict[str, Any] = {}
    for key, value in settings.items():
        *above, last = key.split(".")
        section = document
        for part in above:
            section = section.setdefault(part, {})
        section[last] = value
    return dump_yaml({"bert": document})


def _scalar(value: Any) -> str:
    """Format a value as YAML, so that it is read back with the same type."""
    return yaml.safe_dump(value, default_flow_style=True).removesuffix("\n...\n").strip()


def as_json(tuned: TuneResult) -> dict[str, Any]:
    """Return the JSON document of `podium tune`."""
    return {
        "system": tuned.shipped.system,
        "folder": str(tuned.folder),
        "searches": {
            one.space.name: {
                "trials": len(one.trials),
                "repeats_per_trial": one.space.repeats_per_trial,
                "pruned": sum(trial.state.name == "PRUNED" for trial in one.trials),
                "best_trial": one.best.number,
                "best": _trial_json(one.best),
                "is_shipped": one.is_shipped,
                "settings": one.settings,
                "set": as_arguments(one.settings),
                "results": [_trial_json(trial) for trial in one.trials],
            }
            for one in tuned.results
        },
        "repeats": {one.name: one.as_json() for one in tuned.repeats},
    }


def _trial_json(trial: FrozenTrial) -> dict[str, Any]:
    """Return a trial's result. `samples_to_target` is interpolated, and null for a target that was not reached."""
    complete, attributes = trial.state.name == "COMPLETE", trial.user_attrs
    reached = complete and attributes["reached"]
    return {
        "state": trial.state.name.lower(),
        "reached": reached,
        "objective": trial.value if complete else None,
        "samples_to_target": trial.value if reached else None,
        "samples_trained": attributes.get("samples"),
        "accuracy": attributes.get("accuracy"),
        "failure": attributes.get("failure") or None,
    }


def write_tune_report(tuned: TuneResult) -> None:
    """Write report.json, and the best settings of each search as NAME.yaml, to the folder."""
    write_atomically(tuned.folder / "report.json", json.dumps(as_json(tuned), indent=2) + "\n")
    for one in tuned.results:
        write_atomically(tuned.folder / f"{one.space.name}.yaml", as_yaml(one.settings))


COLOURS = ("#d62728", "#1f77b4", "#2ca02c", "#9467bd", "#ff7f0e")
SHIPPED_COLOUR = "#555555"
OBJECTIVE = (
    "objective: samples at which the accuracy curve crosses the target, interpolated between evaluations; where a "
    "training did not reach it, a penalty of max_samples or more. trained: samples that were observed"
)
MIN_STANDARD_ERRORS = 2.0  # smallest difference that is reported as one, in standard errors


def print_tuned(console: Console, tuned: TuneResult) -> None:
    """Print a table of the searches, the best settings of each, and the repeats compared with the shipped settings."""
    headings = ("trials", "pruned", "best trial", "objective", "target reached", "trained", "accuracy")
    table = number_table(f"{tuned.shipped.system}: searches", "search", *headings, caption=OBJECTIVE)
    for one in tuned.results:
        pruned = sum(trial.state.name == "PRUNED" for trial in one.trials)
        best = one.best.user_attrs
        counts = (str(len(one.trials)), str(pruned), str(one.best.number))
        figures = (f"{one.best.value:,.0f}", "yes" if best["reached"] else "no", f"{best['samples']:,}")
        table.add_row(one.space.name, *counts, *figures, f"{best['accuracy']:.4f}")
    console.print(table)
    for one in tuned.results:
        if not (best := one.best.user_attrs)["reached"]:
            print_line(
                console,
                f"{one.space.name}: no trial reached the target of {tuned.shipped.target_accuracy}; nearest: trial "
                f"{one.best.number}, accuracy {best['accuracy']:.4f} after {best['samples']:,} samples",
            )
            continue
        console.print(f"\nbest of {one.space.name}:", style="bold", highlight=False)
        print_line(console, shlex.join(as_arguments(one.settings)))
        console.print(as_yaml(one.settings), markup=False, highlight=False)
    if tuned.repeats:
        console.print(_repeat_table(tuned.repeats))
    for sentence in verdicts(tuned.results, tuned.repeats):
        print_line(console, sentence)


def _repeat_table(repeats: Sequence[Repeats]) -> Table:
    headings = ("n", "reached", "objective", "sd", "minimum", "maximum", "trained, mean")
    table = number_table("Repeats with the same new seeds", "settings", *headings)
    for one in repeats:
        deviation = "–" if math.isnan(one.deviation) else f"{one.deviation:,.0f}"
        ends = (f"{min(one.objectives):,.0f}", f"{max(one.objectives):,.0f}")
        figures = (f"{one.mean:,.0f}", deviation, *ends, f"{one.samples_trained:,.0f}")
        table.add_row(one.name, str(len(one.objectives)), str(one.reached), *figures)
    return table


def verdicts(results: Sequence[SearchResult], repeats: Sequence[Repeats]) -> Iterator[str]:
    """Yield a sentence for each search that compares its best settings with the shipped ones."""
    by_name = {one.name: one for one in repeats}
    for one in results:
        name = one.space.name
        if one.is_shipped:
            yield f"{name}: no trial was better than the shipped settings"
        elif name in by_name:
            fewer, error = difference(by_name[SHIPPED], by_name[name])
            if math.isnan(error):
                yield f"{name}: one repeat has no standard error; use more --repeats"
                continue
            comparison = (
                f"{abs(fewer):,.0f} ± {error:,.0f} samples {'fewer' if fewer > 0 else 'more'} than the shipped settings"
            )
            significant = abs(fewer) > MIN_STANDARD_ERRORS * error
            missed = sum(len(side.objectives) - side.reached for side in (by_name[SHIPPED], by_name[name]))
            yield (
                f"{name}: {comparison}"
                + ("" if significant else f", less than {MIN_STANDARD_ERRORS:g} standard errors")
                + (f"; of the trainings compared {missed} missed the target and count with a penalty" if missed else "")
            )


def plot_tuned(tuned: TuneResult, path: Path) -> None:
    """Draw the trials, the best so far and the repeats of each search. Raises WorkError if it cannot be written."""
    with svg_axes(path, 9, 5) as axes:
        longest = max(len(one.trials) for one in tuned.results)
        colours = {one.space.name: COLOURS[number % len(COLOURS)] for number, one in enumerate(tuned.results)}
        for one in tuned.results:
            _draw_trials(axes, one, colours[one.space.name])
        for number, repeats in enumerate(tuned.repeats):
            colour = colours.get(repeats.name, SHIPPED_COLOUR)
            _draw_repeats(axes, repeats, longest + 2 + 2 * number, colour)
        axes.axhline(
            tuned.shipped.max_samples, color="#bbbbbb", linewidth=0.8, label="max_samples: penalties are above it"
        )
        axes.set_yscale("log")
        axes.set_xlabel("trial; to the right, repeats of the best settings with other seeds, with mean ± sd")
        axes.set_ylabel("objective: samples to target, interpolated, or penalty")
        axes.set_title(f"Search for the target of {tuned.shipped.target_accuracy} on {tuned.shipped.system}")
        axes.legend()


def _draw_trials(axes: Axes, one: SearchResult, colour: str) -> None:
    complete = [(n, t.value) for n, t in enumerate(one.trials) if t.state.name == "COMPLETE" and t.value is not None]
    values = [value for _, value in complete]
    so_far = [min(values[: n + 1]) for n in range(len(values))]
    places = [n for n, _ in complete]
    axes.scatter(places, values, s=14, color=colour, alpha=0.5, gid=f"trials-{one.space.name}")
    label = f"{one.space.name}, best so far"
    axes.plot(places, so_far, drawstyle="steps-post", color=colour, label=label, gid=f"best-{one.space.name}")


def _draw_repeats(axes: Axes, repeats: Repeats, place: float, colour: str) -> None:
    count = len(repeats.objectives)
    axes.scatter([place] * count, repeats.objectives, s=14, color=colour, marker="x", gid=f"repeats-{repeats.name}")
    error = 0.0 if math.isnan(repeats.deviation) else repeats.deviation
    label = f"{repeats.name}, {count} repeats"
    axes.errorbar([place + 0.5], [repeats.mean], yerr=[error], fmt="o", color=colour, capsize=3, label=label)
