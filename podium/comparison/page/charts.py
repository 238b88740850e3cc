"""Charts of a benchmark's results: time and throughput by accelerators, curves of the metric, and phases of runs."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator
from numpy.typing import NDArray

from podium.comparison.page.families import OTHERS, Families, family_of, fastest_at_each_size, rate_of, size_of
from podium.comparison.page.labels import rate_lines, short_tooltip, tooltip
from podium.comparison.result import Result, mean_if_all_known
from podium.core.text import label
from podium.html.chart import BASE, SERIES, Canvas, Chart, series_style
from podium.mllog.benchmarks import Target

LEGEND_ROW_INCHES = 0.19
MARKER_FILL_ALPHA = 0.5  # so that points that cover one another can be distinguished
# Horizontal factors on the logarithmic axis: between neighbouring families of one size, and from the middle to the
# outermost family.
OFFSET_STEP, MAX_OFFSET = 1.05, 1.2
AXIS_MARGIN = 1.3  # factor by which a logarithmic axis extends beyond its values


def time_chart(families: Families) -> Chart:
    """Return the chart of minutes to train by number of accelerators; lines connect the best of each size."""
    return _chart_by_size(
        families,
        lambda result: result.ranking_minutes(),
        tooltip,
        "minutes to train",
        lines=True,
        title="Time to train by number of accelerators",
        caption="Every result is a point; a line connects the fastest of the closed division at each size. Points of "
        "families with the same size are drawn side by side. Hollow points are of the open division, stars are your "
        "own results. Scores are the official ones: scaled where the rules scale them.",
    )


def throughput_chart(families: Families) -> Chart:
    """Return the chart of samples/s per accelerator by number of accelerators."""
    return _chart_by_size(
        families,
        rate_of,
        lambda result: short_tooltip(result, *rate_lines(result)),
        "samples/s per accelerator",
        lines=False,
        title="Throughput of an accelerator by number of accelerators",
        caption="Samples to the target divided by time, evaluation included, per accelerator. If systems scale "
        f"linearly, the points of a family are at the same height.{_sample_sentence(families.results)}",
    )


def _sample_sentence(results: Sequence[Result]) -> str:
    """Return what a sample of these results' benchmark is, as a sentence after others; empty where it is not known."""
    rules = results[0].rules if results else None
    return "" if rules is None else f" Sample: {rules.sample}."


def _chart_by_size(
    families: Families,
    value: Callable[[Result], float | None],
    describe: Callable[[Result], str],
    label: str,
    lines: bool,
    title: str,
    caption: str,
) -> Chart:
    """Return a chart of a value of results by number of accelerators; both axes are logarithmic.

    `describe` returns the tooltip of a result.
    """

    offsets = _side_offsets(families)

    def draw(canvas: Canvas) -> None:
        handles: dict[str, Artist] = {}

        def points(name: str, results: Sequence[Result], marker: str, colour: str, **style: Any) -> None:
            """Draw the results that have a value, by size."""
            placed = [(point, result) for result in results if (point := _point(result, value)) is not None]
            if not placed:
                return
            placed.sort(key=lambda one: (one[0], one[1].name))
            (drawn,) = canvas.axes.plot(
                [point[0] * offsets[point[0], families.series_of(result)] for point, result in placed],
                [point[1] for point, _ in placed],
                marker=marker,
                markeredgewidth=1.0,
                linestyle="none",
                **{
                    "markersize": 6.0,
                    "markerfacecolor": (colour, MARKER_FILL_ALPHA),
                    "markeredgecolor": colour,
                    **style,
                },
            )
            canvas.add_tooltips(drawn, [describe(result) for _, result in placed])
            handles.setdefault(name, drawn)

        for name, results in families.by_name.items():
            style = series_style(families.series[name])
            best = [point for one in fastest_at_each_size(results) if (point := _point(one, value)) is not None]
            if lines and name != OTHERS and len(best) > 1:
                sizes = [size * offsets[size, families.series[name]] for size, _ in best]
                values = [number for _, number in best]
                canvas.axes.plot(sizes, values, color=style["color"], linestyle=style["linestyle"])
            published = [one for one in results if not one.own]
            filled = [one for one in published if one.division != "open"]
            hollow = [one for one in published if one.division == "open"]
            points(name, filled, style["marker"], style["color"])
            points(name, hollow, style["marker"], style["color"], markerfacecolor="none")
        for one in (one for one in families.results if one.own):
            colour = series_style(families.series_of(one))["color"]
            points("your own", [one], "*", colour, markersize=13, markeredgecolor=BASE["ink"].light)
        drawn = [point for result in families.results if (point := _point(result, value)) is not None]
        _set_log_axis(canvas.axes, "x", [size for size, _ in drawn], 6 if canvas.narrow else 14, base=2)
        _set_log_axis(canvas.axes, "y", [number for _, number in drawn], 12, base=10)
        canvas.axes.set_xlabel("accelerators")
        canvas.axes.set_ylabel(label)
        canvas.legend(list(handles.values()), list(handles))

    labels = len(families.by_name) + 1
    return Chart(
        title,
        caption,
        draw,
        height=4.4 + LEGEND_ROW_INCHES * math.ceil(labels / 4),
        narrow_height=3.8 + LEGEND_ROW_INCHES * math.ceil(labels / 2),
    )


