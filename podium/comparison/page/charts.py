"""Charts of a comparison: time and throughput by number of accelerators, accuracy curves, and phases of runs."""

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

from benchmarks.bert.rules import TARGET_ACCURACY
from podium.comparison.page.families import OTHERS, Families, best_at_each_size, family_of, rate_of, size_of
from podium.comparison.page.labels import told
from podium.comparison.result import Result, known_mean
from podium.core.text import label
from podium.html.chart import BASE, SERIES, Canvas, Chart, series_style

LEGEND_ROW = 0.19  # inches
LIGHT = 0.5  # of the inside of points, so that those that cover one another are told apart
# Between the points of two families of one size, and between the middle and the outermost of many.
STEP, REACH = 1.05, 1.2
MARGIN = 1.3  # by which a logarithmic axis goes on beyond its values


def time_chart(families: Families) -> Chart:
    """Minutes by number of accelerators; a line joins the best of each size."""
    return _by_size(
        families,
        lambda result: result.counted_minutes(),
        "minutes to train",
        lines=True,
        title="Time to train by number of accelerators",
        caption="Every result is a point; a line joins the fastest of the closed division at each size. Where families "
        "meet, their points stand side by side. Hollow points are of the open division, stars are your own results. "
        "Scores are as they count: scaled where the rules scale them.",
    )


def throughput_chart(families: Families) -> Chart:
    """Sequences/s of an accelerator by their number."""
    return _by_size(
        families,
        rate_of,
        "sequences/s per accelerator",
        lines=False,
        title="Throughput of an accelerator by number of accelerators",
        caption="Samples to the target by the time taken, evaluation included, per accelerator. Where systems scale "
        "without loss, the points of a family lie on one level.",
    )


def _by_size(
    families: Families, value: Callable[[Result], float | None], label: str, lines: bool, title: str, caption: str
) -> Chart:
    """A chart of what results have by number of accelerators; both axes are logarithmic."""

    beside = _side_by_side(families)

    def draw(canvas: Canvas) -> None:
        handles: dict[str, Artist] = {}

        def points(name: str, results: Sequence[Result], marker: str, colour: str, **style: Any) -> None:
            """Draws the results that have a value, by size."""
            placed = [(point, result) for result in results if (point := _point(result, value)) is not None]
            if not placed:
                return
            placed.sort(key=lambda one: (one[0], one[1].name))
            (drawn,) = canvas.axes.plot(
                [point[0] * beside[point[0], families.series_of(result)] for point, result in placed],
                [point[1] for point, _ in placed],
                marker=marker,
                markeredgewidth=1.0,
                linestyle="none",
                **{"markersize": 6.0, "markerfacecolor": (colour, LIGHT), "markeredgecolor": colour, **style},
            )
            canvas.tell(drawn, [told(result) for _, result in placed])
            handles.setdefault(name, drawn)

        for name, results in families.by_name.items():
            style = series_style(families.series[name])
            best = [point for one in best_at_each_size(results) if (point := _point(one, value)) is not None]
            if lines and name != OTHERS and len(best) > 1:
                sizes = [size * beside[size, families.series[name]] for size, _ in best]
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
        _logarithmic(canvas.axes, "x", [size for size, _ in drawn], 6 if canvas.narrow else 14, base=2)
        _logarithmic(canvas.axes, "y", [number for _, number in drawn], 12, base=10)
        canvas.axes.set_xlabel("accelerators")
        canvas.axes.set_ylabel(label)
        canvas.legend(list(handles.values()), list(handles))

    labels = len(families.by_name) + 1
    return Chart(
        title,
        caption,
        draw,
        height=4.4 + LEGEND_ROW * math.ceil(labels / 4),
        narrow_height=3.8 + LEGEND_ROW * math.ceil(labels / 2),
    )


def _point(result: Result, value: Callable[[Result], float | None]) -> tuple[int, float] | None:
    size, number = size_of(result), value(result)
    return None if size is None or number is None else (size, number)


def _side_by_side(families: Families) -> dict[tuple[int, int], float]:
    """By size and series the factor that moves a point to the side, so that families do not cover one another."""
    present: dict[int, set[int]] = {}
    for result in families.results:
        present.setdefault(size_of(result) or 0, set()).add(families.series_of(result))
    factors = {}
    for size, there in present.items():
        middle = (len(there) - 1) / 2
        step = min(STEP, REACH ** (1 / max(middle, 1)))
        factors.update({(size, series): step ** (at - middle) for at, series in enumerate(sorted(there))})
    return factors


