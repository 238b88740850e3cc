"""Charts of a report: curves over samples with a line per run, and the time of a step by phase with a bar per run."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from podium.html.plotly import Chart, Trace, band, chart_text, colour, series_colour, series_style, target_lines
from podium.html.table import Column, Table, number, text
from podium.report.metrics import Curve, Numbers, Statistics, extremes
from podium.report.run import ReportedRun

MAX_POINTS = 1200  # of a chart, divided by its runs, within these limits for one run:
MIN_POINTS_PER_RUN, MAX_POINTS_PER_RUN = 24, 160
# Evaluations of a run that are drawn; of more, those with the least and greatest values.
MAX_EVALUATIONS_PER_RUN = 120
MAX_BANDS = 3  # runs with a band of extremes each; more runs share one band
MAX_SUMMARISED = 8  # runs in the text alternative of a chart
LOG_SCALE_RATIO = 100.0  # of the greatest to the least positive value, above which an axis is logarithmic


@dataclass(frozen=True)
class LabelledRun:
    """A run with its label and style on the page."""

    run: ReportedRun
    label: str
    number: int  # of its series style
    group: str  # the legend's label of all runs in that style
    record: int = 0  # index among the runs of the page


@dataclass(frozen=True)
class StepQuantity:
    """A quantity of the steps, and how a chart shows it."""

    name: str  # in metrics.jsonl
    title: str
    axis: str
    caption: str
    format: str  # of its values, in the syntax of d3-format
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

    return Chart(
        quantity.title,
        caption + resolution,
        _summary([(one.label, float(quantity.factor * curve.mean[-1])) for one, curve in known], quantity.axis),
        _step_traces(quantity, downsampled, bins),
        SAMPLES_AXIS,
        {"title": quantity.axis, **_value_axis(quantity, [curve for _, curve in known])},
    )


SAMPLES_AXIS = {"title": "samples trained on", "tickformat": "~s"}


def _value_axis(quantity: StepQuantity, curves: Sequence[Curve]) -> dict[str, str]:
    least, greatest = min(curve.least for curve in curves), max(curve.greatest for curve in curves)
    if quantity.allow_log_scale and least > 0 and greatest / least > LOG_SCALE_RATIO:
        return {"type": "log", "tickformat": ",.12~g", "dtick": "D2"}
    return {"exponentformat": "power"}


def _summary(last: Sequence[tuple[str, float]], what: str) -> str:
    """Return the last values of some runs as the text alternative of their curves."""
    named = "; ".join(f"{name}: {value:.4g}" for name, value in last[:MAX_SUMMARISED])
    more = f"; and {len(last) - MAX_SUMMARISED} more runs" if len(last) > MAX_SUMMARISED else ""
    return f"Last {what}: {named}{more}."


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


def _step_traces(quantity: StepQuantity, runs: Sequence[tuple[LabelledRun, Curve]], bins: int) -> list[Trace]:
    traces = []
    if len(runs) > MAX_BANDS and any(not curve.is_exact for _, curve in runs):
        at, low, high = envelope([curve for _, curve in runs], bins)
        traces.append(band(at.tolist(), (quantity.factor * low).tolist(), (quantity.factor * high).tolist(), "quiet"))
    for one, curve in runs:
        low, mean, high = (quantity.factor * values for values in (curve.low, curve.mean, curve.high))
        text = f"{quantity.axis} %{{y:{quantity.format}}}"
        if not curve.is_exact:
            text += f", mean of %{{customdata[2]:,d}} steps<br>%{{customdata[0]:{quantity.format}}} to "
            text += f"%{{customdata[1]:{quantity.format}}}"
            if len(runs) <= MAX_BANDS:
                sides = (curve.at.tolist(), low.tolist(), high.tolist())
                traces.append(band(*sides, series_colour(one.number), series=one.group, record=one.record))
        trace = _line(one, curve.at.tolist(), mean.tolist(), text)
        if not curve.is_exact:
            trace["customdata"] = np.stack([low, high, curve.size], axis=1).tolist()
        traces.append(trace)
    return traces


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

    traces = []
    for one in known:
        points = extremes(
            [(point.samples, point.accuracy) for point in one.run.metrics.evaluations], MAX_EVALUATIONS_PER_RUN
        )
        traces.append(_line(one, *_columns(points), "accuracy %{y:.4f}"))
    if several:
        traces += _mean_traces(several)
    return Chart(
        "Masked-LM accuracy",
        caption,
        _summary([(one.label, one.run.metrics.evaluations[-1].accuracy) for one in known], "accuracy"),
        traces,
        {**SAMPLES_AXIS, "rangemode": "tozero"},
        {"title": "masked-LM accuracy", "rangemode": "tozero"},
        target_lines(targets),
        wide=True,
    )


def _mean_traces(several: Sequence[tuple[float, Statistics]]) -> list[Trace]:
    places = [samples for samples, _ in several]
    means, sds = [over.mean for _, over in several], [over.sd or 0.0 for _, over in several]
    name = f"mean of {several[0][1].n} runs"
    low, high = ([mean + sign * sd for mean, sd in zip(means, sds, strict=True)] for sign in (-1, 1))
    line = {
        "type": "scatter",
        "mode": "lines",
        "series": name,
        "x": places,
        "y": means,
        "customdata": sds,
        "line": {"color": colour("ink"), "dash": "dot", "width": 2},
        "hovertemplate": f"{name}, %{{x:,.0f}} samples<br>accuracy %{{y:.4f}}, sd %{{customdata:.4f}}<extra></extra>",
    }
    return [band(places, low, high, "ink", series=name), line]


def balance_chart(runs: Sequence[LabelledRun]) -> Chart | None:
    """Chart of the distribution of max/mean tokens per rank; None if all steps are even, as on one rank."""
    shares = (0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 1.0)
    known = [(one, one.run.metrics.balance.quantiles(shares)) for one in runs if one.run.metrics.balance.total]
    if not known or all(math.isclose(quantiles[-1], 1.0, abs_tol=1e-6) for _, quantiles in known):
        return None
    text = "%{y:.0f}% of steps<br>max/mean at most %{x:.4f}"
    traces = [_line(one, quantiles, [100 * share for share in shares], text, samples=False) for one, quantiles in known]
    caption = (
        "Balance of tokens over ranks: for each share of the steps, the largest ratio of the busiest rank's tokens to "
        "the mean rank's. 1 is even; all ranks wait for the busiest one."
    )
    return Chart(
        "Distribution of the balance",
        caption,
        _summary([(one.label, quantiles[-1]) for one, quantiles in known], "and greatest ratio"),
        traces,
        {"title": "busiest rank's tokens / mean rank's"},
        {"title": "% of steps with at most that ratio", "range": [0, 103]},
    )


def rates_chart(runs: Sequence[LabelledRun]) -> Chart | None:
    """Chart of throughput between evaluations; None if no run's log was found."""
    known = [one for one in runs if one.run.rates]
    if not known:
        return None
    traces = []
    for one in known:
        points = extremes(
            [(rate.samples, rate.sequences_per_second) for rate in one.run.rates], MAX_EVALUATIONS_PER_RUN
        )
        traces.append(_line(one, *_columns(points), "%{y:,.1f} sequences/s"))
    return Chart(
        "Throughput over the run",
        "Sequences/s in training between an evaluation and the one before, by the times in the run's result log.",
        _summary([(one.label, one.run.rates[-1].sequences_per_second) for one in known], "sequences/s"),
        traces,
        SAMPLES_AXIS,
        {"title": "sequences/s", "rangemode": "tozero"},
    )