def _point(result: Result, value: Callable[[Result], float | None]) -> tuple[int, float] | None:
    """Return the size and the value of a result; None if one of them is unknown."""
    size, number = size_of(result), value(result)
    return None if size is None or number is None else (size, number)


def _side_offsets(families: Families) -> dict[tuple[int, int], float]:
    """Return the horizontal factor of each (size, series), so that families of one size do not cover one another."""
    present: dict[int, set[int]] = {}
    for result in families.results:
        present.setdefault(size_of(result) or 0, set()).add(families.series_of(result))
    factors = {}
    for size, series_of_size in present.items():
        middle = (len(series_of_size) - 1) / 2
        step = min(OFFSET_STEP, MAX_OFFSET ** (1 / max(middle, 1)))
        factors.update({(size, series): step ** (at - middle) for at, series in enumerate(sorted(series_of_size))})
    return factors


def _set_log_axis(axes: Axes, axis: str, values: Sequence[float], most: int, base: int) -> None:
    """Make an axis logarithmic, with limits around the values and at most `most` ticks at round numbers."""
    low, high = min(values) / AXIS_MARGIN, max(values) * AXIS_MARGIN
    axes.set(**{f"{axis}scale": "log", f"{axis}lim": (low, high)})
    drawn = axes.xaxis if axis == "x" else axes.yaxis
    drawn.set_minor_locator(NullLocator())
    drawn.set_major_locator(FixedLocator(ticks(low, high, most, base)))
    drawn.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}" if value >= 1000 else f"{value:g}"))


def ticks(low: float, high: float, most: int, base: int) -> list[float]:
    """Return at most `most` ticks between two positive numbers: powers of 2, or of 10 with their multiples by 2 and 5.

    With too many ticks, fewer multiples are used, and then only every second, third, … power.
    """
    first, last = math.floor(math.log(low, base)), math.ceil(math.log(high, base))
    for power_step in range(1, last - first + 2):
        for multiples in ((1, 2, 5), (1, 3), (1,)) if base == 10 and power_step == 1 else ((1,),):
            powers = [float(base) ** power for power in range(first, last + 1) if power % power_step == 0]
            found = [tick for power in powers for multiple in multiples if low <= (tick := multiple * power) <= high]
            if len(found) <= most:
                return found
    return []


def best_rates_chart(results: Sequence[Result]) -> Chart:
    """Return the chart of samples/s per accelerator and its share of the peak: a bar for each result, by rate."""
    ordered = sorted(results, key=lambda one: (-(rate_of(one) or 0.0), one.name))
    highest = max((rate_of(one) or 0.0 for one in ordered), default=1.0)

    def draw(canvas: Canvas) -> None:
        for row, result in enumerate(ordered):
            rate = rate_of(result) or 0.0
            colour = SERIES[1 if result.own else 0].light
            (bar,) = canvas.axes.barh([row], [rate], height=0.62, color=colour)
            canvas.add_tooltips(bar, [tooltip(result)])
            part = "" if result.utilization is None else f" · {100 * result.utilization:.0f} % of peak"
            text = f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}"  # a sample of some benchmarks takes seconds
            canvas.axes.text(rate + 0.01 * highest, row, f"{text}{part}", va="center")
        canvas.label_rows([label(one.short_name if one.own else family_of(one), 24) for one in ordered])
        canvas.axes.set_xlim(0, highest * (2.3 if canvas.narrow else 1.3))
        canvas.axes.set_xlabel("samples/s per accelerator")

    return Chart(
        "Highest throughput of each family",
        "The published result with the most samples/s per accelerator of each kind of accelerator, evaluation "
        "included, and its share of the dense bf16 peak if that is known.",
        draw,
        height=0.9 + 0.3 * len(ordered),
        narrow_height=0.9 + 0.3 * len(ordered),
    )


