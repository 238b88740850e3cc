"""Charts of a benchmark's results: time and throughput by accelerators, curves of the metric, and phases of runs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from podium.comparison.page.families import Families, family_of, rate_of, size_of
from podium.comparison.page.labels import bar_label, format_minutes
from podium.comparison.result import Result, mean_if_all_known
from podium.comparison.table import format_rate
from podium.html.plotly import (
    MARKER_OPACITY,
    Chart,
    Trace,
    band,
    chart_text,
    colour,
    series_colour,
    series_style,
    target_lines,
)
from podium.mllog.benchmarks import Target

OWN_SERIES = "your own"
CPUS_ONLY = "CPUs only"
MAX_BARS = 20  # that are drawn at a time
SIZES = [2**power for power in range(24)]  # ticks of an axis of accelerators

# The index of each result among the records of the page's filters, by its identity.
Records = Mapping[int, int]


def time_chart(families: Families, records: Records) -> Chart:
    """Return the chart of minutes to train by number of accelerators; lines connect the best of each size."""
    drawn = [(result, minutes) for result in families.results if (minutes := result.ranking_minutes())]
    fastest = min(drawn, key=lambda one: (one[1], one[0].name))
    return _chart_by_size(
        families,
        records,
        lambda result: result.ranking_minutes(),
        "minutes to train",
        frontier=True,
        title="Time to train by number of accelerators",
        caption="Every result is a point; a line connects the fastest of the closed division at each size. Hollow "
        "points are of the open division, stars are your own results. Scores are the official ones: scaled where the "
        "rules scale them. Drag to zoom, double-click for the whole chart; the legend hides and shows series.",
        summary=f"The fastest is {fastest[0].name} with {format_minutes(fastest[1])} on "
        f"{fastest[0].hardware('unknown accelerators')}.",
        wide=True,
    )


def fastest_chart(families: Families, records: Records) -> Chart:
    """Return the chart of the fastest results: a bar of minutes to train for each, shortest first."""
    ranked = sorted(families.results, key=lambda result: (result.ranking_minutes(), result.name))
    texts = [
        f"{format_minutes(result.ranking_minutes())} · {result.hardware('unknown accelerators', CPUS_ONLY)}"
        f"{', open division' * (result.division == 'open')}"
        for result in ranked
    ]
    trace = {
        "type": "bar",
        "orientation": "h",
        "x": [result.ranking_minutes() for result in ranked],
        "text": texts,
        "textposition": "auto",
        "insidetextanchor": "end",
        "hoverinfo": "text",
        "marker": {"color": colour(series_colour(0))},
        "insidetextfont": {"color": colour("ground")},
    }
    return Chart(
        "Fastest results",
        "Minutes to train, fastest first: the official score, or without one the mean of the runs that succeeded. "
        "Filter by a number of accelerators to compare systems of one size.",
        f"The fastest is {ranked[0].name} with {texts[0]}.",
        [trace],
        {"title": "minutes to train", "rangemode": "tozero"},
        {},
        kind="bars",
        most=MAX_BARS,
        labels=[bar_label(result) for result in ranked],
        records=[records[id(result)] for result in ranked],
    )


def throughput_chart(families: Families, records: Records) -> Chart:
    """Return the chart of samples/s per accelerator by number of accelerators; some result must have a rate."""
    rates = [(rate, result) for result in families.results if (rate := rate_of(result)) is not None]
    highest, best = max(rates, key=lambda one: one[0])
    return _chart_by_size(
        families,
        records,
        rate_of,
        "samples/s per accelerator",
        frontier=False,
        title="Throughput of an accelerator by number of accelerators",
        caption="Samples to the target divided by time, evaluation included, per accelerator. If systems scale "
        f"linearly, the points of a family are at the same height.{_sample_sentence(families.results)}",
        summary=f"The highest is {format_rate(highest)} samples/s per accelerator, of {best.name}.",
    )


def _sample_sentence(results: Sequence[Result]) -> str:
    """Return what a sample of these results' benchmark is, as a sentence after others; empty where it is not known."""
    rules = results[0].rules if results else None
    return "" if rules is None else f" Sample: {rules.sample}."


