"""Charts of a report: curves over samples, one line a run, and the time of a step by phase, a bar a run."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter

from podium.core.text import for_html
from podium.html.chart import BASE, SERIES, Canvas, Chart, series_style
from podium.html.table import Column, Table, number, text
from podium.report.metrics import Curve, Numbers, Spread, extremes
from podium.report.run import ReportedRun

MOST_POINTS = 1200  # of all lines of a chart together: a run gets its part of them, within what follows
LEAST_POINTS, MOST_POINTS_OF_A_RUN = 24, 160
MOST_MARKS = 240
LEAST_MARKS, MOST_MARKS_OF_A_RUN = 8, 40
# Evaluations of a run that are drawn: those with the least and the greatest values, where there are more.
MOST_EVENTS = 120
MOST_SHADES = 3  # runs that have a shade each; more have one together
COLUMNS = 5  # of a legend
WIDE_RANGE = 100.0  # times that the greatest of positive values is the least from which on an axis is logarithmic

Write = Callable[[float], str]


@dataclass(frozen=True)
class Labelled:
    """A run, and what it is called on the page."""

    run: ReportedRun
    label: str
    number: int  # of its style
    group: str  # what the legend calls all that is drawn in that style


@dataclass(frozen=True)
class Drawn:
    """One quantity of the steps, as a chart shows it."""

    quantity: str
    title: str
    axis: str
    caption: str
    write: Write
    factor: float = 1.0  # by which values are multiplied before they are shown
    may_be_logarithmic: bool = False


def step_chart(drawn: Drawn, runs: Sequence[Labelled]) -> Chart | None:
    """A quantity of the steps of all runs that tell it; None where none does."""
    known = [(one, curve) for one in runs if (curve := one.run.metrics.curves.get(drawn.quantity)) is not None]
    if not known:
        return None
    caption = drawn.caption
    if drawn.quantity == "learning_rate" and len(known) > 1 and _same_schedule([one.run for one, _ in known]):
        known = [max(known, key=lambda pair: pair[0].run.metrics.samples)]
        caption += f" All runs have the same schedule; {known[0][0].label} went furthest along it and is drawn."
    bins = min(max(LEAST_POINTS, MOST_POINTS // len(known)), MOST_POINTS_OF_A_RUN)
    thinned = [(one, curve.at_most(bins)) for one, curve in known]
    steps = max(float(curve.size.max()) for _, curve in thinned)
    of = "them" if len(known) <= MOST_SHADES else "those of all runs"
    how = (
        f" A point stands for up to {steps:,.0f} steps: the line is their mean, and the shade goes from the least to "
        f"the greatest of {of}, so that no step is hidden."
        if steps > 1
        else " Every step is a point."
    )

    def draw(canvas: Canvas) -> None:
        _draw_steps(canvas, drawn, thinned, bins)

    return Chart(drawn.title, caption + how, draw, **_heights([one for one, _ in known]))


def _same_schedule(runs: Sequence[ReportedRun]) -> bool:
    """Whether the settings say that all runs have the same learning rate after the same samples."""
    schedules = {
        (
            run.settings.get("global_batch_size"),
            *(item for item in run.settings.items() if item[0].startswith("optimizer.")),
        )
        for run in runs
    }
    return len(schedules) == 1 and not any(run.metrics.skipped for run in runs) and len(schedules.pop()) > 1


def together(curves: Sequence[Curve], bins: int) -> tuple[Numbers, Numbers, Numbers]:
    """Middle, least and greatest value of each of `bins` equally wide parts of the samples that any curve has.

    A part has the extremes that lie in it, and what the curves' bins between which it lies have.
    """
    first = min(float(min(curve.low_at.min(), curve.high_at.min())) for curve in curves)
    last = max(float(max(curve.low_at.max(), curve.high_at.max())) for curve in curves)
    width = (last - first) / bins or 1.0
    middle = first + width * (np.arange(bins) + 0.5)
    least, greatest = np.full(bins, np.inf), np.full(bins, -np.inf)
    for curve in curves:
        least = np.fmin(least, np.interp(middle, curve.at, curve.low, np.nan, np.nan))
        greatest = np.fmax(greatest, np.interp(middle, curve.at, curve.high, np.nan, np.nan))
        for places, values in ((curve.low_at, curve.low), (curve.high_at, curve.high)):
            cells = np.clip((places - first) / width, 0, bins - 1).astype(int)
            np.minimum.at(least, cells, values)
            np.maximum.at(greatest, cells, values)
    there = np.isfinite(least)
    return middle[there], least[there], greatest[there]


def _draw_steps(canvas: Canvas, drawn: Drawn, runs: Sequence[tuple[Labelled, Curve]], bins: int) -> None:
    axes, handles = canvas.axes, list[Artist]()
    least = drawn.factor * min(curve.least for _, curve in runs)
    greatest = drawn.factor * max(curve.greatest for _, curve in runs)
    if drawn.may_be_logarithmic and least > 0 and greatest / least > WIDE_RANGE:
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.yaxis.set_minor_formatter(NullFormatter())
    marks = min(max(LEAST_MARKS, MOST_MARKS // len(runs)), MOST_MARKS_OF_A_RUN)
    if len(runs) > MOST_SHADES and any(not curve.whole for _, curve in runs):
        at, low, high = together([curve for _, curve in runs], bins)
        axes.fill_between(
            at, drawn.factor * low, drawn.factor * high, color=BASE["quiet"].light, alpha=0.16, linewidth=0
        )
    for one, curve in runs:
        style, mean = series_style(one.number), drawn.factor * curve.mean
        if len(runs) <= MOST_SHADES and not curve.whole:
            shade = drawn.factor * curve.low, drawn.factor * curve.high
            axes.fill_between(curve.at, *shade, color=style["color"], alpha=0.16, linewidth=0)
        axes.plot(curve.at, mean, color=style["color"], linestyle=style["linestyle"], linewidth=1.2)
        every = np.unique(np.linspace(0, len(curve.at) - 1, min(marks, len(curve.at))).round().astype(int))
        (line,) = axes.plot(curve.at[every], mean[every], **{**style, "linestyle": "none"}, markersize=3.6)
        canvas.tell(line, [_step_text(one, drawn, curve, int(place)) for place in every])
        handles.append(Line2D([], [], markersize=3.6, **style))
    axes.set_ylabel(drawn.axis)
    _over_samples(canvas, [one for one, _ in runs], handles)


def _step_text(one: Labelled, drawn: Drawn, curve: Curve, place: int) -> str:
    low, mean, high = (drawn.write(float(values[place])) for values in (curve.low, curve.mean, curve.high))
    count = int(curve.size[place])
    about = f"{drawn.axis} {mean}" if count == 1 else f"{drawn.axis} {mean}, mean of {count:,} steps\n{low} to {high}"
    return f"{one.label}, {curve.at[place]:,.0f} samples\n{about}"


def accuracy_chart(runs: Sequence[Labelled], over_runs: Sequence[tuple[float, Spread]]) -> Chart | None:
    """Masked-LM accuracy at each evaluation, with the target and the mean over runs; None without evaluations."""
    known = [one for one in runs if one.run.metrics.evaluations]
    if not known:
        return None
    several = [(samples, over) for samples, over in over_runs if over.sd is not None and over.n == len(known)]
    targets = sorted({one.run.target for one in known if one.run.target is not None})
    caption = "Share of masked tokens that an evaluation predicts right, over samples trained on until then."
    if targets:
        caption += f" Dashed: the target, {' and '.join(f'{target:g}' for target in targets)}."
    if several:
        caption += " Dotted: the mean, with the standard deviation as shade, as far as all runs were evaluated."

    def draw(canvas: Canvas) -> None:
        axes, handles = canvas.axes, list[Artist]()
        for one in known:
            points = extremes([(point.samples, point.accuracy) for point in one.run.metrics.evaluations], MOST_EVENTS)
            handles.append(_line(canvas, one, points, lambda at, value: f"{at:,.0f} samples\naccuracy {value:.4f}"))
        if several:
            _draw_mean(canvas, several)
        for target in targets:
            axes.axhline(target, color=BASE["quiet"].light, linestyle="--", linewidth=1)
        axes.set_xlim(left=0)
        axes.set_ylim(bottom=0)
        axes.set_ylabel("masked-LM accuracy")
        _over_samples(canvas, known, handles)

    return Chart("Masked-LM accuracy", caption, draw, **_heights(known))


def _draw_mean(canvas: Canvas, several: Sequence[tuple[float, Spread]]) -> None:
    ink = BASE["ink"].light
    places = [samples for samples, _ in several]
    means = np.array([over.mean for _, over in several])
    sds = np.array([over.sd or 0.0 for _, over in several])
    canvas.axes.fill_between(places, means - sds, means + sds, color=ink, alpha=0.1, linewidth=0)
    (line,) = canvas.axes.plot(places, means, color=ink, linestyle=":", linewidth=1.6, marker="_", markersize=9)
    texts = (f"{samples:,.0f} samples\naccuracy {over.mean:.4f}, sd {over.sd:.4f}" for samples, over in several)
    canvas.tell(line, [f"mean of {over.n} runs, {text}" for text, (_, over) in zip(texts, several, strict=True)])


def balance_chart(runs: Sequence[Labelled]) -> Chart | None:
    """How the steps' balance is distributed; None where all steps of all runs are even, as on one rank."""
    shares = (0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 1.0)
    known = [(one, one.run.metrics.balance.quantiles(shares)) for one in runs if one.run.metrics.balance.total]
    if not known or all(math.isclose(quantiles[-1], 1.0, abs_tol=1e-6) for _, quantiles in known):
        return None

    def draw(canvas: Canvas) -> None:
        handles = []
        for one, quantiles in known:
            points = [(value, 100 * share) for value, share in zip(quantiles, shares, strict=True)]
            handles.append(
                _line(canvas, one, points, lambda at, percent: f"{percent:.0f}% of steps\nmax/mean at most {at:.4f}")
            )
        canvas.axes.set_xlabel("busiest rank's tokens / mean rank's")
        canvas.axes.set_ylabel("% of steps at most so uneven")
        _named(canvas, [one for one, _ in known], handles)

    caption = (
        "How evenly steps share out tokens over ranks: for each share of the steps, what the busiest rank has at most "
        "in units of the mean rank. 1 is even; all ranks wait for the busiest one."
    )
    return Chart("Distribution of the balance", caption, draw, **_heights([one for one, _ in known]))


