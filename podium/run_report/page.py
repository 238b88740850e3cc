"""The page of one's own runs: what became of them, their curves, where the time went, and how they were set."""

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from podium.page.chart import Chart
from podium.page.page import Facts, Part, Points, Section, Text, page
from podium.page.page import write_page as write_html
from podium.page.table import Cell, Column, Table, Value, number, text
from podium.run_report.curves import Drawn, Labelled, accuracy_chart, balance_chart, lines_chart, step_chart
from podium.run_report.figures import FIGURES, SETTINGS, settings_of, with_spread, written
from podium.run_report.phases import phases_chart, phases_table
from podium.run_report.run import OUTCOMES, REACHED, TRAINED, RunSet
from podium.run_report.spread import Spread, spread

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
        "Of the whole gradient of each step, before it is clipped.",
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


_COLUMNS = frozenset(figure.key for figure in FIGURES) - {"useful_tflops", "next_sentence_accuracy"}
"""Of the table of runs, which stays in sight on most screens."""
MOST_DIFFERING = 30
"""Settings in which runs differ that are told."""


def write_page(sets: Sequence[RunSet], notes: Sequence[str], path: Path) -> None:
    """Write the page. Raises WorkError if it cannot be."""
    write_html(path, page_html(sets, notes))


def page_html(sets: Sequence[RunSet], notes: Sequence[str]) -> str:
    """The whole page."""
    runs = labelled(sets)
    sections = [
        Section("Outcome", tuple(_outcome(sets, runs))),
        Section("Loss and accuracy", tuple(_learning(sets, runs))),
        Section("Optimizer", tuple(_charts(OPTIMIZER, runs))),
        Section("Where the time goes", tuple(_time(runs))),
        Section("Balance and padding", tuple(_balance(runs))),
        Section("Settings", tuple(_settings(sets, runs))),
    ]
    title = f"{len(sets)} sets of runs" if len(sets) > 1 else f"Runs of {sets[0].name}"
    if len(runs) == 1:
        title = f"{sets[0].name}/{runs[0].run.name}"
    return page(title, _lead(sets), [section for section in sections if section.parts], notes)


def labelled(sets: Sequence[RunSet]) -> list[Labelled]:
    """All runs with what they are called, numbered through.

    With several sets a run is called by its set's number and by what tells the sets apart, system and recipe.
    """
    if len(sets) == 1:
        names = [(run, run.name) for run in sets[0].runs]
    else:
        told = [key for key in ("system", "recipe") if len({one.common_settings.get(key) for one in sets}) > 1]
        names = []
        for number_, one in enumerate(sets, 1):
            words = [str(number_), *(written(one.common_settings[key]) for key in told if key in one.common_settings)]
            alone = len(one.runs) == 1 and len(words) > 1
            names += [(run, " ".join(words if alone else [*words, run.name])) for run in one.runs]
    return [Labelled(run, label, place) for place, (run, label) in enumerate(names)]


def _lead(sets: Sequence[RunSet]) -> str:
    if len(sets) == 1:
        return _sentence(sets[0])
    return f"{_counted(sets)}."


def _counted(sets: Sequence[RunSet]) -> str:
    outcomes = Counter(run.outcome for one in sets for run in one.runs)
    told = ", ".join(f"{outcomes[name]:,} {name}" for name in OUTCOMES if outcomes[name])
    return f"{outcomes.total():,} runs: {told}"


def _sentence(one: RunSet) -> str:
    recipe, system = one.common_settings.get("recipe"), one.common_settings.get("system")
    what = ", ".join(written(value) for value in (system, recipe and f"recipe {recipe}") if value)
    came = f"the run {OUTCOMES[one.runs[0].outcome]}" if len(one.runs) == 1 else _counted([one])
    told = []
    for figure in FIGURES[:2]:
        over = one.over_runs(figure.key)
        if over is not None:
            told.append(f"{with_spread(figure, over)}{'' if figure.key == 'seconds' else ' samples'}")
    if one.score_seconds is not None:
        told.append(f"MLPerf's score {one.score_seconds:,.2f} s")
    return f"{what or one.name}; {came}{'; ' if told else ''}{', '.join(told)}."


def _outcome(sets: Sequence[RunSet], runs: Sequence[Labelled]) -> Iterator[Part]:
    if len(sets) == 1:
        yield _facts(sets[0])
    else:
        yield _sets_table(sets)
    if len(runs) > 1:
        yield _runs_table(runs)
    failures = [f"{one.label} {one.run.outcome}: {one.run.failure}" for one in runs if one.run.failure]
    notes = [note if len(runs) == 1 else f"{one.label}: {note}" for one in runs for note in one.run.notes]
    restarts = [
        f"{one.label}: restarted after {', '.join(f'{samples:,.0f}' for samples in one.run.restarts)} samples, so that "
        "it is no result"
        for one in runs
        if one.run.restarts
    ]
    if failures or notes or restarts:
        yield Points([*failures, *restarts, *notes])