def _chart_by_size(
    families: Families,
    records: Records,
    value: Callable[[Result], float | None],
    label: str,
    frontier: bool,
    title: str,
    caption: str,
    summary: str,
    wide: bool = False,
) -> Chart:
    """Return a chart of a value of results by number of accelerators; both axes are logarithmic."""
    traces: list[Trace] = []

    def points(results: Sequence[Result], **fields: Any) -> None:
        """Add the results that have a value, by size."""
        placed = [(*point, result) for result in results if (point := _point(result, value)) is not None]
        placed.sort(key=lambda one: (one[0], one[1], one[2].name))
        if placed:
            traces.append(
                {
                    "type": "scatter",
                    "mode": "markers",
                    "hoverinfo": "text",
                    "x": [size for size, _, _ in placed],
                    "y": [number for _, number, _ in placed],
                    "records": [records[id(result)] for _, _, result in placed],
                    **fields,
                }
            )

    for name, results in families.by_name.items():
        style = series_style(families.series[name], 9)
        filled = {**style["marker"], "opacity": MARKER_OPACITY}
        hollow = {**style["marker"], "symbol": f"{style['marker']['symbol']}-open"}
        published = [one for one in results if not one.own]
        open_division = [one for one in published if one.division == "open"]
        others = [one for one in published if one.division != "open"]
        points(others, series=name, marker=filled, line=style["line"], frontier=frontier and name in families.kinds)
        points(open_division, series=name, marker=hollow)
    star = {"symbol": "star", "size": 15, "color": colour("accent"), "line": {"color": colour("ink"), "width": 1}}
    points([one for one in families.results if one.own], series=OWN_SERIES, marker=star)
    ticks = {"type": "log", "tickvals": SIZES, "tickformat": ",d"}
    count = sum(len(trace["x"]) for trace in traces)
    text = f"{count:,} results of {len(families.by_name)} kinds of accelerators. {summary}"
    logarithmic = {"type": "log", "dtick": "D2", "tickformat": ",.12~g", "title": label}
    return Chart(title, caption, text, traces, {**ticks, "title": "accelerators"}, logarithmic, wide=wide)


def _point(result: Result, value: Callable[[Result], float | None]) -> tuple[int, float] | None:
    """Return the size and the value of a result; None if one of them is unknown."""
    size, number = size_of(result), value(result)
    return None if size is None or number is None else (size, number)


def best_rates_chart(families: Families, records: Records) -> Chart:
    """Return the chart of samples/s per accelerator and its share of the peak: a bar for each family, by rate."""
    rates = [(rate, result) for result in families.results if (rate := rate_of(result)) is not None]
    rates.sort(key=lambda one: (-one[0], one[1].name))
    families_of = [one.short_name if one.own else family_of(one) for _, one in rates]
    texts = []
    for rate, result in rates:
        share = "" if result.utilization is None else f" · {100 * result.utilization:.0f} % of peak"
        texts.append(f"{format_rate(rate)}{share}")
    trace = {
        "type": "bar",
        "orientation": "h",
        "x": [rate for rate, _ in rates],
        "text": texts,
        "textposition": "auto",
        "insidetextanchor": "end",
        "hoverinfo": "text",
        "marker": {"color": colour(series_colour(0))},
        "insidetextfont": {"color": colour("ground")},
    }
    best = dict(reversed(list(zip(families_of, texts, strict=True))))
    return Chart(
        "Highest throughput of each family",
        "The result with the most samples/s per accelerator of each kind of accelerator, evaluation included, and its "
        "share of the dense bf16 peak if that is known. Your own results have a bar each.",
        "; ".join(f"{name}: {best[name]}" for name in dict.fromkeys(families_of[:MAX_BARS])) + ".",
        [trace],
        {"title": "samples/s per accelerator", "rangemode": "tozero"},
        {},
        kind="bars",
        most=MAX_BARS,
        labels=families_of,
        groups=families_of,
        records=[records[id(result)] for _, result in rates],
    )