def rates_chart(runs: Sequence[Labelled]) -> Chart | None:
    """Throughput between evaluations; None where no run's log was found."""
    known = [one for one in runs if one.run.rates]
    if not known:
        return None

    def draw(canvas: Canvas) -> None:
        handles = []
        for one in known:
            points = extremes([(rate.samples, rate.sequences_per_second) for rate in one.run.rates], MOST_EVENTS)
            handles.append(_line(canvas, one, points, lambda at, rate: f"{at:,.0f} samples\n{rate:,.1f} sequences/s"))
        canvas.axes.set_ylim(bottom=0)
        canvas.axes.set_ylabel("sequences/s")
        _over_samples(canvas, known, handles)

    caption = (
        "Sequences a second in training up to an evaluation from the one before, by the times in the run's result log."
    )
    return Chart("Throughput over the run", caption, draw, **_heights(known))


def _line(
    canvas: Canvas, one: Labelled, points: Sequence[tuple[float, float]], text: Callable[[float, float], str]
) -> Artist:
    """Draw a run's line through points, each with a tooltip of the run's label and `text` of the point."""
    (line,) = canvas.axes.plot(*zip(*points, strict=True), **series_style(one.number))
    canvas.tell(line, [f"{one.label}, {text(at, value)}" for at, value in points])
    return line


