"""Builds the HTML page of local runs: outcome, curves, time by phase, settings.

Labels and formats of the values are the same in the terminal and on the page.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from podium.html.page import Facts, Part, Points, Section, Text, render_page
from podium.html.plotly import Chart, Facet, Filters
from podium.html.table import ESSENTIAL, USUAL, Cell, Column, Table, Value, number, share, text
from podium.mllog.significance import Welch
from podium.report.charts import (
    LabelledRun,
    StepQuantity,
    accuracy_chart,
    balance_chart,
    phases_chart,
    phases_table,
    rates_chart,
    step_chart,
)
from podium.report.metrics import Statistics, summarise
from podium.report.run import SETTINGS, ReportedRun, ReportedSet, Setting, format_setting
from podium.report.sets import QUANTITIES, ComparedSet, compare_sets, format_p, name_sets, p_caption, slowest_ranks
from podium.run.outcome import GOOD, MEANINGS, Outcome


@dataclass(frozen=True)
class ReportField:
    """A value of the report: its key, titles and format."""

    key: str  # in summary.json and the JSON report
    title: str
    short_title: str  # of a column
    format: Callable[[float], str]

    @property
    def help(self) -> str:
        """Full title, where the short one differs."""
        return self.title if self.title != self.short_title else ""


def _number_format(digits: int, unit: str = "") -> Callable[[float], str]:
    return lambda value: f"{value:,.{digits}f}{unit}" if abs(value) < 1e15 else f"{value:.3e}{unit}"


def _format_percent(value: float) -> str:
    return f"{value:.1%}" if abs(value) < 1e6 else f"{value:.3e}"


def _format_flops(value: float) -> str:
    return _number_format(1, " GFLOP/s")(1e3 * value) if abs(value) < 1 else _number_format(1, " TFLOP/s")(value)


def _format_energy(joules: float) -> str:
    return _number_format(1, " kJ")(joules / 1e3) if abs(joules) < 1e7 else _number_format(2, " kWh")(joules / 3.6e6)


# In the order of the tables.
REPORT_FIELDS = (
    ReportField("seconds", "time", "time", _number_format(2, " s")),
    ReportField("samples", "samples", "samples", _number_format(0)),
    ReportField("accuracy", "masked-LM accuracy", "accuracy", _number_format(4)),
    ReportField("next_sentence_accuracy", "next-sentence accuracy", "next sentence", _number_format(3)),
    ReportField("sequences_per_second", "sequences/s", "seq./s", _number_format(1)),
    ReportField("useful_tflops", "useful FLOP/s", "useful", _format_flops),
    ReportField("share_of_peak", "of the matmul peak", "of peak", _format_percent),
    ReportField("padding_share", "padding share", "padding", _format_percent),
    ReportField("max_over_mean_tokens", "balance (max/mean tokens)", "max/mean", _number_format(4)),
    ReportField("evaluation_share", "evaluation share", "evaluation", _format_percent),
    ReportField("energy_joules", "energy", "energy", _format_energy),
)


def _setting(run: ReportedRun, key: str) -> str | None:
    return format_setting(run.settings[key]) if key in run.settings else None


def select_settings(run: ReportedRun) -> dict[str, Setting]:
    """Return those of SETTINGS that the run has, with the precision that `auto` resolved to."""
    found = {key: run.settings[key] for key in SETTINGS if key in run.settings}
    if found.get("precision") == "auto" and run.precision not in (None, "auto"):
        found["precision"] = f"auto: {run.precision}"
    return found


def format_mean_sd(field: ReportField, over: Statistics) -> str:
    """Format mean ± standard deviation with the unit once; only the mean if there is one value."""
    mean = field.format(over.mean)
    if over.sd is None:
        return mean
    sd = field.format(over.sd)
    value, _, unit = mean.partition(" ")
    return f"{value if unit and sd.endswith(f' {unit}') else mean} ± {sd}"


SETS_TITLE = "time-to-train, samples to target and sequences/s of the runs that succeeded, mean ± sd"


def format_values(one: ComparedSet, key: str) -> str:
    """Format mean ± standard deviation of a quantity of a set; a dash without any value."""
    field, over = next(field for field in REPORT_FIELDS if field.key == key), summarise(one.values(key))
    return format_mean_sd(field, over) if over is not None else "–"


# Columns of the table of runs, few enough for most screens.
_COLUMNS = frozenset(field.key for field in REPORT_FIELDS) - {
    "useful_tflops",
    "next_sentence_accuracy",
    "energy_joules",
}


def summary_sentence(sets: Sequence[ReportedSet]) -> str:
    """Summarise the outcome in a sentence."""
    return _summarise_set(sets[0]) if len(sets) == 1 else f"{_format_outcomes(sets)}."


def _summarise_set(one: ReportedSet) -> str:
    recipe, system = one.common_settings.get("recipe"), one.common_settings.get("system")
    what = ", ".join(format_setting(value) for value in (system, recipe and f"recipe {recipe}") if value)
    result = f"the run {MEANINGS[one.runs[0].outcome]}" if len(one.runs) == 1 else _format_outcomes([one])
    totals = []
    for field in REPORT_FIELDS[:2]:
        over = one.statistics(field.key)
        if over is not None:
            totals.append(f"{format_mean_sd(field, over)}{'' if field.key == 'seconds' else ' samples'}")
    if one.score_seconds is not None:
        totals.append(f"MLPerf's score {one.score_seconds:,.2f} s")
    return f"{what or one.name}; {result}{'; ' if totals else ''}{', '.join(totals)}."


def _format_outcomes(sets: Sequence[ReportedSet]) -> str:
    runs = [run for one in sets for run in one.runs]
    return f"{len(runs):,} runs: {outcome_counts(runs)}"


def outcome_counts(runs: Sequence[ReportedRun]) -> str:
    """Count the outcomes, such as `9 succeeded, 1 failed`."""
    outcomes = Counter(run.outcome for run in runs)
    return ", ".join(f"{outcomes[name]:,} {name}" for name in Outcome if outcomes[name])


def outcome_parts(sets: Sequence[ReportedSet], runs: Sequence[LabelledRun]) -> Iterator[Part]:
    """Yield the totals, tables, failures and notes."""
    if len(sets) == 1:
        yield _facts(sets[0])
    else:
        yield _sets_table(sets)
    if len(runs) > 1:
        yield _runs_table(runs)
    failures = [f"{one.label} {one.run.failure_with_outcome}" for one in runs if one.run.failure]
    notes = [note if len(runs) == 1 else f"{one.label}: {note}" for one in runs for note in one.run.notes]
    restarts = [
        f"{one.label}: restarted after {', '.join(f'{samples:,.0f}' for samples in one.run.restarts)} samples, so that "
        "it is not a valid result"
        for one in runs
        if one.run.restarts
    ]
    if failures or notes or restarts:
        yield Points([*failures, *restarts, *notes])


def _facts(one: ReportedSet) -> Facts:
    pairs, count = [("folder", str(one.path))], len(one.counted_runs)
    if len(one.runs) > 1:
        pairs.append(("counted runs", f"n = {count}, mean ± sd" if count > 1 else f"n = {count}"))
    if one.score_seconds is not None:
        pairs.append(("MLPerf score", f"{one.score_seconds:,.2f} s"))
    known = [(field, one.statistics(field.key) or _single_run_statistics(one, field.key)) for field in REPORT_FIELDS]
    return Facts([*pairs, *((field.title, format_mean_sd(field, over)) for field, over in known if over is not None)])


def _single_run_statistics(one: ReportedSet, key: str) -> Statistics | None:
    """The total so far of an unfinished run, if it is the only one."""
    return (
        summarise([one.runs[0].totals_so_far[key]]) if len(one.runs) == 1 and key in one.runs[0].totals_so_far else None
    )


def _sets_table(sets: Sequence[ReportedSet]) -> Table:
    """Table of sets: means over the runs that succeeded, and tests against the first that has such runs."""
    columns = [text("set"), number("n", help="runs that succeeded")]
    columns += [number(title, priority=ESSENTIAL if title == SETS_COLUMNS[0] else USUAL) for title in SETS_COLUMNS]
    columns += [text("outcomes"), text("folder")]
    rows: list[list[Value]] = []
    for one in (compared := compare_sets(sets)):
        cells: list[Value] = []
        for key in QUANTITIES:
            over, test = summarise(one.values(key)), one.tests.get(key)
            cells.append(Cell(format_values(one, key), over.mean) if over is not None else None)
            if key != "sequences_per_second":
                cells.append(Cell(format_p(test), test.p) if isinstance(test, Welch) else None)
        rows.append([one.name, len(one.set.good_runs), *cells, outcome_counts(one.set.runs), one.set.name])
    return Table("Sets", columns, rows, caption=p_caption(compared))


SETS_COLUMNS = ("time-to-train", "p (time)", "samples to target", "p (samples)", "sequences/s")


def _priority(field: ReportField) -> int:
    return ESSENTIAL if field.key == "seconds" else USUAL


def _runs_table(runs: Sequence[LabelledRun]) -> Table:
    columns = [text("run"), text("outcome", priority=ESSENTIAL), text("seed")]
    fields = [field for field in REPORT_FIELDS if field.key in _COLUMNS]
    columns += [Column(one.short_title, one.format, help=one.help, priority=_priority(one)) for one in fields]
    rows = [
        [
            one.label,
            one.run.outcome,
            _setting(one.run, "seed"),
            *(one.run.totals_so_far.get(field.key) for field in fields),
        ]
        for one in runs
    ]
    marked = [place for place, one in enumerate(runs) if one.run.outcome not in GOOD]
    caption = "Highlighted runs did not reach their target, or did not finish." if marked else ""
    return Table("Runs", columns, rows, caption=caption, marked=marked, records=[one.record for one in runs])


LOSSES = (
    StepQuantity(
        "masked_lm_loss",
        "Masked-LM loss",
        "masked-LM loss",
        "Cross-entropy of the masked tokens of each step's global batch, in training.",
        ",.4~g",
        allow_log_scale=True,
    ),
    StepQuantity(
        "next_sentence_loss",
        "Next-sentence loss",
        "next-sentence loss",
        "Cross-entropy of whether the second sentence follows the first, in training. Guessing is 0.693.",
        ",.4~g",
    ),
)
OPTIMIZER = (
    StepQuantity("learning_rate", "Learning rate", "learning rate", "Learning rate of each step.", ".3~g"),
    StepQuantity(
        "gradient_norm",
        "Gradient norm",
        "gradient norm",
        "Norm of each step's gradient before clipping: of the average, or of the first rank's if each clips its own.",
        ",.4~g",
        allow_log_scale=True,
    ),
)
BALANCE = StepQuantity(
    "max_over_mean_tokens",
    "Balance over the run",
    "max/mean tokens",
    "Tokens of the busiest rank divided by those of the mean rank, in each step.",
    ".4f",
)
PADDING = StepQuantity(
    "padding_share",
    "Padding share",
    "% of slots",
    "Share of slots without a token in each step's batches.",
    ".2f",
    factor=100.0,
)
MAX_RUNS_IN_CHART = 60  # runs in a chart
MAX_ROWS = 500  # evaluations in a table
MAX_SLOWEST = 5  # ranks of a run in the table of slowest ranks
MAX_DIFFERING_SETTINGS = 30  # in the table of settings in which runs differ


def page_html(sets: Sequence[ReportedSet], notes: Sequence[str]) -> str:
    """Render the page of some sets of runs as HTML."""
    runs = label_runs(sets)
    drawn = runs[:MAX_RUNS_IN_CHART]
    if len(runs) > len(drawn):
        notes = [*notes, f"Charts show the first {MAX_RUNS_IN_CHART} of {len(runs):,} runs; tables have all of them."]
    sections = [
        Section("Outcome", tuple(outcome_parts(sets, runs))),
        Section("Loss and accuracy", tuple(_learning_parts(sets, runs, drawn))),
        Section("Optimizer", tuple(_step_charts(OPTIMIZER, drawn))),
        Section("Where the time goes", tuple(_time_parts(runs, drawn))),
        Section("Balance and padding", tuple(_balance_parts(drawn))),
        Section("Settings", tuple(_settings_parts(runs))),
    ]
    title = f"{len(sets)} sets of runs" if len(sets) > 1 else f"Runs of {sets[0].name}"
    if len(runs) == 1:
        title = f"{sets[0].name}/{runs[0].run.name}"
    shown = [section for section in sections if section.parts]
    return render_page(title, summary_sentence(sets), shown, notes, _filters(runs) if len(runs) > 1 else None)


def _filters(runs: Sequence[LabelledRun]) -> Filters:
    facets = [Facet("Outcome", [one.run.outcome for one in runs], key="outcome")]
    if len({one.number for one in runs}) < len(runs):
        facets.insert(0, Facet("Set", [one.group for one in runs], key="set"))
    return Filters(facets, [one.label for one in runs], [], "Run")


def label_runs(sets: Sequence[ReportedSet]) -> list[LabelledRun]:
    """Return all runs with their labels and styles.

    Of one set, each run has its own style and the name of its folder. Of several sets, each set has its own style, and
    a label has the settings in which the sets differ, and the run's name.
    """
    if len(sets) == 1:
        return [LabelledRun(run, run.name, place, run.name, place) for place, run in enumerate(sets[0].runs)]
    labelled = [
        (run, group if len(one.runs) == 1 else f"{group}, {run.name}", place, group)
        for place, (one, (group, _)) in enumerate(zip(sets, name_sets(sets), strict=True))
        for run in one.runs
    ]
    return [LabelledRun(*one, record) for record, one in enumerate(labelled)]


def _step_charts(drawn: Sequence[StepQuantity], runs: Sequence[LabelledRun]) -> Iterator[Chart]:
    return (chart for one in drawn if (chart := step_chart(one, runs)) is not None)


def _learning_parts(
    sets: Sequence[ReportedSet], runs: Sequence[LabelledRun], drawn: Sequence[LabelledRun]
) -> Iterator[Part]:
    over = list(sets[0].accuracy_by_samples.items()) if len(sets) == 1 else []
    chart = accuracy_chart(drawn, over)
    if chart is not None:
        yield chart
    yield from _step_charts(LOSSES, drawn)
    names = [name for name, _ in name_sets(sets)]
    for place, one in enumerate(sets):
        if len(one.runs) > 1 and one.accuracy_by_samples:
            rows = [
                [samples, over.n, over.mean, over.sd, over.least, over.greatest]
                for samples, over in list(one.accuracy_by_samples.items())[-MAX_ROWS:]
            ]
            columns = [
                number("samples"),
                number("n", help="Runs that were evaluated there"),
                *(number(title, 4) for title in ("mean", "sd", "least", "greatest")),
            ]
            title = "Accuracy over runs" + (f", {names[place]}" if len(sets) > 1 else "")
            caption = "A run ends when it reaches its target: later means are of the other runs."
            yield Table(title, columns, rows, caption=caption)
    if len(runs) == 1 and runs[0].run.metrics.evaluations:
        rows = [
            [one.samples, one.accuracy, one.next_sentence_accuracy, one.masked_lm_loss]
            for one in runs[0].run.metrics.evaluations[-MAX_ROWS:]
        ]
        titles = ("masked-LM accuracy", "next-sentence accuracy", "masked-LM loss")
        columns = [number("samples"), *(number(title, 4) for title in titles)]
        count = len(runs[0].run.metrics.evaluations)
        caption = f"The last {MAX_ROWS} of {count:,}." if count > MAX_ROWS else ""
        yield Table("Evaluations", columns, rows, caption=caption)


def _time_parts(runs: Sequence[LabelledRun], drawn: Sequence[LabelledRun]) -> Iterator[Part]:
    chart, table = phases_chart(drawn), phases_table(runs)
    if chart is not None and table is not None:
        yield chart
        yield table
    else:
        yield Text(["No run has finished yet: phases are known only then."])
    slowest = [(one.label, rank) for one in runs for rank in slowest_ranks(one.run)[:MAX_SLOWEST]]
    if slowest:
        columns = [text("run"), number("rank"), text("host"), number("steps"), share("share of steps")]
        columns += [number("ms over the mean rank", 2), share("over the mean rank")]
        rows = [
            [label, rank.rank, rank.host, rank.steps, rank.share, rank.excess_ms, rank.excess_share]
            for label, rank in slowest
        ]
        caption = f"Ranks whose work took longest in a step, without waiting: up to {MAX_SLOWEST} of a run."
        yield Table("Slowest rank of a step", columns, rows, caption=caption)
    throughput = rates_chart(drawn)
    if throughput is not None:
        yield throughput


def _balance_parts(runs: Sequence[LabelledRun]) -> Iterator[Part]:
    chart = balance_chart(runs)
    if chart is not None:
        yield chart
        yield from _step_charts((BALANCE,), runs)
    elif any("max_over_mean_tokens" in one.run.metrics.curves for one in runs):
        yield Text(["All ranks had the same number of tokens in every step, as with one rank."])
    yield from _step_charts((PADDING,), runs)


def _settings_parts(runs: Sequence[LabelledRun]) -> Iterator[Part]:
    all_runs = ReportedSet(Path(), tuple(one.run for one in runs))
    common, differing = all_runs.common_settings, all_runs.differing_settings
    first = select_settings(runs[0].run)
    pairs = [(title, format_setting(first[key])) for key, title in SETTINGS.items() if key in common]
    for title, values in (("code", {one.run.code for one in runs}), ("commit", {one.run.commit for one in runs})):
        if len(values) == 1 and (value := next(iter(values))) is not None:
            pairs.append((title, value[:16]))
    if pairs:
        yield Facts(pairs)
    if set(differing) - {"seed"}:  # the table of runs has the seed
        listed = differing[:MAX_DIFFERING_SETTINGS]
        columns = [text("run"), *(text(SETTINGS.get(key, key)) for key in listed)]
        rows = [[one.label, *(_setting(one.run, key) for key in listed)] for one in runs]
        more = len(differing) - len(listed)
        caption = f"{more} more differ; see config.yaml of the runs." if more > 0 else ""
        yield Table("Settings in which runs differ", columns, rows, caption=caption)
    if len({one.run.code for one in runs}) > 1:
        rows = [[one.label, (one.run.code or "")[:16], (one.run.commit or "")[:16]] for one in runs]
        yield Table("Code", [text("run"), text("hash of the code"), text("commit")], rows)
