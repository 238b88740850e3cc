"""`podium study`: computes the studies of docs/studies.md and prints them as tables, as JSON or as charts."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from podium.cli import names
from podium.cli.options import AsJson, print_output
from podium.core.console import result_table
from podium.core.errors import UsageError
from podium.core.files import make_folder

if TYPE_CHECKING:
    from podium.planning.studies.study import Study

NAMES = ("small-batches", "lengths", "scaling", "buckets", "contributions")


def study(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            autocompletion=lambda incomplete: names.matching(NAMES, incomplete),
            help=f"One of {', '.join(NAMES)}.",
            show_default=False,
        ),
    ],
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FOLDER", help="Draw the chart study-NAME.svg in this folder.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compute a study of a question that Samsung's paper (arXiv 2402.02447) leaves open; see docs/studies.md.

    Runs the balancing strategies on histograms of sample lengths, and the cost model of `podium predict`. Nothing is
    trained, and the figures are the same every time.
    """
    if name not in NAMES:
        raise UsageError(f"study: found {name}, allowed are {', '.join(NAMES)}")
    computed = make_study(name)
    if out is not None:
        plot_study(computed, make_folder(out) / f"study-{name}.svg")
    print_output(as_json, computed.as_json(), lambda to: print_study(to, computed))


def make_study(name: str) -> "Study":
    """Compute the study `name`, one of NAMES."""
    from podium.planning.studies import balance, steps  # here, since scipy and pydantic take long to import

    makers: tuple[Callable[[], Study], ...] = (
        balance.small_batches,
        balance.lengths,
        balance.scaling,
        steps.buckets,
        steps.contributions,
    )
    return dict(zip(NAMES, makers, strict=True))[name]()


def print_study(console: Console, study: "Study") -> None:
    """Print the question, the tables with the source of their figures, and the findings."""
    console.print(study.question, style="bold", highlight=False)
    for data in study.tables:
        table = result_table(data.title, data.headings[:1], data.headings[1:])
        for row in data.format_rows():
            table.add_row(*row)
        console.print(table)
        console.print(f" ({data.source})\n", markup=False, highlight=False)
    for finding in study.findings:
        console.print(finding, markup=False, highlight=False)


def plot_study(study: "Study", path: Path) -> None:
    """Draw the study's chart as SVG. WorkError if the file cannot be written."""
    from podium.html.chart import svg_axes  # here, since matplotlib takes long to import

    chart = study.chart
    with svg_axes(path, 8, 4.5) as axes:
        if chart.names:
            height = 0.8 / len(chart.lines)
            for number, line in enumerate(chart.lines):
                places = [row + height * (number - (len(chart.lines) - 1) / 2) for row in range(len(chart.names))]
                axes.barh(places, line.x, height=height, label=line.label)
            axes.set_yticks(range(len(chart.names)), chart.names)
            axes.invert_yaxis()
        else:
            colours: dict[str, str] = {}
            for number, line in enumerate(chart.lines):
                style = "o-" if line.joined else "x"
                # Points that belong to a line have the same text after the last comma, and get its colour.
                key = line.label.split(", ")[-1].removesuffix(" samples a rank")
                colour = colours.setdefault(key, f"C{number}")
                axes.plot(line.x, line.y, style, color=colour, markersize=4, label=line.label)
            if chart.log_x:
                axes.set_xscale("log", base=2)
                axes.xaxis.set_major_formatter(lambda value, _: f"{value:,g}")
            if chart.limit is not None:
                axes.axhline(chart.limit, color="#999999", linewidth=0.8, linestyle="--")
        axes.set_xlabel(chart.x_label)
        axes.set_ylabel(chart.y_label)
        axes.set_title(chart.title)
        axes.legend()
