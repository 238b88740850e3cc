"""What searches found, as tables and as a picture."""

import math
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from rich.console import Console
from rich.table import Table

from podium.console import figure_table, print_line
from podium.pictures import picture
from podium.tuning.tuning import SHIPPED, Found, Repeats, Tuned, as_words, as_yaml, difference

COLOURS = ("#d62728", "#1f77b4", "#2ca02c", "#9467bd", "#ff7f0e")
SHIPPED_COLOUR = "#555555"
SURE = 2.0
"""Standard errors that a difference has to be worth to be told as one."""


def print_tuned(console: Console, tuned: Tuned) -> None:
    """A line a search, its best settings, and the repeats against the shipped settings."""
    headings = ("trials", "pruned", "best trial", "samples to target", "accuracy")
    table = figure_table(f"{tuned.shipped.system}: searches", "search", *headings)
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
    table = figure_table("Repeats under the same other seeds", "settings", *headings)
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
    """Draw each search's trials and its best so far, and the repeats beside them; the same numbers give the same bytes.

    Raises WorkError if the file cannot be written.
    """
    with picture(path, 9, 5) as axes:
        longest = max(len(one.trials) for one in tuned.found)
        for number, one in enumerate(tuned.found):
            _draw_trials(axes, one, COLOURS[number % len(COLOURS)])
        colours = {one.space.name: COLOURS[number % len(COLOURS)] for number, one in enumerate(tuned.found)}
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
