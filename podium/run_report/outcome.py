"""What became of runs, as the page tells it first: a sentence, the figures, and a table of sets and of runs."""

from collections import Counter
from collections.abc import Iterator, Sequence

from podium.page.page import Facts, Part, Points
from podium.page.table import Cell, Column, Table, Value, number, text
from podium.run_report.curves import Labelled
from podium.run_report.figures import FIGURES, with_spread, written
from podium.run_report.run import OUTCOMES, REACHED, TRAINED, ReportedSet
from podium.run_report.spread import Spread, spread

_COLUMNS = frozenset(figure.key for figure in FIGURES) - {"useful_tflops", "next_sentence_accuracy"}
"""Of the table of runs, which stays in sight on most screens."""


def lead(sets: Sequence[ReportedSet]) -> str:
    """How it went, in a sentence."""
    if len(sets) == 1:
        return _sentence(sets[0])
    return f"{_counted(sets)}."


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
    outcomes = Counter(run.outcome for one in sets for run in one.runs)
    told = ", ".join(f"{outcomes[name]:,} {name}" for name in OUTCOMES if outcomes[name])
    return f"{outcomes.total():,} runs: {told}"


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