def _logarithmic(axes: Axes, axis: str, values: Sequence[float], most: int, base: int) -> None:
    """A logarithmic axis around the values, with at most `most` ticks, all at numbers that are easily read."""
    low, high = min(values) / MARGIN, max(values) * MARGIN
    axes.set(**{f"{axis}scale": "log", f"{axis}lim": (low, high)})
    drawn = axes.xaxis if axis == "x" else axes.yaxis
    drawn.set_minor_locator(NullLocator())
    drawn.set_major_locator(FixedLocator(ticks(low, high, most, base)))
    drawn.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}" if value >= 1000 else f"{value:g}"))


def ticks(low: float, high: float, most: int, base: int) -> list[float]:
    """Powers of 2 between two positive numbers, or those of 10 with twice and five times each, thinned to `most`."""
    first, last = math.floor(math.log(low, base)), math.ceil(math.log(high, base))
    for every in range(1, last - first + 2):
        for multiples in ((1, 2, 5), (1, 3), (1,)) if base == 10 and every == 1 else ((1,),):
            powers = [float(base) ** power for power in range(first, last + 1) if power % every == 0]
            found = [tick for power in powers for multiple in multiples if low <= (tick := multiple * power) <= high]
            if len(found) <= most:
                return found
    return []


def best_rates_chart(results: Sequence[Result]) -> Chart:
    """Of the results with a rate, one a family, the highest on top: what an accelerator does, and of what it could."""
    ordered = sorted(results, key=lambda one: (-(rate_of(one) or 0.0), one.name))
    highest = max((rate_of(one) or 0.0 for one in ordered), default=1.0)

    def draw(canvas: Canvas) -> None:
        for row, result in enumerate(ordered):
            rate = rate_of(result) or 0.0
            colour = SERIES[1 if result.own else 0].light
            (bar,) = canvas.axes.barh([row], [rate], height=0.62, color=colour)
            canvas.tell(bar, [told(result)])
            part = "" if result.utilization is None else f" · {100 * result.utilization:.0f} % of peak"
            canvas.axes.text(rate + 0.01 * highest, row, f"{rate:,.0f}{part}", va="center")
        canvas.rows([label(one.short_name if one.own else family_of(one), 24) for one in ordered])
        canvas.axes.set_xlim(0, highest * (1.75 if canvas.narrow else 1.25))
        canvas.axes.set_xlabel("sequences/s per accelerator")

    return Chart(
        "Highest throughput of each family",
        "Of each kind of accelerator the published result with the most sequences/s per accelerator, evaluation "
        "included, and its share of the peak where that is known.",
        draw,
        height=0.9 + 0.3 * len(ordered),
        narrow_height=0.9 + 0.3 * len(ordered),
    )


POSITIONS = 24
MOST_SAMPLES = 1e10  # which a run can train on
MILLION = 1e6
NEAR_TARGET = TARGET_ACCURACY - 0.02
Array = NDArray[np.float64]


def accuracies(result: Result) -> tuple[Array, Array] | None:
    """Numbers of samples [POSITIONS], and the accuracy of each run there [runs, POSITIONS], linear between evaluations.

    A run that is at its end keeps its last accuracy. Evaluations that no run can have, or that do not count samples,
    are left out, and so are runs with fewer than two others; None where all are.
    """
    curves = []
    for run in result.runs:
        by_samples = {
            point.samples: point.accuracy
            for point in run.points
            if point.samples is not None and point.samples <= MOST_SAMPLES
        }
        if len(by_samples) >= 2:
            curves.append(np.array(sorted(by_samples.items())))
    if not curves:
        return None
    positions = np.linspace(max(curve[0, 0] for curve in curves), max(curve[-1, 0] for curve in curves), POSITIONS)
    return positions, np.array([np.interp(positions, curve[:, 0], curve[:, 1]) for curve in curves])