CURVE_POSITIONS = 18
MAX_SAMPLES = 1e10  # evaluations after more samples are errors of a log, and are not drawn
MAX_CURVES = 8  # that are drawn at a time
OUTLIER_MARGIN = 0.5  # of the medians' range, beyond which bands are cut off
CUT_BANDS = " Bands that reach far beyond all medians are cut off."
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


def _range_without_outliers(values: Sequence[Array], targets: Sequence[float]) -> list[float] | None:
    """Return the y axis's range where bands of single runs would press the medians together; None if none does.

    `values` are those of each result, [runs, CURVE_POSITIONS].
    """
    medians = [*targets, *(float(one) for curves in values for one in np.median(curves, axis=0))]
    low, high = min(medians), max(medians)
    margin = OUTLIER_MARGIN * (high - low)
    lowest, highest = min(float(one.min()) for one in values), max(float(one.max()) for one in values)
    if margin <= 0 or (lowest >= low - margin and highest <= high + margin):
        return None
    edge = margin / 10
    return [max(lowest, low - margin) - edge, min(highest, high + margin) + edge]


def curves_chart(results: Sequence[Result], records: Records) -> Chart:
    """Return the chart of the metric by samples, of results of one benchmark with `metric_curves`."""
    targets = curve_targets(results)
    curves = [known for result in results if (known := metric_curves(result)) is not None]
    assert len(curves) == len(results), "only results whose evaluations count samples have a curve"
    shown = _range_without_outliers([values for _, values in curves], [target.value for target in targets])
    metric = targets[0].metric if targets else "quality"
    traces: list[Trace] = []
    for number, (result, (positions, values)) in enumerate(zip(results, curves, strict=True)):
        median, low, high = np.median(values, axis=0), values.min(axis=0), values.max(axis=0)
        name = f"{result.short_name} ({result.round or OWN_SERIES})"
        common = {"series": name, "record": records[id(result)]}
        traces.append(band(positions.tolist(), low.tolist(), high.tolist(), series_colour(number), **common))
        style = series_style(number, 5, 3 if result.own else 1.6)
        traces.append(
            {
                "type": "scatter",
                "mode": "lines",  # without markers, as the positions are not those of evaluations
                "x": positions.tolist(),
                "y": median.tolist(),
                "customdata": np.stack([low, high], axis=1).tolist(),
                "text": chart_text(name, result.hardware("accelerators unknown")),
                "hovertemplate": "%{text}<br>after %{x:,.0f} samples: %{y:.4f} "
                "(%{customdata[0]:.4f} to %{customdata[1]:.4f})<extra></extra>",
                **style,
                **common,
            }
        )
    reached = "The dashed line is the target, " + " or ".join(f"{target.value:g}" for target in targets)
    if targets and targets[0].lower_is_better:
        reached += "; lower is better"
    target_text = f" {reached}. A run that has reached it keeps its last value." if targets else ""
    drawn = f", of which the first {MAX_CURVES} that pass the filters are drawn" if len(results) > MAX_CURVES else ""
    return Chart(
        f"{metric[:1].upper()}{metric[1:]} by samples trained on",
        f"The median of each result's runs, and the band from their lowest to their highest.{target_text} Only "
        "your own results and the fastest of each kind of accelerator, at any size, in all rounds and in each round "
        f"have a curve{drawn}. Between evaluations, values are interpolated."
        f"{CUT_BANDS if shown is not None else ''}",
        f"Curves of {len(results)} results{f', with the target {targets[0]}' if targets else ''}.",
        traces,
        {"title": "samples", "tickformat": "~s", "rangemode": "tozero"},
        {"title": metric} if shown is None else {"title": metric, "range": shown},
        shapes=target_lines([target.value for target in targets]),
        most=MAX_CURVES,
    )


