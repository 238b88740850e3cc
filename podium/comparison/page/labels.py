"""Labels of a result in charts and tables, and the text of its tooltip."""

from podium.comparison.page.families import rate_of
from podium.comparison.result import Result


def told(result: Result, *more: str) -> str:
    """What a chart tells of a result, a line each: its name, what it ran on, its time, `more`, and all else."""
    where = f"{result.round}, {result.division or 'division unknown'}" if result.round else "your own"
    cpus_only = f"{result.nodes or 'an unknown number of'} node(s), CPUs only"
    hardware = result.hardware(result.family or "accelerators unknown", cpus_only)
    lines = [f"{result.short_name} ({where})", hardware, time(result), *more]
    rate = rate_of(result)
    if rate is not None:
        lines.append(f"{rate:,.1f} sequences/s per {'accelerator' if result.accelerators else 'node'}")
    if result.utilization is not None:
        lines.append(f"{100 * result.utilization:.1f} % of the peak")
    if result.samples_to_target is not None:
        lines.append(f"{result.samples_to_target:,.0f} samples to the target")
    if result.global_batch_size is not None:
        lines.append(f"batch size {result.global_batch_size:,}")
    if result.repeats is not None:
        lines.append(f"the same runs as {result.repeats}")
    return "\n".join(lines)


def time(result: Result) -> str:
    if result.minutes is None:
        return "no run converged"
    if result.score_minutes is None:
        return f"{minutes_text(result.minutes)} (mean of {len(result.converged)} runs: no score)"
    if result.scaling_factor is not None:
        return f"{minutes_text(result.counted_minutes())} (measured {minutes_text(result.score_minutes)}, scaled)"
    return minutes_text(result.score_minutes)


def minutes_text(minutes: float) -> str:
    return f"{minutes:,.3f} min" if minutes >= 1 else f"{60 * minutes:,.2f} s"
