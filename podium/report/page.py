"""The HTML page of local runs: their outcome, curves, time by phase, and settings.

The labels and formats of the figures are the same in the terminal and on the page.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from podium.html.chart import Chart
from podium.html.page import Facts, Part, Points, Section, Text, page
from podium.html.table import Cell, Column, Table, Value, number, text
from podium.report.charts import (
    Drawn,
    Labelled,
    accuracy_chart,
    balance_chart,
    phases_chart,
    phases_table,
    rates_chart,
    step_chart,
)
from podium.report.metrics import Spread, spread
from podium.report.run import OUTCOMES, REACHED, TRAINED, ReportedRun, ReportedSet, Setting


@dataclass(frozen=True)
class Figure:
    """One row of a table of figures."""

    key: str  # in summary.json
    title: str
    column: str  # a shorter title
    write: Callable[[float], str]

    @property
    def help(self) -> str:
        """What the shorter title leaves unsaid."""
        return self.title if self.title != self.column else ""


def _digits(digits: int, unit: str = "") -> Callable[[float], str]:
    return lambda value: f"{value:,.{digits}f}{unit}" if abs(value) < 1e15 else f"{value:.3e}{unit}"


def _percent(value: float) -> str:
    return f"{value:.1%}" if abs(value) < 1e6 else f"{value:.3e}"


def _flops(value: float) -> str:
    return _digits(1, " GFLOP/s")(1e3 * value) if abs(value) < 1 else _digits(1, " TFLOP/s")(value)


# In the order of the tables.
FIGURES = (
    Figure("seconds", "time", "time", _digits(2, " s")),
    Figure("samples", "samples", "samples", _digits(0)),
    Figure("accuracy", "masked-LM accuracy", "accuracy", _digits(4)),
    Figure("next_sentence_accuracy", "next-sentence accuracy", "next sentence", _digits(3)),
    Figure("sequences_per_second", "sequences/s", "seq./s", _digits(1)),
    Figure("useful_tflops", "useful FLOP/s", "useful", _flops),
    Figure("share_of_peak", "of the matmul peak", "of peak", _percent),
    Figure("padding_share", "padding share", "padding", _percent),
    Figure("max_over_mean_tokens", "balance (max/mean tokens)", "max/mean", _digits(4)),
    Figure("evaluation_share", "evaluation share", "evaluation", _percent),
)

# Settings that matter, by their keys in the resolved configuration.
SETTINGS: Mapping[str, str] = {
    "system": "system",
    "recipe": "recipe",
    "size": "size",
    "description.division": "division",
    "launch.device": "device",
    "launch.nodes": "nodes",
    "launch.processes_per_node": "processes a node",
    "global_batch_size": "global batch",
    "gradient_accumulation_steps": "accumulation steps",
    "optimizer.algorithm": "optimizer",
    "optimizer.learning_rate": "learning rate",
    "optimizer.warmup_steps": "warm-up steps",
    "optimizer.decay_from": "decay from step",
    "optimizer.decay_steps": "decay steps",
    "optimizer.beta1": "beta 1",
    "optimizer.beta2": "beta 2",
    "optimizer.weight_decay": "weight decay",
    "clipping.max_norm": "clipped to norm",
    "precision": "precision",
    "balancing": "balancing",
    "attention": "attention",
    "dropout": "dropout",
    "target_accuracy": "target accuracy",
    "max_samples": "samples at most",
    "seed": "seed",
}


def written(value: Setting) -> str:
    """A setting as it would be typed."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:g}" if math.isfinite(value) else str(value)
    return str(value)


def _setting(run: ReportedRun, key: str) -> str | None:
    return written(run.settings[key]) if key in run.settings else None


def settings_of(run: ReportedRun) -> dict[str, Setting]:
    """Those of SETTINGS that are known, with the precision that `auto` came to."""
    found = {key: run.settings[key] for key in SETTINGS if key in run.settings}
    if found.get("precision") == "auto" and run.precision not in (None, "auto"):
        found["precision"] = f"auto: {run.precision}"
    return found


def with_spread(figure: Figure, over: Spread) -> str:
    """Mean ± standard deviation, with their unit once; the mean alone where there is no deviation to tell."""
    mean = figure.write(over.mean)
    if over.sd is None:
        return mean
    sd = figure.write(over.sd)
    value, _, unit = mean.partition(" ")
    return f"{value if unit and sd.endswith(f' {unit}') else mean} ± {sd}"


# Of the table of runs, which stays in sight on most screens.
_COLUMNS = frozenset(figure.key for figure in FIGURES) - {"useful_tflops", "next_sentence_accuracy"}


def lead(sets: Sequence[ReportedSet]) -> str:
    """How it went, in a sentence."""
    return _sentence(sets[0]) if len(sets) == 1 else f"{_counted(sets)}."


