"""`podium balance`: how evenly each strategy assigns samples to ranks, as a table and as a chart."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from podium.core.console import figure_table
from podium.core.errors import UsageError
from podium.planning.balance_report import Cluster

BAR = 48  # characters of a whole step's bar
COLOURS = {"working": "#1f77b4", "on padding": "#ff7f0e", "waiting": "#d3d3d3"}
OWN = "indexed"


def print_balance(console: Console, cluster: Cluster, measured: Mapping[str, Any]) -> None:
    """A table, and a bar of the mean rank's time in a step: working, at padding, waiting for the busiest rank."""
    found: Mapping[str, Mapping[str, Any]] = measured["strategies"]
    table = Table(
        title=_title(cluster), caption=f"max/mean over ranks: mean over {measured['steps']} steps / 99th percentile"
    )
    for heading in ("strategy", "tokens", "cost", "padding", "sent", "ms"):
        table.add_column(heading, justify="left" if heading == "strategy" else "right", no_wrap=True)
    for name, row in found.items():
        table.add_row(
            name,
            f"{row['max_over_mean_tokens']:.3f} / {row['max_over_mean_tokens_p99']:.3f}",
            f"{row['max_over_mean_cost']:.3f} / {row['max_over_mean_cost_p99']:.3f}",
            f"{row['padding_share']:.1%}",
            f"{row['bytes_per_step'] / 1e6:.2f} MB" if row["bytes_per_step"] else "–",
            f"{row['milliseconds']:.2f}",
        )
    console.print(table)
    for name, row in found.items():
        console.print(f"{name:>10} {_bar(row)} {_shares(row)[0]:4.0%} working", highlight=False)
    console.print("█ working  ▒ on padding  · waiting for the busiest rank", highlight=False)
    own = found.get(OWN)
    if own:
        console.print(
            f"no assignment is below {own['least_cost']:.4f} in cost; {OWN} has {own['max_over_mean_cost']:.4f}"
        )
    for name, why in measured["impossible"].items():
        console.print(f"{name} is impossible here: {why}", highlight=False)
    if any(row["bytes_per_step"] for row in found.values()):
        console.print("sent: by a rank in a step if each rank stores other shards; Podium's loader sends nothing")


def print_packing(console: Console, measured: Mapping[str, Any]) -> None:
    """How full the rows are when a whole dataset is packed ahead."""
    title = "A whole dataset packed into rows of the longest length"
    table = figure_table(title, "method", "sequences a row, at most", "full", "sequences a row")
    for row in measured["packing"]:
        depth = "any" if row["depth"] is None else str(row["depth"])
        table.add_row(row["method"], depth, f"{row['efficiency']:.2%}", f"{row['sequences_per_row']:.3f}")
    console.print(table)


def plot_balance(cluster: Cluster, measured: Mapping[str, Any], path: Path) -> None:
    """The same as SVG: a bar for each strategy. Raises UsageError for another kind of file, WorkError if it cannot be
    written."""
    if path.suffix != ".svg":
        raise UsageError(f"--plot: found {path}, allowed is a path that ends with .svg")
    from podium.html.chart import picture  # here, since matplotlib takes long to import

    names = list(measured["strategies"])
    rows = [measured["strategies"][name] for name in names]
    parts = [_shares(row) for row in rows]
    with picture(path, 8, 1 + 0.45 * len(names)) as axes:
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
    """Of the mean rank's time in a step: at its tokens, at padding, waiting for the busiest rank."""
    busy = 1 / row["max_over_mean_cost"]
    return busy * (1 - row["padding_share"]), busy * row["padding_share"], 1 - busy


def _bar(row: Mapping[str, Any]) -> str:
    working, padding, _ = _shares(row)
    full, dull = round(BAR * working), round(BAR * (working + padding))
    return "█" * full + "▒" * (dull - full) + "·" * (BAR - dull)


def _title(cluster: Cluster) -> str:
    ranks = cluster.deal.parts
    return f"{ranks:,} rank{'s' if ranks > 1 else ''} × {cluster.local_batch} samples"
