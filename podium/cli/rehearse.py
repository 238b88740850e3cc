"""`podium rehearse`: runs one rank of a system on this machine, at the system's real number of ranks."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console as RichConsole

from podium.cli.options import AsJson, Recipe, Settings, System, print_output
from podium.core.console import errors, print_line, print_message, summary_table

if TYPE_CHECKING:  # each command imports its libraries itself, so that the other commands start faster
    from podium.config.schema import RunConfig

NOTES = """\
Times are CPU time. Those of a step are medians over {calls}.
Memory of a node is that of all its processes, without device libraries and without what is not rehearsed. Bytes read \
from the disk include pages of libraries that were not in memory yet."""


def rehearse(
    system: System,
    rank: Annotated[int, typer.Option("--rank", min=0, help="The rank to rehearse.")] = 0,
    steps: Annotated[int, typer.Option("--steps", min=1, help="Number of training steps.")] = 20,
    samples: Annotated[
        int | None,
        typer.Option("--samples", min=1, help="Number of training samples. Default: that of MLPerf's Wikipedia."),
    ] = None,
    recipe: Recipe = None,
    settings: Settings = None,
    as_json: AsJson = False,
) -> None:
    """Run one rank of a system alone, at the system's real number of ranks, and measure host time, memory and reads.

    Sampling, balancing, batch layout, loss totals and metrics are those of a real run, with a length index of
    Wikipedia's size. The samples are synthetic, the model is the tiny one on this CPU, and nothing is communicated.
    Exit code 1 if the processes of a node need more memory than it has.
    """
    from podium.run.progress import Progress
    from podium.run.rehearsal import memory_shortage
    from podium.run.rehearsal import rehearse as rehearse_rank
    from podium.run.run_set import RunRequest

    config = RunRequest(system, settings or [], recipe).config
    result = rehearse_rank(config, rank, steps, samples, Progress(errors).note)
    print_output(as_json, result, lambda to: print_rehearsal(to, config, result))
    if shortage := memory_shortage(config, result):
        print_message(shortage)
        raise typer.Exit(1)


def print_rehearsal(console: RichConsole, config: "RunConfig", result: Mapping[str, Any]) -> None:
    """Print a table of the rank's start, a step's host time, memory and reads, and what was not rehearsed."""
    ranks = result["ranks"]
    table = summary_table(
        f"{result['system']}, recipe {result['recipe']}: rank {result['rank']:,} of {ranks:,}, rehearsed"
    )
    table.add_row("samples", f"{result['samples']:,}, synthetic")
    table.add_row("global batch", f"{result['global_batch_size']:,} on {_count(ranks, 'rank')}", end_section=True)
    start, host, memory, read = (result[key] for key in ("start", "host", "memory", "read"))
    table.add_row("start, on the host", f"{start['cpu_seconds']:.2f} s")
    for name, part in start["parts"].items():
        if name not in start["not_the_systems"]:
            table.add_row(f"  {name}", f"{part['cpu_seconds']:.2f} s")
    table.add_row("  wall time on this machine", f"{start['seconds']:.2f} s", end_section=True)
    table.add_row("a step, on the host", f"{host['milliseconds']:.2f} ms")
    for name, part in host["parts"].items():
        table.add_row(f"  {name}", f"{part['median']:.3f} ms ({part['least']:.3f} to {part['greatest']:.3f})")
    table.add_section()
    per_node = config.launch.processes_per_node
    table.add_row("memory of the process", _bytes(memory["own_bytes"]))
    table.add_row("  shared by a node's processes", f"{_bytes(memory['file_bytes'])}, mapped files")
    table.add_row("    of these the length index", _bytes(memory["index_bytes"]))
    table.add_row(f"  a node of {per_node}, at least", _bytes(memory["node_bytes"]))
    table.add_row("read from disk, with libraries", _bytes(read["disk_bytes"]))
    table.add_row("  of these to open the stores", _bytes(read["store_disk_bytes"]))
    table.add_row("samples to read", f"{_bytes(read['sample_bytes_a_step'])} a step", end_section=True)
    if result["shapes"] is not None:
        table.add_row("shapes, a CUDA graph each", f"{result['shapes']}")
    evaluation = result["evaluation"]
    table.add_row("evaluation samples", f"{evaluation['samples']:,} in {evaluation['batches']:,} batches")
    console.print(table)
    print_line(console, f"Not rehearsed: {', '.join(result['not_rehearsed'])}.")
    for line in NOTES.format(calls=_count(result["steps"], "step")).splitlines():
        print_line(console, line)
    if result["stated_memory_bytes"] is None:
        print_line(
            console,
            f"description.host_memory_capacity: found {config.description.host_memory_capacity!r}, which is not an "
            "amount such as 1 TB or 24 x 32 GB, so the memory of a node is not compared with it",
        )
    if evaluation["ranks_without"]:
        print_line(
            console,
            f"evaluation.samples: {config.evaluation_samples:,} are fewer than the ranks, so "
            f"{evaluation['ranks_without']:,} ranks have none",
        )


def _count(number: int, name: str) -> str:
    """Format a count with its noun, such as 1 step or 1,024 ranks."""
    return f"{number:,} {name}{'' if number == 1 else 's'}"


def _bytes(count: float) -> str:
    """Format a number of bytes, such as 38.7 kB, 313 MB or 8.57 GB."""
    for limit, unit in ((1e6, "kB"), (1e9, "MB"), (1e12, "GB"), (float("inf"), "TB")):
        if count < limit:
            return f"{1000 * count / limit if limit < float('inf') else count / 1e12:.3g} {unit}"
    raise ValueError(f"{count} is not a number of bytes")
