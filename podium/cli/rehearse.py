"""`podium rehearse`: one rank's run at the system's number of ranks, on this machine alone."""

from collections.abc import Mapping
from typing import Annotated, Any

import typer
from rich.console import Console as RichConsole

from podium.cli.options import AsJson, Recipe, Settings, System, show
from podium.config.schema import RunConfig
from podium.core.console import errors, print_line, summary_table, tell

NOTES = """\
Times are CPU time; a step's are medians over {calls}.
Memory of a node is that of so many processes as this one, which lacks what the device's libraries and what is not \
rehearsed take. What is read from the disk includes pages of libraries that were not in memory yet."""


def rehearse(
    system: System,
    rank: Annotated[int, typer.Option("--rank", min=0, help="The rank that is rehearsed.")] = 0,
    steps: Annotated[int, typer.Option("--steps", min=1, help="Steps to take.")] = 20,
    samples: Annotated[
        int | None, typer.Option("--samples", min=1, help="Samples to train on. Default: as many as Wikipedia's.")
    ] = None,
    recipe: Recipe = None,
    settings: Settings = None,
    as_json: AsJson = False,
) -> None:
    """Run one rank of a system at its real number of ranks, alone: what its host computes, holds and reads.

    Sampling, balancing, layout, totals and metrics are the run's own, on a length index as long as Wikipedia's. Samples
    are synthetic, the model is the tiny one on this CPU, and nothing is sent. Exit code 1 if the processes of a node
    take more memory than it has.
    """
    from podium.run.progress import Progress
    from podium.run.rehearsal import memory_shortage
    from podium.run.rehearsal import rehearse as rehearse_rank
    from podium.run.run_set import RunRequest

    config = RunRequest(system, settings or [], recipe).config
    found = rehearse_rank(config, rank, steps, samples, Progress(errors).note)
    show(as_json, found, lambda to: print_rehearsal(to, config, found))
    if shortage := memory_shortage(config, found):
        tell(shortage)
        raise typer.Exit(1)


def print_rehearsal(console: RichConsole, config: RunConfig, found: Mapping[str, Any]) -> None:
    """A table of the start, of a step, and of what the rank holds and reads."""
    ranks = found["ranks"]
    table = summary_table(
        f"{found['system']}, recipe {found['recipe']}: rank {found['rank']:,} of {ranks:,}, rehearsed"
    )
    table.add_row("samples", f"{found['samples']:,}, synthetic")
    table.add_row("global batch", f"{found['global_batch_size']:,} on {_count(ranks, 'rank')}", end_section=True)
    start, host, memory, read = (found[key] for key in ("start", "host", "memory", "read"))
    table.add_row("start, on the host", f"{start['cpu_seconds']:.2f} s")
    for name, part in start["parts"].items():
        if name not in start["not_the_systems"]:
            table.add_row(f"  {name}", f"{part['cpu_seconds']:.2f} s")
    table.add_row("  as it took here", f"{start['seconds']:.2f} s", end_section=True)
    table.add_row("a step, on the host", f"{host['milliseconds']:.2f} ms")
    for name, part in host["parts"].items():
        table.add_row(f"  {name}", f"{part['median']:.3f} ms ({part['least']:.3f} to {part['greatest']:.3f})")
    table.add_section()
    per_node = config.launch.processes_per_node
    table.add_row("memory of the process", _bytes(memory["own_bytes"]))
    table.add_row("  shared with others of its node", f"{_bytes(memory['file_bytes'])}, mapped files")
    table.add_row("    of these the length index", _bytes(memory["index_bytes"]))
    table.add_row(f"  a node of {per_node}, at least", _bytes(memory["node_bytes"]))
    table.add_row("read from the disk, with libraries", _bytes(read["disk_bytes"]))
    table.add_row("  of these to open the stores", _bytes(read["store_disk_bytes"]))
    table.add_row("samples to read", f"{_bytes(read['sample_bytes_a_step'])} a step", end_section=True)
    if found["shapes"] is not None:
        table.add_row("shapes, a CUDA graph each", f"{found['shapes']}")
    evaluation = found["evaluation"]
    table.add_row("evaluation samples", f"{evaluation['samples']:,} in {evaluation['batches']:,} batches")
    console.print(table)
    print_line(console, f"Not rehearsed: {', '.join(found['not_rehearsed'])}.")
    for line in NOTES.format(calls=_count(found["steps"], "step")).splitlines():
        print_line(console, line)
    if found["stated_memory_bytes"] is None:
        print_line(
            console,
            f"description.host_memory_capacity: {config.description.host_memory_capacity!r} is no amount such as 1 TB "
            "or 24 x 32 GB, so that the memory of a node is not compared with it",
        )
    if evaluation["ranks_without"]:
        print_line(
            console,
            f"evaluation.samples: {config.evaluation_samples:,} are fewer than the ranks, so that "
            f"{evaluation['ranks_without']:,} ranks have none",
        )


def _count(number: int, name: str) -> str:
    """Such as 1 step or 1,024 ranks."""
    return f"{number:,} {name}{'' if number == 1 else 's'}"


def _bytes(count: float) -> str:
    """Such as 38.7 kB, 313 MB or 8.57 GB."""
    for limit, unit in ((1e6, "kB"), (1e9, "MB"), (1e12, "GB"), (float("inf"), "TB")):
        if count < limit:
            return f"{1000 * count / limit if limit < float('inf') else count / 1e12:.3g} {unit}"
    raise ValueError(f"{count} is no number of bytes")
