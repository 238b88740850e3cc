"""Charts of a report: curves over samples with a line per run, and the time of a step by phase with a bar per run."""

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
from podium.report.metrics import Curve, Numbers, Statistics, extremes
from podium.report.run import ReportedRun

MAX_POINTS = 1200  # of a chart, divided by its runs, within these limits for one run:
MIN_POINTS_PER_RUN, MAX_POINTS_PER_RUN = 24, 160
MAX_MARKERS = 240
MIN_MARKERS_PER_RUN, MAX_MARKERS_PER_RUN = 8, 40
# Evaluations of a run that are drawn; of more, those with the least and greatest values.
MAX_EVALUATIONS_PER_RUN = 120
MAX_BANDS = 3  # runs with a band of extremes each; more runs share one band
LEGEND_COLUMNS = 5
LOG_SCALE_RATIO = 100.0  # of the greatest to the least positive value, above which an axis is logarithmic

Format = Callable[[float], str]


@dataclass(frozen=True)
class LabelledRun:
    """A run with its label and style on the page."""

    run: ReportedRun
    label: str
    number: int  # of its series style
    group: str  # the legend's label of all runs in that style


@dataclass(frozen=True)
class StepQuantity:
    """A quantity of the steps, and how a chart shows it."""

    name: str  # in metrics.jsonl
    title: str
    axis: str
    caption: str
    format: Format
    factor: float = 1.0  # multiplies values for display
    allow_log_scale: bool = False