def _sentence(one: ReportedSet) -> str:
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


def _counted(sets: Sequence[ReportedSet]) -> str:
    runs = [run for one in sets for run in one.runs]
    return f"{len(runs):,} runs: {outcome_counts(runs)}"


def outcome_counts(runs: Sequence[ReportedRun]) -> str:
    """Such as `9 reached target, 1 broke off`."""
    outcomes = Counter(run.outcome for run in runs)
    return ", ".join(f"{outcomes[name]:,} {name}" for name in OUTCOMES if outcomes[name])


def outcome(sets: Sequence[ReportedSet], runs: Sequence[Labelled]) -> Iterator[Part]:
    """Figures, tables, and what went wrong."""
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


def _facts(one: ReportedSet) -> Facts:
    pairs, count = [("folder", str(one.path))], len(one.to_target)
    if len(one.runs) > 1:
        pairs.append(("counted here", f"n = {count}, mean ± sd" if count > 1 else f"n = {count}"))
    if one.score_seconds is not None:
        pairs.append(("MLPerf score", f"{one.score_seconds:,.2f} s"))
    known = [(figure, one.over_runs(figure.key) or _only(one, figure.key)) for figure in FIGURES]
    return Facts([*pairs, *((figure.title, with_spread(figure, over)) for figure, over in known if over is not None)])


def _only(one: ReportedSet, key: str) -> Spread | None:
    """The figure of a run that has not come to its end, where it is alone."""
    return spread([one.runs[0].figures[key]]) if len(one.runs) == 1 and key in one.runs[0].figures else None


def _sets_table(sets: Sequence[ReportedSet]) -> Table:
    """A row a set: its means, of the runs that are counted; the names alone where the table of runs has the rest."""
    several = any(len(one.runs) > 1 for one in sets)
    figures = [figure for figure in FIGURES if several and figure.key in _COLUMNS]
    columns = [text("set")]
    if several:
        columns += [number("runs"), number("n", help="runs that are counted here")]
    columns += [Column(one.column, one.write, help=f"{one.title}, mean ± standard deviation") for one in figures]
    rows: list[list[Value]] = []
    for place, one in enumerate(sets, 1):
        overs = [(figure, one.over_runs(figure.key)) for figure in figures]
        means = [Cell(with_spread(figure, over), over.mean) if over is not None else None for figure, over in overs]
        rows.append([f"{place} {one.name}", *((len(one.runs), len(one.to_target)) if several else ()), *means])
    return Table("Sets", columns, rows, filtered=False)


def _runs_table(runs: Sequence[Labelled]) -> Table:
    columns = [text("run"), text("outcome", choices=True), text("seed")]
    figures = [figure for figure in FIGURES if figure.key in _COLUMNS]
    columns += [Column(figure.column, figure.write, help=figure.help) for figure in figures]
    rows = [
        [
            one.label,
            one.run.outcome,
            _setting(one.run, "seed"),
            *(one.run.figures.get(figure.key) for figure in figures),
        ]
        for one in runs
    ]
    marked = [place for place, one in enumerate(runs) if one.run.outcome not in (REACHED, TRAINED)]
    caption = "Marked are runs that did not come to what they were to reach." if marked else ""
    return Table("Runs", columns, rows, caption=caption, marked=marked, filtered=len(runs) > 12)


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
MOST_DRAWN = 60  # runs in a chart
MOST_ROWS = 500  # evaluations in a table
MOST_DIFFERING = 30  # settings in which runs differ that are told


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
    whole = ReportedSet(Path(), tuple(one.run for one in runs))
    common, differing = whole.common_settings, whole.differing_settings
    first = settings_of(runs[0].run)
    pairs = [(title, written(first[key])) for key, title in SETTINGS.items() if key in common]
    for title, values in (("code", {one.run.code for one in runs}), ("commit", {one.run.commit for one in runs})):
        if len(values) == 1 and (value := next(iter(values))) is not None:
            pairs.append((title, value[:16]))
    if pairs:
        yield Facts(pairs)
    if set(differing) - {"seed"}:  # which the table of runs has
        shown = differing[:MOST_DIFFERING]
        columns = [text("run"), *(text(SETTINGS.get(key, key)) for key in shown)]
        rows = [[one.label, *(_setting(one.run, key) for key in shown)] for one in runs]
        more = len(differing) - len(shown)
        caption = f"{more} more differ; see config.yaml of the runs." if more > 0 else ""
        yield Table("Settings in which runs differ", columns, rows, caption=caption, filtered=False)
    if len({one.run.code for one in runs}) > 1:
        rows = [[one.label, (one.run.code or "")[:16], (one.run.commit or "")[:16]] for one in runs]
        yield Table("Code", [text("run"), text("hash of the code"), text("commit")], rows, filtered=False)
