"""Where the time of a step goes: a bar a run, and the same as a table."""

from collections.abc import Sequence
from statistics import fmean
from typing import Any

from matplotlib.artist import Artist
from matplotlib.patches import Rectangle

from benchmarks.text import for_html
from podium.page.chart import Canvas, Chart
from podium.page.colours import BASE, SERIES
from podium.page.table import Column, Table, number, text
from podium.run_report.curves import Labelled

BAR_INCHES = 0.34
WIDE_ENOUGH = 0.09
"""Of the longest bar: a part that is as wide has its share written into it."""


LABEL = {"boxstyle": "round,pad=0.2", "facecolor": BASE["ground"].light, "edgecolor": "none"}
"""Behind what is written into a part: no colour of a part suits every letter's, on light and on dark."""


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
        axes.set_ylim(len(known) - 0.4, -0.6)
        axes.set_yticks(range(len(known)), [for_html(one.label, 20 if canvas.narrow else 40) for one in known])
        axes.grid(visible=False, axis="y")
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