def curves_chart(results: Sequence[Result], closely: bool) -> Chart:
    """Of results whose `accuracies` are known; `closely`: only what is near the target."""

    def draw(canvas: Canvas) -> None:
        floor = NEAR_TARGET if closely else 0.0
        lines, lows, highs = [], [], []
        for number, result in enumerate(results):
            known = accuracies(result)
            assert known is not None, "only results whose evaluations count samples have a curve"
            positions, values = known
            median, low, high = np.median(values, axis=0), values.min(axis=0), values.max(axis=0)
            style, width = series_style(number), 2.4 if result.own else 1.4
            canvas.axes.fill_between(positions / MILLION, low, high, color=style["color"], alpha=0.15, linewidth=0)
            canvas.axes.plot(
                positions / MILLION, median, color=style["color"], linestyle=style["linestyle"], linewidth=width
            )
            seen = median >= floor
            (points,) = canvas.axes.plot(
                positions[seen] / MILLION, median[seen], style["marker"], color=style["color"], markersize=4
            )
            at_points = zip(positions[seen], median[seen], low[seen], high[seen], strict=True)
            texts = [
                f"after {at:,.0f} samples: {mid:.4f} ({least:.4f} to {most:.4f})" for at, mid, least, most in at_points
            ]
            canvas.tell(points, [told(result, text) for text in texts])
            lines.append(Line2D([], [], **style, linewidth=width, markersize=5))
            lows.append(float(low.min()))
            highs.append(float(high.max()))
        canvas.axes.axhline(TARGET_ACCURACY, color=BASE["ink"].light, linewidth=1, linestyle="--")
        top, bottom = max(*highs, TARGET_ACCURACY), floor if closely else max(min(*lows, TARGET_ACCURACY), 0.0)
        margin = max(0.04 * (top - bottom), 1e-3)
        canvas.axes.set_ylim(bottom if closely else bottom - margin, top + margin)
        canvas.axes.set_xlabel("million samples")
        canvas.axes.set_ylabel("masked-LM accuracy")
        canvas.legend(lines, [result.short_name for result in results], columns=2, narrow=1)

    return Chart(
        "The last part, near the target" if closely else "Accuracy by samples trained on",
        f"The median of each result's runs, and the band from their lowest to their highest. The dashed line is the "
        f"target, {TARGET_ACCURACY:.3f}. A run that has reached it keeps its last accuracy.",
        draw,
        height=4.2 + LEGEND_ROW * -(-len(results) // 2),
        narrow_height=3.8 + LEGEND_ROW * len(results),
    )


KINDS = ("starting", "training", "training and evaluation", "evaluation", "closing")
COLOURS = (SERIES[1].light, SERIES[0].light, SERIES[4].light, SERIES[2].light, BASE["quiet"].light)


@dataclass(frozen=True)
class TimeSpent:
    """Means of a result's runs that converged, in seconds; None is not known."""

    seconds: float  # from run_start to run_stop
    initialisation: float | None  # before run_start, outside of the time that counts
    # What was lost at the start: by how much the first evaluation was late, by the pace that followed.
    starting: float | None
    evaluation: float | None
    closing: float | None  # from the evaluation that reached the target to run_stop

    @property
    def training(self) -> float | None:
        """What is left, where evaluation is known."""
        return None if self.evaluation is None else self.parts[1]

    @property
    def parts(self) -> tuple[float, ...]:
        """Seconds by KINDS; their sum is no less than `seconds`."""
        starting, closing = (max(part or 0.0, 0.0) for part in (self.starting, self.closing))
        rest = max(self.seconds - starting - closing, 0.0)
        if self.evaluation is None:
            return starting, 0.0, rest, 0.0, closing
        return starting, max(rest - self.evaluation, 0.0), 0.0, min(self.evaluation, rest), closing


def time_spent(result: Result) -> TimeSpent | None:
    """None where no run converged."""
    runs = result.converged
    if not runs:
        return None
    return TimeSpent(
        mean(run.seconds for run in runs if run.seconds is not None),
        known_mean([run.init_seconds for run in runs]),
        result.startup_seconds,
        known_mean([run.evaluating_seconds for run in runs]),
        known_mean([run.closing_seconds for run in runs]),
    )


def time_spent_chart(results: Sequence[Result]) -> Chart:
    """Of results of which a run converged: shares of the time that counts, a bar each, the first on top."""

    def draw(canvas: Canvas) -> None:
        for row, result in enumerate(results):
            spent = time_spent(result)
            assert spent is not None, "only results with runs that converged have a bar"
            left = 0.0
            for kind, colour, seconds in zip(KINDS, COLOURS, spent.parts, strict=True):
                if seconds <= 0:
                    continue
                width = 100 * seconds / sum(spent.parts)
                (bar,) = canvas.axes.barh([row], [width], left=left, height=0.62, color=colour)
                canvas.tell(bar, [_time_label(result, spent, kind, seconds)])
                left += width
        longest = 20 if canvas.narrow else 44
        canvas.rows([label(result.short_name, longest) for result in results])
        canvas.axes.set_xlim(0, 100)
        canvas.axes.set_xlabel("% of a run's time")
        canvas.legend([Patch(color=colour) for colour in COLOURS], KINDS, columns=3, narrow=1)

    return Chart(
        "Shares of a run's time",
        "Means of the runs that converged. Starting is by how much the first evaluation was later than the pace of the "
        "rest of the run would have it. Most logs do not tell when evaluation began and ended: there it is not told "
        "apart from training.",
        draw,
        height=1.4 + 0.3 * len(results),
        narrow_height=2.1 + 0.3 * len(results),
    )


def _time_label(result: Result, spent: TimeSpent, kind: str, seconds: float) -> str:
    lines = [f"{kind}: {seconds:,.1f} s of {spent.seconds:,.1f} s, {100 * seconds / spent.seconds:.1f} %"]
    if spent.initialisation is not None:
        lines.append(f"initialisation, before the clock: {spent.initialisation:,.1f} s")
    return told(result, *lines)
