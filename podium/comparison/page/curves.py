"""Accuracy over samples: for each result the median of its runs, and how far they lie apart."""

from collections.abc import Sequence

import numpy as np
from matplotlib.lines import Line2D
from numpy.typing import NDArray

from benchmarks.bert.rules import TARGET_ACCURACY
from podium.comparison.page.words import short_name, told
from podium.comparison.result import Result
from podium.page.chart import Canvas, Chart
from podium.page.colours import BASE, series_style

POSITIONS = 24
MOST_SAMPLES = 1e10
"""Which a run can train on."""
MILLION = 1e6
NEAR_TARGET = TARGET_ACCURACY - 0.02
LEGEND_ROW = 0.19
"""Inches."""
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
            canvas.tell(points, [_words(result, *point) for point in at_points])
            lines.append(Line2D([], [], **style, linewidth=width, markersize=5))
            lows.append(float(low.min()))
            highs.append(float(high.max()))
        canvas.axes.axhline(TARGET_ACCURACY, color=BASE["ink"].light, linewidth=1, linestyle="--")
        top, bottom = max(*highs, TARGET_ACCURACY), floor if closely else max(min(*lows, TARGET_ACCURACY), 0.0)
        margin = max(0.04 * (top - bottom), 1e-3)
        canvas.axes.set_ylim(bottom if closely else bottom - margin, top + margin)
        canvas.axes.set_xlabel("million samples")
        canvas.axes.set_ylabel("masked-LM accuracy")
        canvas.legend(lines, [short_name(result) for result in results], columns=2, narrow=1)

    return Chart(
        "The last part, near the target" if closely else "Accuracy by samples trained on",
        f"The median of each result's runs, and the band from their lowest to their highest. The dashed line is the "
        f"target, {TARGET_ACCURACY:.3f}. A run that has reached it keeps its last accuracy.",
        draw,
        height=4.2 + LEGEND_ROW * -(-len(results) // 2),
        narrow_height=3.8 + LEGEND_ROW * len(results),
    )


def _words(result: Result, samples: float, median: float, low: float, high: float) -> str:
    return told(result, f"after {samples:,.0f} samples: {median:.4f} ({low:.4f} to {high:.4f})")