def step_chart(quantity: StepQuantity, runs: Sequence[LabelledRun]) -> Chart | None:
    """Chart of a quantity over samples, of all runs that logged it; None without any."""
    known = [(one, curve) for one in runs if (curve := one.run.metrics.curves.get(quantity.name)) is not None]
    if not known:
        return None
    caption = quantity.caption
    if quantity.name == "learning_rate" and len(known) > 1 and _same_schedule([one.run for one, _ in known]):
        known = [max(known, key=lambda pair: pair[0].run.metrics.samples)]
        caption += f" All runs have the same schedule; {known[0][0].label}, which trained longest, is drawn."
    bins = min(max(MIN_POINTS_PER_RUN, MAX_POINTS // len(known)), MAX_POINTS_PER_RUN)
    downsampled = [(one, curve.downsample(bins)) for one, curve in known]
    steps = max(float(curve.size.max()) for _, curve in downsampled)
    of = "them" if len(known) <= MAX_BANDS else "those of all runs"
    resolution = (
        f" A point is up to {steps:,.0f} steps: the line is their mean, and the band spans the least and greatest of "
        f"{of}, so that no extreme is hidden."
        if steps > 1
        else " Every step is a point."
    )

    def draw(canvas: Canvas) -> None:
        _draw_steps(canvas, quantity, downsampled, bins)

    return Chart(quantity.title, caption + resolution, draw, **_chart_heights([one for one, _ in known]))


def _same_schedule(runs: Sequence[ReportedRun]) -> bool:
    """Whether the settings imply the same learning rate of all runs after the same samples."""
    # A step that overflow skips does not advance the schedule, so that runs with such steps differ.
    schedules = {
        (
            run.settings.get("global_batch_size"),
            *(item for item in run.settings.items() if item[0].startswith("optimizer.")),
        )
        for run in runs
    }
    return len(schedules) == 1 and not any(run.metrics.skipped for run in runs) and len(schedules.pop()) > 1


def envelope(curves: Sequence[Curve], bins: int) -> tuple[Numbers, Numbers, Numbers]:
    """Envelope of several curves: middles, least and greatest values [bins] of equally wide intervals of samples.

    An interval has the extremes within it, and the interpolated extremes of the neighbouring bins of each curve.
    """
    first = min(float(min(curve.low_at.min(), curve.high_at.min())) for curve in curves)
    last = max(float(max(curve.low_at.max(), curve.high_at.max())) for curve in curves)
    width = (last - first) / bins or 1.0
    middle = first + width * (np.arange(bins) + 0.5)
    least, greatest = np.full(bins, np.inf), np.full(bins, -np.inf)
    for curve in curves:
        # Interpolation leaves no gaps between points; fmin and fmax ignore the NaN outside of a curve's range.
        least = np.fmin(least, np.interp(middle, curve.at, curve.low, np.nan, np.nan))
        greatest = np.fmax(greatest, np.interp(middle, curve.at, curve.high, np.nan, np.nan))
        for positions, values in ((curve.low_at, curve.low), (curve.high_at, curve.high)):
            cells = np.clip((positions - first) / width, 0, bins - 1).astype(int)
            np.minimum.at(least, cells, values)
            np.maximum.at(greatest, cells, values)
    known = np.isfinite(least)
    return middle[known], least[known], greatest[known]


def _draw_steps(canvas: Canvas, quantity: StepQuantity, runs: Sequence[tuple[LabelledRun, Curve]], bins: int) -> None:
    axes, handles = canvas.axes, list[Artist]()
    least = quantity.factor * min(curve.least for _, curve in runs)
    greatest = quantity.factor * max(curve.greatest for _, curve in runs)
    if quantity.allow_log_scale and least > 0 and greatest / least > LOG_SCALE_RATIO:
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.yaxis.set_minor_formatter(NullFormatter())
    markers = min(max(MIN_MARKERS_PER_RUN, MAX_MARKERS // len(runs)), MAX_MARKERS_PER_RUN)
    if len(runs) > MAX_BANDS and any(not curve.is_exact for _, curve in runs):
        at, low, high = envelope([curve for _, curve in runs], bins)
        axes.fill_between(
            at, quantity.factor * low, quantity.factor * high, color=BASE["quiet"].light, alpha=0.16, linewidth=0
        )
    for one, curve in runs:
        style, mean = series_style(one.number), quantity.factor * curve.mean
        if len(runs) <= MAX_BANDS and not curve.is_exact:
            band = quantity.factor * curve.low, quantity.factor * curve.high
            axes.fill_between(curve.at, *band, color=style["color"], alpha=0.16, linewidth=0)
        axes.plot(curve.at, mean, color=style["color"], linestyle=style["linestyle"], linewidth=1.2)
        marked = np.unique(np.linspace(0, len(curve.at) - 1, min(markers, len(curve.at))).round().astype(int))
        (line,) = axes.plot(curve.at[marked], mean[marked], **{**style, "linestyle": "none"}, markersize=3.6)
        canvas.add_tooltips(line, [_step_text(one, quantity, curve, int(place)) for place in marked])
        handles.append(Line2D([], [], markersize=3.6, **style))
    axes.set_ylabel(quantity.axis)
    _label_samples_axis(canvas, [one for one, _ in runs], handles)


def _step_text(one: LabelledRun, quantity: StepQuantity, curve: Curve, place: int) -> str:
    low, mean, high = (quantity.format(float(values[place])) for values in (curve.low, curve.mean, curve.high))
    count = int(curve.size[place])
    value = (
        f"{quantity.axis} {mean}" if count == 1 else f"{quantity.axis} {mean}, mean of {count:,} steps\n{low} to {high}"
    )
    return f"{one.label}, {curve.at[place]:,.0f} samples\n{value}"


def accuracy_chart(runs: Sequence[LabelledRun], over_runs: Sequence[tuple[float, Statistics]]) -> Chart | None:
    """Chart of masked-LM accuracy at each evaluation, with the target and the mean of all runs; None without any."""
    known = [one for one in runs if one.run.metrics.evaluations]
    if not known:
        return None
    several = [(samples, over) for samples, over in over_runs if over.sd is not None and over.n == len(known)]
    targets = sorted({one.run.target for one in known if one.run.target is not None})
    caption = "Share of masked tokens that are predicted correctly at each evaluation, over samples trained on."
    if targets:
        caption += f" Dashed: the target, {' and '.join(f'{target:g}' for target in targets)}."
    if several:
        caption += " Dotted: the mean with a band of one standard deviation, where all runs were evaluated."

    def draw(canvas: Canvas) -> None:
        axes, handles = canvas.axes, list[Artist]()
        for one in known:
            points = extremes(
                [(point.samples, point.accuracy) for point in one.run.metrics.evaluations], MAX_EVALUATIONS_PER_RUN
            )
            handles.append(_line(canvas, one, points, lambda at, value: f"{at:,.0f} samples\naccuracy {value:.4f}"))
        if several:
            _draw_mean(canvas, several)
        for target in targets:
            axes.axhline(target, color=BASE["quiet"].light, linestyle="--", linewidth=1)
        axes.set_xlim(left=0)
        axes.set_ylim(bottom=0)
        axes.set_ylabel("masked-LM accuracy")
        _label_samples_axis(canvas, known, handles)

    return Chart("Masked-LM accuracy", caption, draw, **_chart_heights(known))


def _draw_mean(canvas: Canvas, several: Sequence[tuple[float, Statistics]]) -> None:
    ink = BASE["ink"].light
    places = [samples for samples, _ in several]
    means = np.array([over.mean for _, over in several])
    sds = np.array([over.sd or 0.0 for _, over in several])
    canvas.axes.fill_between(places, means - sds, means + sds, color=ink, alpha=0.1, linewidth=0)
    (line,) = canvas.axes.plot(places, means, color=ink, linestyle=":", linewidth=1.6, marker="_", markersize=9)
    texts = (f"{samples:,.0f} samples\naccuracy {over.mean:.4f}, sd {over.sd:.4f}" for samples, over in several)
    canvas.add_tooltips(
        line, [f"mean of {over.n} runs, {text}" for text, (_, over) in zip(texts, several, strict=True)]
    )


def balance_chart(runs: Sequence[LabelledRun]) -> Chart | None:
    """Chart of the distribution of max/mean tokens per rank; None if all steps are even, as on one rank."""
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
        canvas.axes.set_ylabel("% of steps with at most that ratio")
        _add_legend(canvas, [one for one, _ in known], handles)

    caption = (
        "Balance of tokens over ranks: for each share of the steps, the largest ratio of the busiest rank's tokens to "
        "the mean rank's. 1 is even; all ranks wait for the busiest one."
    )
    return Chart("Distribution of the balance", caption, draw, **_chart_heights([one for one, _ in known]))


def rates_chart(runs: Sequence[LabelledRun]) -> Chart | None:
    """Chart of throughput between evaluations; None if no run's log was found."""
    known = [one for one in runs if one.run.rates]
    if not known:
        return None

    def draw(canvas: Canvas) -> None:
        handles = []
        for one in known:
            points = extremes(
                [(rate.samples, rate.sequences_per_second) for rate in one.run.rates], MAX_EVALUATIONS_PER_RUN
            )
            handles.append(_line(canvas, one, points, lambda at, rate: f"{at:,.0f} samples\n{rate:,.1f} sequences/s"))
        canvas.axes.set_ylim(bottom=0)
        canvas.axes.set_ylabel("sequences/s")
        _label_samples_axis(canvas, known, handles)

    caption = "Sequences/s in training between an evaluation and the one before, by the times in the run's result log."
    return Chart("Throughput over the run", caption, draw, **_chart_heights(known))


def _line(
    canvas: Canvas, one: LabelledRun, points: Sequence[tuple[float, float]], text: Callable[[float, float], str]
) -> Artist:
    """Draw a run's line through points, each with a tooltip of the run's label and `text(x, y)`."""
    (line,) = canvas.axes.plot(*zip(*points, strict=True), **series_style(one.number))
    canvas.add_tooltips(line, [f"{one.label}, {text(at, value)}" for at, value in points])
    return line


def _chart_heights(runs: Sequence[LabelledRun]) -> dict[str, float]:
    """Heights of a chart in inches, such that a legend of these runs does not shrink the axes."""
    named = len({one.group for one in runs}) if len(runs) > 1 else 0
    return {"height": 3.6 + 0.18 * -(-named // LEGEND_COLUMNS), "narrow_height": 3.2 + 0.18 * -(-named // 2)}


def _label_samples_axis(canvas: Canvas, runs: Sequence[LabelledRun], handles: Sequence[Artist]) -> None:
    axes = canvas.axes
    axes.set_xlabel("samples trained on")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: format_samples(value)))
    if canvas.narrow:
        axes.xaxis.set_major_locator(MaxNLocator(4))
    _add_legend(canvas, runs, handles)


def _add_legend(canvas: Canvas, runs: Sequence[LabelledRun], handles: Sequence[Artist]) -> None:
    for axis in (canvas.axes.xaxis, canvas.axes.yaxis):
        formatter = axis.get_major_formatter()
        if hasattr(formatter, "set_useOffset"):
            formatter.set_useOffset(False)  # else matplotlib may subtract a constant such as 1 from all tick labels
    named = {one.group: handle for one, handle in zip(reversed(runs), reversed(handles), strict=True)}
    if len(runs) > 1:
        canvas.legend(list(named.values())[::-1], list(named)[::-1], columns=LEGEND_COLUMNS)


def format_samples(value: float) -> str:
    """Format a number of samples for an axis: 500, 20k, 1.5M."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:g}{letter}"
    return f"{value:g}"


BAR_INCHES = 0.34
MIN_LABELLED_SHARE = 0.09  # of the longest bar: lower bound on the width of a part with a label
# Box behind a label in a bar: no text colour has enough contrast to all parts, in light and in dark mode.
LABEL_BOX = {"boxstyle": "round,pad=0.2", "facecolor": BASE["ground"].light, "edgecolor": "none"}


def phase_names(runs: Sequence[LabelledRun]) -> list[str]:
    """Return the phases of all runs, in the order of a step."""
    return list(dict.fromkeys(name for one in runs for name in one.run.phases_ms))


def phase_label(phase: str) -> str:
    """Format a phase's key for display."""
    return phase.replace("_", " ")


def phases_chart(runs: Sequence[LabelledRun]) -> Chart | None:
    """Chart of milliseconds per step by phase, stacked; None if no run has finished."""
    known = [one for one in runs if sum(one.run.phases_ms.values()) > 0]
    if not known:
        return None
    phases = phase_names(known)

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
                    canvas.add_tooltips(
                        patch, [f"{one.label}, {phase_label(phase)}\n{width:,.2f} ms per step, {share:.1%}"]
                    )
                    if width > MIN_LABELLED_SHARE * longest * (2 if canvas.narrow else 1):
                        middle = left[bar] + width / 2
                        axes.text(middle, bar, f"{share:.0%}", ha="center", va="center", bbox=LABEL_BOX)
            handles.append(Rectangle((0, 0), 1, 1, **style))
            left = [before + width for before, width in zip(left, widths, strict=True)]
        axes.set_xlim(0, 1.02 * longest)
        canvas.label_rows([for_html(one.label, 20 if canvas.narrow else 40) for one in known])
        axes.set_xlabel("milliseconds per step, mean over ranks")
        canvas.legend(handles, [phase_label(phase) for phase in phases], columns=6)

    height = 1.3 + BAR_INCHES * len(known)
    caption = (
        "Time of a run's steps by phase, with evaluations distributed over all steps, as measured on the host: a GPU "
        "still computes while the host is in a later phase."
    )
    return Chart("Phases of a step", caption, draw, height=height, narrow_height=height + 0.5)


def phases_table(runs: Sequence[LabelledRun]) -> Table | None:
    """Table of milliseconds per step and shares by phase: means and extremes over runs; None without any."""
    known = [one for one in runs if sum(one.run.phases_ms.values()) > 0]
    if not known:
        return None
    phases = phase_names(known)
    total = fmean(sum(one.run.phases_ms.values()) for one in known)
    columns: list[Column] = [text("phase"), number("ms per step", 2), Column("share", lambda value: f"{value:.1%}")]
    if len(known) > 1:
        columns += [number("least", 2), number("greatest", 2)]
    body: list[list[str | float]] = []
    for phase in phases:
        times = [one.run.phases_ms.get(phase, 0.0) for one in known]
        row: list[str | float] = [phase_label(phase), fmean(times), fmean(times) / total]
        body.append([*row, min(times), max(times)] if len(known) > 1 else row)
    caption = f"Means of {len(known)} runs." if len(known) > 1 else ""
    return Table("Phases in numbers", columns, body, caption=caption, searchable=False)