def _heights(runs: Sequence[Labelled]) -> dict[str, float]:
    """Of a chart with a legend of these runs, in COLUMNS columns, or in two on a phone: the axes keep theirs."""
    named = len({one.group for one in runs}) if len(runs) > 1 else 0
    return {"height": 3.6 + 0.18 * -(-named // COLUMNS), "narrow_height": 3.2 + 0.18 * -(-named // 2)}


def _over_samples(canvas: Canvas, runs: Sequence[Labelled], handles: Sequence[Artist]) -> None:
    axes = canvas.axes
    axes.set_xlabel("samples trained on")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: short(value)))
    if canvas.narrow:
        axes.xaxis.set_major_locator(MaxNLocator(4))
    _named(canvas, runs, handles)


def _named(canvas: Canvas, runs: Sequence[Labelled], handles: Sequence[Artist]) -> None:
    for axis in (canvas.axes.xaxis, canvas.axes.yaxis):
        formatter = axis.get_major_formatter()
        if hasattr(formatter, "set_useOffset"):
            formatter.set_useOffset(
                False
            )  # no number apart from the axis, such as +1, to be added to what stands at it
    named = {one.group: handle for one, handle in zip(reversed(runs), reversed(handles), strict=True)}
    if len(runs) > 1:
        canvas.legend(list(named.values())[::-1], list(named)[::-1], columns=COLUMNS)