CURVE_POSITIONS = 24
MAX_SAMPLES = 1e10  # evaluations after more samples are errors of a log, and are not drawn
MARGIN_NEAR_TARGET = 0.03  # share of the target by which values in the zoomed chart are worse than it
SAMPLE_UNITS = ((1e6, "million samples"), (1e3, "thousand samples"), (1, "samples"))
Array = NDArray[np.float64]


def metric_curves(result: Result) -> tuple[Array, Array] | None:
    """Return positions in samples [CURVE_POSITIONS] and the runs' values of the metric there [runs, CURVE_POSITIONS].

    Values are interpolated linearly between evaluations, and constant after the last one. Evaluations without a
    plausible number of samples are left out, as are runs with fewer than two evaluations. None if no run is left.
    """
    curves = []
    for run in result.runs:
        by_samples = {
            point.samples: point.accuracy
            for point in run.points
            if point.samples is not None and point.samples <= MAX_SAMPLES
        }
        if len(by_samples) >= 2:
            curves.append(np.array(sorted(by_samples.items())))
    if not curves:
        return None
    positions = np.linspace(
        max(curve[0, 0] for curve in curves), max(curve[-1, 0] for curve in curves), CURVE_POSITIONS
    )
    return positions, np.array([np.interp(positions, curve[:, 0], curve[:, 1]) for curve in curves])


def curve_targets(results: Sequence[Result]) -> tuple[Target, ...]:
    """Return the distinct targets of the first metric of these results' runs; rounds may differ in it."""
    found = {run.targets[0].value: run.targets[0] for result in results for run in result.runs if run.targets}
    return tuple(found.values())


