"""`podium balance`: a table and a chart of how evenly each balancing strategy assigns samples to ranks."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from podium.core.console import number_table
from podium.core.errors import UsageError
from podium.planning.balance_report import Cluster

BAR_WIDTH = 48  # characters for a whole step
COLOURS = {"working": "#1f77b4", "on padding": "#ff7f0e", "waiting": "#d3d3d3"}
OWN_STRATEGY = "indexed"


def print_balance(console: Console, cluster: Cluster, report: Mapping[str, Any]) -> None:
    """Print a table of the strategies, and for each a bar of how the mean rank spends a step.

    The bar's parts are work on tokens, work on padding, and waiting for the busiest rank.
    """
    strategies: Mapping[str, Mapping[str, Any]] = report["strategies"]
    table = Table(
        title=_title(cluster), caption=f"max/mean over ranks: mean over {report['steps']} steps / 99th percentile"
    )
    for heading in ("strategy", "tokens", "cost", "padding", "sent", "ms"):
        table.add_column(heading, justify="left" if heading == "strategy" else "right", no_wrap=True)
    for name, row in strategies.items():
        table.add_row(
            name,
            f"{row['max_over_mean_tokens']:.3f} / {row['max_over_mean_tokens_p99']:.3f}",
            f"{row['max_over_mean_cost']:.3f} / {row['max_over_mean_cost_p99']:.3f}",
            f"{row['padding_share']:.1%}",
            f"{row['bytes_per_step'] / 1e6:.2f} MB" if row["bytes_per_step"] else "–",
            f"{row['milliseconds']:.2f}",
        )
    console.print(table)
    for name, row in strategies.items():
        console.print(f"{name:>10} {_bar(row)} {_shares(row)[0]:4.0%} working", highlight=False)
    console.print("█ working  ▒ on padding  · waiting for the busiest rank", highlight=False)
    own = strategies.get(OWN_STRATEGY)
    if own:
        console.print(
            f"lower bound of the cost: {own['lower_bound_cost']:.4f}; "
            f"{OWN_STRATEGY} reaches {own['max_over_mean_cost']:.4f}"
        )
    for name, why in report["infeasible"].items():
        console.print(f"{name} is impossible here: {why}", highlight=False)
    if any(row["bytes_per_step"] for row in strategies.values()):
        console.print(
            "sent: bytes that a rank sends per step if each rank stores different shards; none if it reads all"
        )


def print_packing(console: Console, report: Mapping[str, Any]) -> None:
    """Print how full rows are when a whole dataset is packed before training."""
    title = "A whole dataset packed into rows of the longest length"
    table = number_table(title, "method", "max. sequences a row", "full", "sequences a row")
    for row in report["packing"]:
        depth = "any" if row["depth"] is None else str(row["depth"])
        table.add_row(row["method"], depth, f"{row['efficiency']:.2%}", f"{row['sequences_per_row']:.3f}")
    console.print(table)


def check_plot(path: Path | None) -> None:
    """UsageError for a --plot that is not SVG."""
    if path is not None and path.suffix != ".svg":
        raise UsageError(f"--plot: found {path}, allowed is a path that ends with .svg")


def plot_balance(cluster: Cluster, report: Mapping[str, Any], path: Path) -> None:
    """Draw the bars of `print_balance` as SVG. UsageError for another file type, WorkError if it cannot be written."""
    check_plot(path)
    from podium.html.chart import svg_axes  # here, since matplotlib takes long to import

    names = list(report["strategies"])
    rows = [report["strategies"][name] for name in names]
    parts = [_shares(row) for row in rows]
    with svg_axes(path, 8, 1 + 0.45 * len(names)) as axes:
        left = [0.0] * len(names)
        for number, (label, colour) in enumerate(COLOURS.items()):
            widths = [100 * part[number] for part in parts]
            axes.barh(names, widths, left=left, color=colour, label=label)
            left = [a + b for a, b in zip(left, widths, strict=True)]
        for place, row in enumerate(rows):
            axes.text(101, place, f"{row['max_over_mean_cost']:.3f}", va="center")
        axes.invert_yaxis()
        axes.set_xlim(0, 112)
        axes.set_xlabel("% of the mean rank's step; beside it, cost of the busiest rank over the mean rank's")
        axes.set_title(_title(cluster))
        axes.legend(loc="lower left", ncols=3)


def _shares(row: Mapping[str, Any]) -> tuple[float, float, float]:
    """Return the fractions of a step that the mean rank spends on tokens, on padding, and waiting for the busiest rank.

    Time is taken to be proportional to cost, so the mean rank is busy for mean/max of the step.
    """
    busy = 1 / row["max_over_mean_cost"]
    return busy * (1 - row["padding_share"]), busy * row["padding_share"], 1 - busy


def _bar(row: Mapping[str, Any]) -> str:
    working, padding, _ = _shares(row)
    # Cumulative positions are rounded, not the widths, so that the three parts always add up to BAR_WIDTH.
    work_end, padding_end = round(BAR_WIDTH * working), round(BAR_WIDTH * (working + padding))
    return "█" * work_end + "▒" * (padding_end - work_end) + "·" * (BAR_WIDTH - padding_end)


def _title(cluster: Cluster) -> str:
    ranks = cluster.spec.parts
    return f"{ranks:,} rank{'s' if ranks > 1 else ''} × {cluster.local_batch} samples"
