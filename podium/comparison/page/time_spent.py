"""Where the time of runs goes: what is lost at the start, training, evaluation, and what comes after the target."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean

from matplotlib.patches import Patch

from benchmarks.text import label
from podium.comparison.page.words import short_name, told
from podium.comparison.result import Result
from podium.page.chart import Canvas, Chart
from podium.page.colours import BASE, SERIES

KINDS = ("starting", "training", "training and evaluation", "evaluation", "closing")
COLOURS = (SERIES[1].light, SERIES[0].light, SERIES[4].light, SERIES[2].light, BASE["quiet"].light)


@dataclass(frozen=True)
class TimeSpent:
    """Means of a result's runs that converged, in seconds; None is not known."""

    seconds: float
    """From run_start to run_stop."""
    initialisation: float | None
    """Before run_start, outside of the time that counts."""
    starting: float | None
    """What was lost at the start: by how much the first evaluation was late, by the pace that followed."""
    evaluation: float | None
    closing: float | None
    """From the evaluation that reached the target to run_stop."""

    @property
    def training(self) -> float | None:
        """What is left, where evaluation is known."""
        return None if self.evaluation is None else max(self.rest - self.evaluation, 0.0)

    @property
    def rest(self) -> float:
        """Training and evaluation."""
        return max(self.seconds - max(self.starting or 0.0, 0.0) - max(self.closing or 0.0, 0.0), 0.0)

    @property
    def parts(self) -> tuple[float, ...]:
        """Seconds by KINDS; their sum is no less than `seconds`."""
        starting, closing = (max(part or 0.0, 0.0) for part in (self.starting, self.closing))
        if self.evaluation is None or self.training is None:
            return starting, 0.0, self.rest, 0.0, closing
        return starting, self.training, 0.0, min(self.evaluation, self.rest), closing


def time_spent(result: Result) -> TimeSpent | None:
    """None where no run converged."""
    runs = result.converged
    if not runs:
        return None
    return TimeSpent(
        mean(run.seconds for run in runs if run.seconds is not None),
        _mean([run.init_seconds for run in runs]),
        result.startup_seconds,
        _mean([run.evaluating_seconds for run in runs]),
        _mean([run.closing_seconds for run in runs]),
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
                canvas.tell(bar, [_words(result, spent, kind, seconds)])
                left += width
        longest = 20 if canvas.narrow else 44
        canvas.axes.set_yticks(range(len(results)), [label(short_name(result), longest) for result in results])
        canvas.axes.set_ylim(len(results) - 0.4, -0.6)
        canvas.axes.set_xlim(0, 100)
        canvas.axes.grid(False, axis="y")
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


def _words(result: Result, spent: TimeSpent, kind: str, seconds: float) -> str:
    lines = [f"{kind}: {seconds:,.1f} s of {spent.seconds:,.1f} s, {100 * seconds / spent.seconds:.1f} %"]
    if spent.initialisation is not None:
        lines.append(f"initialisation, before the clock: {spent.initialisation:,.1f} s")
    return told(result, *lines)


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return mean(known) if known and len(known) == len(values) else None