PHASE_RUNS = "Means of the runs that succeeded; those with an implausible time are left out."
PHASES = ("starting", "training", "evaluation", "after the target", "not known separately")
PHASE_COLOURS = (series_colour(1), series_colour(0), series_colour(2), series_colour(5), "rule")


@dataclass(frozen=True)
class PhaseTimes:
    """Mean phase times of a result's runs that succeeded in a plausible time, in seconds; None is unknown."""

    seconds: float  # from run_start to run_stop
    initialisation: float | None  # before run_start, not part of the measured time
    # Delay of the first evaluation, compared with the pace of the rest of the run.
    starting: float | None
    evaluation: float | None
    closing: float | None  # from the evaluation that reached the target to run_stop

    @property
    def training(self) -> float | None:
        """The time that is not in another phase; None if one of these is unknown."""
        if self.starting is None or self.evaluation is None:
            return None
        return max(self.seconds - self.starting - self.evaluation - (self.closing or 0.0), 0.0)

    @property
    def has_parts(self) -> bool:
        """Whether it is known of more than 1% of the time where it goes."""
        return self.parts[-1] < 0.99 * self.seconds

    @property
    def parts(self) -> tuple[float, ...]:
        """Seconds in the order of PHASES; their sum is at least `seconds`."""
        known = (self.starting or 0.0, self.training or 0.0, self.evaluation or 0.0, self.closing or 0.0)
        return (*known, 0.0 if self.training is not None else max(self.seconds - sum(known), 0.0))


def phase_times(result: Result) -> PhaseTimes | None:
    """Return the mean phase times of a result; None if no run converged in a time that can be right."""
    runs = result.timed
    if not runs:
        return None
    seconds = mean(run.seconds for run in runs if run.seconds is not None)

    def plausible(part: float | None) -> float | None:
        return part if part is not None and 0 <= part <= seconds else None

    return PhaseTimes(
        seconds,
        mean_if_all_known([run.init_seconds for run in runs]),
        plausible(result.startup_seconds),
        plausible(mean_if_all_known([run.evaluating_seconds for run in runs])),
        plausible(mean_if_all_known([run.closing_seconds for run in runs])),
    )


def phase_times_chart(results: Sequence[Result], records: Records) -> Chart:
    """Return the chart of phase times as shares of the run: a bar for each result of which some are known."""
    known = [(result, spent) for result in results if (spent := phase_times(result)) is not None and spent.has_parts]
    traces: list[Trace] = []
    for place, (phase, name) in enumerate(zip(PHASES, PHASE_COLOURS, strict=True)):
        if all(spent.parts[place] <= 0 for _, spent in known):
            continue
        shares = [100 * spent.parts[place] / (sum(spent.parts) or 1.0) for _, spent in known]
        traces.append(
            {
                "type": "bar",
                "orientation": "h",
                "series": phase,
                "x": shares,
                "customdata": [spent.parts[place] for _, spent in known],
                "hovertemplate": f"{phase}: %{{customdata:,.1f}} s, %{{x:.1f}} %<extra></extra>",
                "marker": {"color": colour(name)},
            }
        )
    return Chart(
        "Shares of a run's time",
        f"{PHASE_RUNS} Starting is the delay of the first evaluation, compared with the pace of "
        "the rest of the run; it is unknown where that is negative. Most logs do not contain the start and end of "
        "evaluations: then they are not known separately from training. Results of which neither is known have no bar.",
        f"Shares of {len(known)} results; the table of times has them in seconds.",
        traces,
        {"title": "% of a run's time", "range": [0, 100]},
        {},
        kind="bars",
        most=MAX_BARS,
        labels=[bar_label(result) for result, _ in known],
        records=[records[id(result)] for result, _ in known],
    )