def _columns(points: Sequence[tuple[float, float]]) -> tuple[list[float], list[float]]:
    return [at for at, _ in points], [value for _, value in points]


def _line(one: LabelledRun, x: Sequence[float], y: Sequence[float], text: str, samples: bool = True) -> Trace:
    """Return a run's line; the tooltip of a point has the run's label and `text`, in Plotly's syntax."""
    where = ", %{x:,.0f} samples<br>" if samples else ", "
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "series": one.group,
        "record": one.record,
        "x": list(x),
        "y": list(y),
        "text": chart_text(one.label),
        "hovertemplate": f"%{{text}}{where}{text}<extra></extra>",
        **series_style(one.number, 4, 1.4),
    }


MIN_LABELLED_SHARE = 0.05  # of a bar's part with a label


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
    totals = [sum(one.run.phases_ms.values()) for one in known]
    traces: list[Trace] = []
    for place, phase in enumerate(phase_names(known)):
        times = [one.run.phases_ms.get(phase, 0.0) for one in known]
        shares = [time / total for time, total in zip(times, totals, strict=True)]
        traces.append(
            {
                "type": "bar",
                "orientation": "h",
                "series": phase_label(phase),
                "x": times,
                "hovertext": [
                    chart_text(f"{one.label}, {phase_label(phase)}", f"{time:,.2f} ms per step, {share:.1%}")
                    for one, time, share in zip(known, times, shares, strict=True)
                ],
                "hoverinfo": "text",
                "text": [f"{share:.0%}" if share >= MIN_LABELLED_SHARE else "" for share in shares],
                "textposition": "inside",
                "textangle": 0,
                "insidetextfont": {"color": colour("ground")},
                "marker": {"color": colour(series_colour(place)), "line": {"color": colour("ground"), "width": 1}},
            }
        )
    caption = (
        "Time of a run's steps by phase, with evaluations distributed over all steps, as measured on the host: a GPU "
        "still computes while the host is in a later phase."
    )
    means = {name: fmean(one.run.phases_ms.get(name, 0.0) for one in known) for name in phase_names(known)}
    summary = "; ".join(f"{phase_label(name)} {mean:,.2f} ms" for name, mean in means.items())
    return Chart(
        "Phases of a step",
        caption,
        f"Mean of a step: {summary}.",
        traces,
        {"title": "milliseconds per step, mean over ranks"},
        {},
        kind="bars",
        wide=True,
        labels=[one.label for one in known],
        records=[one.record for one in known],
    )


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
    return Table("Phases in numbers", columns, body, caption=caption)
