"""`podium systems`: lists systems, shows one, and writes the file of a new one."""

import typer

from podium.cli.options import AsJson, System, print_output

systems = typer.Typer(
    no_args_is_help=True,
    help="List systems, show one, and write a file for this machine or from a published result.",
)


@systems.command(name="list", epilog="Example: [bold]podium systems list --json[/bold]")
def list_systems(as_json: AsJson = False) -> None:
    """List the systems with their hardware, and whether they could run on this machine."""
    from podium.system_files.listing import print_systems, read_systems, system_json

    found = read_systems()
    print_output(as_json, {"systems": [system_json(one) for one in found]}, lambda to: print_systems(to, found))


@systems.command(epilog="Example: [bold]podium systems show dgxh100_n1[/bold]")
def show(system: System, as_json: AsJson = False) -> None:
    """Show a system: its file, where its settings come from, launch, recipe, batch and hyper-parameters."""
    from podium.system_files.listing import print_system, read_system, system_json

    found = read_system(system)
    print_output(as_json, system_json(found), lambda to: print_system(to, found))