def curves_chart(results: Sequence[Result], zoomed: bool) -> Chart:
    """Return the chart of the metric by samples, of results of one benchmark with `metric_curves`.

    `zoomed` shows only the part near the target, which must be known.
    """
    targets = curve_targets(results)
    values_of_targets = [target.value for target in targets]
    metric = targets[0].metric if targets else "quality"
    falling = bool(targets) and targets[0].lower_is_better

    def is_visible(median: Array) -> NDArray[np.bool_]:
        if not zoomed:
            return np.ones(median.shape, dtype=bool)
        return median <= _worst_near(targets) if falling else median >= _worst_near(targets)

    def draw(canvas: Canvas) -> None:
        lines, lows, highs = [], [], []
        curves = [metric_curves(result) for result in results]
        last = max(float(curve[0][-1]) for curve in curves if curve is not None)
        unit, unit_name = next(one for one in SAMPLE_UNITS if last >= one[0] or one[0] == 1)
        for number, (result, known) in enumerate(zip(results, curves, strict=True)):
            assert known is not None, "only results whose evaluations count samples have a curve"
            positions, values = known
            median, low, high = np.median(values, axis=0), values.min(axis=0), values.max(axis=0)
            style, width = series_style(number), 2.4 if result.own else 1.4
            canvas.axes.fill_between(positions / unit, low, high, color=style["color"], alpha=0.15, linewidth=0)
            canvas.axes.plot(
                positions / unit, median, color=style["color"], linestyle=style["linestyle"], linewidth=width
            )
            visible = is_visible(median)
            (points,) = canvas.axes.plot(
                positions[visible] / unit, median[visible], style["marker"], color=style["color"], markersize=4
            )
            at_points = zip(positions[visible], median[visible], low[visible], high[visible], strict=True)
            texts = [
                f"after {at:,.0f} samples: {mid:.4f} ({least:.4f} to {most:.4f})" for at, mid, least, most in at_points
            ]
            canvas.add_tooltips(points, [short_tooltip(result, text) for text in texts])
            lines.append(Line2D([], [], **style, linewidth=width, markersize=5))
            lows.append(float(low.min()))
            highs.append(float(high.max()))
        for value in values_of_targets:
            canvas.axes.axhline(value, color=BASE["ink"].light, linewidth=1, linestyle="--")
        bottom, top = min([*lows, *values_of_targets]), max([*highs, *values_of_targets])
        margin = max(0.04 * (top - bottom), 1e-3)
        bottom, top = bottom - margin, top + margin
        if zoomed and falling:
            top = _worst_near(targets)
        elif zoomed:
            bottom = _worst_near(targets)
        canvas.axes.set_ylim(bottom, top)
        canvas.axes.set_xlabel(unit_name)
        canvas.axes.set_ylabel(metric)
        canvas.legend(lines, [result.short_name for result in results], columns=2, narrow=1)

    reached = "The dashed line is the target, " + " or ".join(f"{value:g}" for value in values_of_targets)
    if falling:
        reached += "; lower is better"
    target_text = f" {reached}. A run that has reached it keeps its last value." if targets else ""
    return Chart(
        "The last part, near the target" if zoomed else f"{metric[:1].upper()}{metric[1:]} by samples trained on",
        f"The median of each result's runs, and the band from their lowest to their highest.{target_text}",
        draw,
        height=4.2 + LEGEND_ROW_INCHES * -(-len(results) // 2),
        narrow_height=3.8 + LEGEND_ROW_INCHES * len(results),
    )


def _worst_near(targets: Sequence[Target]) -> float:
    """Return the worst value that the zoomed chart shows."""
    if targets[0].lower_is_better:
        return max(target.value for target in targets) * (1 + MARGIN_NEAR_TARGET)
    return min(target.value for target in targets) * (1 - MARGIN_NEAR_TARGET)


PHASES = ("starting", "training", "training and evaluation", "evaluation", "closing")
PHASE_COLOURS = (SERIES[1].light, SERIES[0].light, SERIES[4].light, SERIES[2].light, BASE["quiet"].light)


@dataclass(frozen=True)
class PhaseTimes:
    """Mean phase times of a result's converged runs, in seconds; None is unknown."""

    seconds: float  # from run_start to run_stop
    initialisation: float | None  # before run_start, not part of the measured time
    # Delay of the first evaluation, compared with the pace of the rest of the run.
    starting: float | None
    evaluation: float | None
    closing: float | None  # from the evaluation that reached the target to run_stop

    @property
    def training(self) -> float | None:
        """The time that is not in another phase; None if the time of evaluation is unknown."""
        return None if self.evaluation is None else self.parts[1]

    @property
    def parts(self) -> tuple[float, ...]:
        """Seconds in the order of PHASES; their sum is at least `seconds`."""
        starting, closing = (max(part or 0.0, 0.0) for part in (self.starting, self.closing))
        rest = max(self.seconds - starting - closing, 0.0)
        if self.evaluation is None:
            return starting, 0.0, rest, 0.0, closing
        return starting, max(rest - self.evaluation, 0.0), 0.0, min(self.evaluation, rest), closing


def phase_times(result: Result) -> PhaseTimes | None:
    """Return the mean phase times of a result; None if no run converged."""
    runs = result.converged
    if not runs:
        return None
    return PhaseTimes(
        mean(run.seconds for run in runs if run.seconds is not None),
        mean_if_all_known([run.init_seconds for run in runs]),
        result.startup_seconds,
        mean_if_all_known([run.evaluating_seconds for run in runs]),
        mean_if_all_known([run.closing_seconds for run in runs]),
    )


def phase_times_chart(results: Sequence[Result]) -> Chart:
    """Return the chart of phase times as shares of the run: a bar for each result with a converged run."""

    def draw(canvas: Canvas) -> None:
        for row, result in enumerate(results):
            spent = phase_times(result)
            assert spent is not None, "only results with runs that converged have a bar"
            left = 0.0
            for kind, colour, seconds in zip(PHASES, PHASE_COLOURS, spent.parts, strict=True):
                if seconds <= 0:
                    continue
                width = 100 * seconds / sum(spent.parts)
                (bar,) = canvas.axes.barh([row], [width], left=left, height=0.62, color=colour)
                canvas.add_tooltips(bar, [_time_label(result, spent, kind, seconds)])
                left += width
        longest = 20 if canvas.narrow else 44
        canvas.label_rows([label(result.short_name, longest) for result in results])
        canvas.axes.set_xlim(0, 100)
        canvas.axes.set_xlabel("% of a run's time")
        canvas.legend([Patch(color=colour) for colour in PHASE_COLOURS], PHASES, columns=3, narrow=1)

    return Chart(
        "Shares of a run's time",
        "Means of the runs that converged. Starting is the delay of the first evaluation, compared with the pace of "
        "the rest of the run. Most logs do not contain the start and end of evaluations: then evaluation is shown "
        "together with training.",
        draw,
        height=1.4 + 0.3 * len(results),
        narrow_height=2.1 + 0.3 * len(results),
    )


def _time_label(result: Result, spent: PhaseTimes, kind: str, seconds: float) -> str:
    lines = [f"{kind}: {seconds:,.1f} s of {spent.seconds:,.1f} s, {100 * seconds / spent.seconds:.1f} %"]
    if spent.initialisation is not None:
        lines.append(f"initialisation, before the clock: {spent.initialisation:,.1f} s")
    return tooltip(result, *lines)
