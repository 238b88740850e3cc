"""Labels of a result in charts and tables, and the text of its tooltip."""

from podium.comparison.page.families import rate_of
from podium.comparison.result import Result
from podium.comparison.table import format_rate


def tooltip(result: Result, *more: str) -> str:
    """Return the lines of a result's tooltip: name, hardware, time, then `more`, then the other known values."""
    where = f"{result.round}, {result.division or 'division unknown'}" if result.round else "your own"
    cpus_only = f"{result.nodes or 'an unknown number of'} node(s), CPUs only"
    hardware = result.hardware(result.family or "accelerators unknown", cpus_only)
    lines = [f"{result.short_name} ({where})", hardware, format_time(result), *more, *rate_lines(result)]
    if result.samples_to_target is not None:
        lines.append(f"{result.samples_to_target:,.0f} samples to the target")
    if result.global_batch_size is not None:
        lines.append(f"batch size {result.global_batch_size:,}")
    if result.repeats is not None:
        lines.append(f"the same runs as {result.repeats}")
    return "\n".join(lines)


def bar_label(result: Result) -> str:
    """Return the two lines of the label of a result's bar; the script joins them where there is room."""
    return f"{result.round or 'own'} {result.submitter}\n{result.system}"


def rate_lines(result: Result) -> list[str]:
    """Return the lines of a tooltip on throughput: samples/s and their share of the peak, where known."""
    rate, lines = rate_of(result), list[str]()
    if rate is not None:
        lines.append(f"{format_rate(rate)} samples/s per {'accelerator' if result.accelerators else 'node'}")
    if result.utilization is not None:
        lines.append(f"{100 * result.utilization:.1f} % of the peak")
    return lines


def format_time(result: Result) -> str:
    """Format the official score of a result, or its mean time without a score."""
    if result.minutes is None:
        return "no run succeeded"
    if result.score_minutes is None:
        return f"{format_minutes(result.minutes)} (mean of {len(result.converged)} runs: no score)"
    if result.scaling_factor is not None:
        return f"{format_minutes(result.ranking_minutes())} (measured {format_minutes(result.score_minutes)}, scaled)"
    return format_minutes(result.score_minutes)


def format_minutes(minutes: float) -> str:
    """Format a time in minutes, or in seconds below one minute."""
    return f"{minutes:,.3f} min" if minutes >= 1 else f"{60 * minutes:,.2f} s"