def short(value: float) -> str:
    """A number of samples for an axis: 500, 20k, 1.5M."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:g}{letter}"
    return f"{value:g}"


BAR_INCHES = 0.34
WIDE_ENOUGH = 0.09  # of the longest bar: a part that is as wide has its share written into it
# Behind what is written into a part: no colour of a part suits every letter's, on light and on dark.
LABEL = {"boxstyle": "round,pad=0.2", "facecolor": BASE["ground"].light, "edgecolor": "none"}


def phases_of(runs: Sequence[Labelled]) -> list[str]:
    """The phases that any of the runs tells, in the order of a step."""
    return list(dict.fromkeys(name for one in runs for name in one.run.phases_ms))


def called(phase: str) -> str:
    return phase.replace("_", " ")


def phases_chart(runs: Sequence[Labelled]) -> Chart | None:
    """Milliseconds a step, stacked; None where no run came to its end."""
    known = [one for one in runs if sum(one.run.phases_ms.values()) > 0]
    if not known:
        return None
    phases = phases_of(known)

    def draw(canvas: Canvas) -> None:
        axes, handles = canvas.axes, list[Artist]()
        left, longest = [0.0] * len(known), max(sum(one.run.phases_ms.values()) for one in known)
        for place, phase in enumerate(phases):
            widths = [one.run.phases_ms.get(phase, 0.0) for one in known]
            style: dict[str, Any] = {
                "facecolor": SERIES[place % len(SERIES)].light,
                "edgecolor": BASE["ground"].light,
                "linewidth": 0.8,
            }
            for bar, (one, width) in enumerate(zip(known, widths, strict=True)):
                if width > 0:
                    patch = axes.add_patch(Rectangle((left[bar], bar - 0.38), width, 0.76, **style))
                    share = width / sum(one.run.phases_ms.values())
                    canvas.tell(patch, [f"{one.label}, {called(phase)}\n{width:,.2f} ms a step, {share:.1%}"])
                    if width > WIDE_ENOUGH * longest * (2 if canvas.narrow else 1):
                        middle = left[bar] + width / 2
                        axes.text(middle, bar, f"{share:.0%}", ha="center", va="center", bbox=LABEL)
            handles.append(Rectangle((0, 0), 1, 1, **style))
            left = [before + width for before, width in zip(left, widths, strict=True)]
        axes.set_xlim(0, 1.02 * longest)
        canvas.rows([for_html(one.label, 20 if canvas.narrow else 40) for one in known])
        axes.set_xlabel("milliseconds a step, of the mean rank")
        canvas.legend(handles, [called(phase) for phase in phases], columns=6)

    height = 1.3 + BAR_INCHES * len(known)
    caption = (
        "What the steps of a run spent their time on, evaluations shared out over all steps, as the host sees it: a "
        "GPU computes on while the host is in a later phase."
    )
    return Chart("Phases of a step", caption, draw, height=height, narrow_height=height + 0.5)


def phases_table(runs: Sequence[Labelled]) -> Table | None:
    """Milliseconds a step and shares, a row a phase; a column a run, or of many runs their least, mean and greatest."""
    known = [one for one in runs if sum(one.run.phases_ms.values()) > 0]
    if not known:
        return None
    phases = phases_of(known)
    whole = fmean(sum(one.run.phases_ms.values()) for one in known)
    columns: list[Column] = [text("phase"), number("ms a step", 2), Column("share", lambda value: f"{value:.1%}")]
    if len(known) > 1:
        columns += [number("least", 2), number("greatest", 2)]
    rows: list[list[str | float]] = []
    for phase in phases:
        times = [one.run.phases_ms.get(phase, 0.0) for one in known]
        row: list[str | float] = [called(phase), fmean(times), fmean(times) / whole]
        rows.append([*row, min(times), max(times)] if len(known) > 1 else row)
    caption = f"Means of {len(known)} runs." if len(known) > 1 else ""
    return Table("Phases in numbers", columns, rows, caption=caption, filtered=False)