def _facts(one: RunSet) -> Facts:
    pairs, count = [("folder", str(one.path))], len(one.to_target)
    if len(one.runs) > 1:
        pairs.append(("counted here", f"n = {count}, mean ± sd" if count > 1 else f"n = {count}"))
    if one.score_seconds is not None:
        pairs.append(("MLPerf score", f"{one.score_seconds:,.2f} s"))
    known = [(figure, one.over_runs(figure.key) or _only(one, figure.key)) for figure in FIGURES]
    return Facts([*pairs, *((figure.title, with_spread(figure, over)) for figure, over in known if over is not None)])


def _sets_table(sets: Sequence[RunSet]) -> Table:
    """A row a set: its means, of the runs that are counted."""
    columns = [number("set"), text("folder"), number("runs"), number("n", help="Runs that are counted")]
    several = any(len(one.runs) > 1 for one in sets)  # else the table of runs has all of it
    figures = [figure for figure in FIGURES if several and figure.key in _COLUMNS]
    columns += [
        Column(figure.column, figure.write, help=f"{figure.title}, mean ± standard deviation") for figure in figures
    ]
    rows: list[list[Value]] = []
    for place, one in enumerate(sets, 1):
        overs = [(figure, one.over_runs(figure.key)) for figure in figures]
        means = [Cell(with_spread(figure, over), over.mean) if over is not None else None for figure, over in overs]
        rows.append([place, one.name, len(one.runs), len(one.to_target), *means])
    return Table("Sets", columns, rows, filtered=False)


def _only(one: RunSet, key: str) -> Spread | None:
    """The figure of a run that has not come to its end, where it is alone."""
    return spread([one.runs[0].figures[key]]) if len(one.runs) == 1 and key in one.runs[0].figures else None


def _runs_table(runs: Sequence[Labelled]) -> Table:
    columns = [text("run"), text("outcome", choices=True), text("seed")]
    figures = [figure for figure in FIGURES if figure.key in _COLUMNS]
    columns += [Column(figure.column, figure.write, help=figure.help) for figure in figures]
    rows: list[list[Value]] = [
        [
            one.label,
            one.run.outcome,
            written(one.run.settings["seed"]) if "seed" in one.run.settings else None,
            *(one.run.figures.get(figure.key) for figure in figures),
        ]
        for one in runs
    ]
    marked = [place for place, one in enumerate(runs) if one.run.outcome not in (REACHED, TRAINED)]
    caption = "Marked are runs that did not come to what they were to reach." if marked else ""
    return Table("Runs", columns, rows, caption=caption, marked=marked, filtered=len(runs) > 12)


def _charts(drawn: Sequence[Drawn], runs: Sequence[Labelled]) -> Iterator[Chart]:
    return (chart for one in drawn if (chart := step_chart(one, runs)) is not None)


def _learning(sets: Sequence[RunSet], runs: Sequence[Labelled]) -> Iterator[Part]:
    over = list(sets[0].accuracies.items()) if len(sets) == 1 else []
    chart = accuracy_chart(runs, over)
    if chart is not None:
        yield chart
    yield from _charts(LOSSES, runs)
    for place, one in enumerate(sets, 1):
        if len(one.runs) > 1 and one.accuracies:
            rows = [
                [samples, over.n, over.mean, over.sd, over.least, over.greatest]
                for samples, over in one.accuracies.items()
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
            for one in runs[0].run.metrics.evaluations
        ]
        titles = ("masked-LM accuracy", "next-sentence accuracy", "masked-LM loss")
        yield Table("Evaluations", [number("samples"), *(number(title, 4) for title in titles)], rows, filtered=False)


def _time(runs: Sequence[Labelled]) -> Iterator[Part]:
    chart, table = phases_chart(runs), phases_table(runs)
    if chart is not None and table is not None:
        yield chart
        yield table
    else:
        yield Text(["No run has come to its end yet: phases are told then."])
    rates = [
        (
            one,
            [
                (rate.samples, rate.sequences_per_second, f"{rate.sequences_per_second:,.1f} sequences/s")
                for rate in one.run.rates
            ],
        )
        for one in runs
    ]
    throughput = lines_chart(
        "Throughput over the run",
        "Sequences a second in training between two evaluations, by the times in the run's result log.",
        "sequences/s",
        rates,
    )
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


def _settings(sets: Sequence[RunSet], runs: Sequence[Labelled]) -> Iterator[Part]:
    common = RunSet("", Path(), tuple(one.run for one in runs)).common_settings
    kept = [settings_of(one.run) for one in runs]
    alike = [(title, kept[0][key]) for key, title in SETTINGS.items() if key in common]
    pairs = [(title, written(value)) for title, value in alike]
    for title, values in (("code", {one.run.code for one in runs}), ("commit", {one.run.commit for one in runs})):
        if len(values) == 1 and (value := next(iter(values))) is not None:
            pairs.append((title, value[:16]))
    if pairs:
        yield Facts(pairs)
    differing = RunSet("", Path(), tuple(one.run for one in runs)).differing_settings
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
