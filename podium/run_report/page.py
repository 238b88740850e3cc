"""The page of one's own runs: what became of them, their curves, where the time went, and how they were set."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from podium.page.chart import Chart
from podium.page.page import Facts, Part, Section, Text, page
from podium.page.page import write_page as write_html
from podium.page.table import Table, Value, number, text
from podium.run_report.curves import Drawn, Labelled, accuracy_chart, balance_chart, rates_chart, step_chart
from podium.run_report.figures import SETTINGS, settings_of, written
from podium.run_report.outcome import lead, outcome
from podium.run_report.phases import phases_chart, phases_table
from podium.run_report.run import ReportedSet

LOSSES = (
    Drawn(
        "masked_lm_loss",
        "Masked-LM loss",
        "masked-LM loss",
        "Cross-entropy of the masked tokens of each step's global batch, in training.",
        lambda value: f"{value:,.4g}",
        may_be_logarithmic=True,
    ),
    Drawn(
        "next_sentence_loss",
        "Next-sentence loss",
        "next-sentence loss",
        "Cross-entropy of whether the second sentence follows the first, in training. Guessing is 0.693.",
        lambda value: f"{value:,.4g}",
    ),
)
OPTIMIZER = (
    Drawn("learning_rate", "Learning rate", "learning rate", "As each step used it.", lambda value: f"{value:.3g}"),
    Drawn(
        "gradient_norm",
        "Gradient norm",
        "gradient norm",
        "Of each step's gradient before it is clipped: the averaged one, or the first rank's where each clips its own.",
        lambda value: f"{value:,.4g}",
        may_be_logarithmic=True,
    ),
)
BALANCE = Drawn(
    "max_over_mean_tokens",
    "Balance over the run",
    "max/mean tokens",
    "The busiest rank's tokens in units of the mean rank's, in each step.",
    lambda value: f"{value:.4f}",
)
PADDING = Drawn(
    "padding_share",
    "Padding share",
    "% of slots",
    "Slots of each step's batches that hold no token.",
    lambda value: f"{100 * value:.2f}%",
    factor=100.0,
)
MOST_DRAWN = 60
"""Runs in a chart."""
MOST_ROWS = 500
"""Evaluations in a table."""
MOST_DIFFERING = 30
"""Settings in which runs differ that are told."""


def write_page(sets: Sequence[ReportedSet], notes: Sequence[str], path: Path) -> None:
    """Write the page. Raises WorkError if it cannot be."""
    write_html(path, page_html(sets, notes))


def page_html(sets: Sequence[ReportedSet], notes: Sequence[str]) -> str:
    """The whole page."""
    runs = labelled(sets)
    drawn = runs[:MOST_DRAWN]
    if len(runs) > len(drawn):
        notes = [*notes, f"Charts show the first {MOST_DRAWN} of {len(runs):,} runs; tables hold them all."]
    sections = [
        Section("Outcome", tuple(outcome(sets, runs))),
        Section("Loss and accuracy", tuple(_learning(sets, runs, drawn))),
        Section("Optimizer", tuple(_charts(OPTIMIZER, drawn))),
        Section("Where the time goes", tuple(_time(runs, drawn))),
        Section("Balance and padding", tuple(_balance(drawn))),
        Section("Settings", tuple(_settings(runs))),
    ]
    title = f"{len(sets)} sets of runs" if len(sets) > 1 else f"Runs of {sets[0].name}"
    if len(runs) == 1:
        title = f"{sets[0].name}/{runs[0].run.name}"
    return page(title, lead(sets), [section for section in sections if section.parts], notes)


def labelled(sets: Sequence[ReportedSet]) -> list[Labelled]:
    """All runs with what they are called and how they are drawn.

    The runs of one set each have a style of their own. Of several sets each has one, and a run is called by its set's
    number and by what tells the sets apart, system and recipe.
    """
    if len(sets) == 1:
        return [Labelled(run, run.name, place, run.name) for place, run in enumerate(sets[0].runs)]
    told = [key for key in ("system", "recipe") if len({one.common_settings.get(key) for one in sets}) > 1]
    found = []
    for place, one in enumerate(sets):
        words = [str(place + 1), *(written(one.common_settings[key]) for key in told if key in one.common_settings)]
        alone = len(one.runs) == 1 and len(words) > 1
        for run in one.runs:
            found.append(Labelled(run, " ".join(words if alone else [*words, run.name]), place, " ".join(words)))
    return found


def _charts(drawn: Sequence[Drawn], runs: Sequence[Labelled]) -> Iterator[Chart]:
    return (chart for one in drawn if (chart := step_chart(one, runs)) is not None)


def _learning(sets: Sequence[ReportedSet], runs: Sequence[Labelled], drawn: Sequence[Labelled]) -> Iterator[Part]:
    over = list(sets[0].accuracies.items()) if len(sets) == 1 else []
    chart = accuracy_chart(drawn, over)
    if chart is not None:
        yield chart
    yield from _charts(LOSSES, drawn)
    for place, one in enumerate(sets, 1):
        if len(one.runs) > 1 and one.accuracies:
            rows = [
                [samples, over.n, over.mean, over.sd, over.least, over.greatest]
                for samples, over in list(one.accuracies.items())[-MOST_ROWS:]
            ]
            columns = [
                number("samples"),
                number("n", help="Runs that were evaluated there"),
                *(number(title, 4) for title in ("mean", "sd", "least", "greatest")),
            ]
            title = "Accuracy over runs" + (f", set {place}" if len(sets) > 1 else "")
            caption = "A run that has reached its target is evaluated no more: later means are of those that had not."
            yield Table(title, columns, rows, caption=caption, filtered=False)
    if len(runs) == 1 and runs[0].run.metrics.evaluations:
        rows = [
            [one.samples, one.accuracy, one.next_sentence_accuracy, one.masked_lm_loss]
            for one in runs[0].run.metrics.evaluations[-MOST_ROWS:]
        ]
        titles = ("masked-LM accuracy", "next-sentence accuracy", "masked-LM loss")
        columns = [number("samples"), *(number(title, 4) for title in titles)]
        count = len(runs[0].run.metrics.evaluations)
        caption = f"The last {MOST_ROWS} of {count:,}." if count > MOST_ROWS else ""
        yield Table("Evaluations", columns, rows, caption=caption, filtered=False)


def _time(runs: Sequence[Labelled], drawn: Sequence[Labelled]) -> Iterator[Part]:
    chart, table = phases_chart(drawn), phases_table(runs)
    if chart is not None and table is not None:
        yield chart
        yield table
    else:
        yield Text(["No run has come to its end yet: phases are told then."])
    throughput = rates_chart(drawn)
    if throughput is not None:
        yield throughput


def _balance(runs: Sequence[Labelled]) -> Iterator[Part]:
    chart = balance_chart(runs)
    if chart is not None:
        yield chart
        yield from _charts((BALANCE,), runs)
    elif any("max_over_mean_tokens" in one.run.metrics.curves for one in runs):
        yield Text(["All ranks had equally many tokens in every step, as on one rank."])
    yield from _charts((PADDING,), runs)


def _settings(runs: Sequence[Labelled]) -> Iterator[Part]:
    whole = ReportedSet("", Path(), tuple(one.run for one in runs))
    common, differing = whole.common_settings, whole.differing_settings
    kept = [settings_of(one.run) for one in runs]
    alike = [(title, kept[0][key]) for key, title in SETTINGS.items() if key in common]
    pairs = [(title, written(value)) for title, value in alike]
    for title, values in (("code", {one.run.code for one in runs}), ("commit", {one.run.commit for one in runs})):
        if len(values) == 1 and (value := next(iter(values))) is not None:
            pairs.append((title, value[:16]))
    if pairs:
        yield Facts(pairs)
    if set(differing) - {"seed"}:  # which the table of runs has
        titles = [SETTINGS.get(key, key) for key in differing[:MOST_DIFFERING]]
        columns = [text("run"), *(text(title) for title in titles)]
        rows: list[list[Value]] = [
            [
                one.label,
                *(
                    written(one.run.settings[key]) if key in one.run.settings else None
                    for key in differing[:MOST_DIFFERING]
                ),
            ]
            for one in runs
        ]
        more = len(differing) - MOST_DIFFERING
        caption = f"{more} more differ; see config.yaml of the runs." if more > 0 else ""
        yield Table("Settings in which runs differ", columns, rows, caption=caption, filtered=False)
    codes = {one.run.code for one in runs}
    if len(codes) > 1:
        rows = [[one.label, (one.run.code or "")[:16], (one.run.commit or "")[:16]] for one in runs]
        yield Table("Code", [text("run"), text("hash of the code"), text("commit")], rows, filtered=False)
