"""`podium balance`: how evenly each strategy shares out samples over ranks, as a table and as a picture."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.errors import UsageError
from podium.asking import ask
from podium.config import RunConfig
from podium.costs import with_measured_costs
from podium.pictures import picture

BAR = 48
"""Characters of a whole step's bar."""
COLOURS = {"working": "#1f77b4", "on padding": "#ff7f0e", "waiting": "#d3d3d3"}
IMPLEMENTATION, OWN = "pytorch", "indexed"
GPUS_PER_NODE = 8


@dataclass(frozen=True)
class Cluster:
    """Who takes part, and how many samples each takes in a step."""

    ranks: int
    ranks_per_node: int
    local_batch: int
    accumulation_steps: int = 1
    counts: str = "equal"
    pair_cost: float | None = None
    sequence_cost: float | None = None
    scan: str | None = None

    @classmethod
    def of_system(cls, config: RunConfig) -> "Cluster":
        """A system under its recipe, with the costs that were measured on it."""
        config = with_measured_costs(config)
        return cls(
            config.launch.ranks,
            config.launch.processes_per_node,
            config.local_batch_size,
            config.gradient_accumulation_steps,
            config.balancing_counts,
            config.pair_cost,
            config.sequence_cost,
        )

    @classmethod
    def of_ranks(
        cls, ranks: int, local_batch: int, ranks_per_node: int | None, counts: str | None, scan: str | None
    ) -> "Cluster":
        """Nodes of eight, unless said otherwise or there is one that is not full."""
        usual = GPUS_PER_NODE if ranks % GPUS_PER_NODE == 0 else ranks
        if counts not in (None, "equal", "free"):
            raise UsageError(f"--counts: found {counts}, allowed are equal, free")
        if scan not in (None, "stride", "snake"):
            raise UsageError(f"--scan: found {scan}, allowed are stride, snake")
        return cls(ranks, ranks_per_node or usual, local_batch, counts=counts or "equal", scan=scan)

    def words(self) -> list[str]:
        """The implementation's command-line options."""
        words = ["--ranks", str(self.ranks), "--ranks-per-node", str(self.ranks_per_node)]
        words += ["--local-batch", str(self.local_batch), "--accumulation-steps", str(self.accumulation_steps)]
        words += ["--counts", self.counts]
        words += ["--scan", self.scan] if self.scan is not None else []
        words += ["--pair-cost", repr(self.pair_cost)] if self.pair_cost is not None else []
        return words + (["--sequence-cost", repr(self.sequence_cost)] if self.sequence_cost is not None else [])


def measure_balance(
    cluster: Cluster, strategies: Sequence[str], lengths: Path | None, steps: int, packing: bool = False
) -> dict[str, Any]:
    """Deal out `steps` global batches by each strategy, or by all where none is named; `packing` packs all samples too.

    Raises UsageError for what cannot be dealt out.
    """
    words = [*cluster.words(), "--steps", str(steps)]
    words += ["--lengths", str(lengths.resolve())] if lengths is not None else []
    words += ["--packing"] if packing else []
    words += ["--strategies", *strategies] if strategies else []
    return ask(IMPLEMENTATION, "balance", words)


def print_balance(console: Console, cluster: Cluster, measured: Mapping[str, Any]) -> None:
    """A table, and a bar of the mean rank's time in a step: working, at padding, waiting for the busiest rank."""
    found: Mapping[str, Mapping[str, Any]] = measured["strategies"]
    table = Table(title=_title(cluster), caption="max/mean over ranks: mean over steps / 99th percentile")
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
        console.print("sent: by a rank in a step where ranks hold shards of their own; Podium's loader sends nothing")


def print_packing(console: Console, measured: Mapping[str, Any]) -> None:
    """How full the rows are when a whole dataset is packed ahead."""
    table = Table(title="A whole dataset packed into rows of the longest length")
    for heading in ("method", "sequences a row, at most", "full", "sequences a row"):
        table.add_column(heading, justify="left" if heading == "method" else "right")
    for row in measured["packing"]:
        depth = "any" if row["depth"] is None else str(row["depth"])
        table.add_row(row["method"], depth, f"{row['efficiency']:.2%}", f"{row['sequences_per_row']:.3f}")
    console.print(table)


def plot_balance(cluster: Cluster, measured: Mapping[str, Any], path: Path) -> None:
    """The same as SVG: a bar for each strategy. Raises UsageError for another kind of file, WorkError if it cannot be
    written."""
    if path.suffix != ".svg":
        raise UsageError(f"--plot: found {path}, allowed is a path that ends with .svg")
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
    ranks = "1 rank" if cluster.ranks == 1 else f"{cluster.ranks:,} ranks"
    return f"{ranks} × {cluster.local_batch} samples"
