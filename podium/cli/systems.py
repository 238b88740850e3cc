"""`podium systems`: lists systems, shows one, and writes the file of a new one."""

from typing import Annotated

import typer

from podium.cli.framework import CommandGroup
from podium.cli.options import AsJson, System, print_output
from podium.core.console import errors, print_message
from podium.core.errors import UsageError

systems = CommandGroup(help="List systems, show one, and write a file for this machine or from a published result.")


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


@systems.command(epilog="Example: [bold]podium systems new repro --from 2.1/NVIDIA/dgxa100_ngc22.09_pytorch[/bold]")
def new(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the system, and of its file systems/NAME.yaml.")],
    published: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="PUBLISHED",
            help="Reproduce a published result of BERT: a folder results/SYSTEM of a round's repository, or "
            "ROUND/SUBMITTER/SYSTEM of the built-in tables (A100 systems of rounds 1.1 to 2.1).",
        ),
    ] = None,
    nodes: Annotated[
        int | None, typer.Option(min=1, help="Number of nodes. Default: 1; with --from that of its description.")
    ] = None,
    gpus: Annotated[
        int | None, typer.Option(min=0, help="GPUs of each node; 0 is a CPU system. Default: those of this machine.")
    ] = None,
    accelerator: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Model of the GPUs, such as H200, where they are not in this machine."),
    ] = None,
    launcher: Annotated[
        str | None,
        typer.Option(metavar="torchrun|docker|slurm", help="What starts the processes. Default: torchrun on one node."),
    ] = None,
    image: Annotated[
        str | None,
        typer.Option(help="Container image: of docker, a .sqsh file for pyxis, a .sif for Apptainer."),
    ] = None,
    recipe: Annotated[
        str | None, typer.Option(help="The training recipe. Default: indexed; with --from the nearest.")
    ] = None,
    size: Annotated[
        str | None,
        typer.Option(metavar="large|tiny", help="Size of the model. Default: large where there are GPUs and data."),
    ] = None,
    data: Annotated[
        str, typer.Option(metavar="FOLDER", help="Folder of MLPerf's prepared data, for size large.")
    ] = "data",
    as_json: AsJson = False,
) -> None:
    """Write the file of a new system: for this machine, or one that reproduces a published result.

    The machine's processors, memory and NVIDIA GPUs are detected, unless the options state another system, such as
    several nodes or GPUs that are not here. The published batch and hyper-parameters for the nearest number and kind
    of GPUs are named. Without a GPU the tiny BERT is trained on the embedded text. An existing
    file is not replaced.
    """
    from podium.config.load import recipe_files
    from podium.core.text import did_you_mean
    from podium.planning.accelerators import MAX_NAME_LENGTH
    from podium.system_files.compose import target_path, write_system
    from podium.system_files.new import NewOptions, draft_for_machine, needs_rendezvous, run_command
    from podium.system_files.new import as_json as new_json

    name = name.removesuffix(".yaml")
    target_path(name)  # before what takes long
    for option, value, allowed in (
        ("--launcher", launcher, ("torchrun", "docker", "slurm")),
        ("--size", size, ("large", "tiny")),
        ("--recipe", recipe, tuple(path.stem for path in recipe_files("pytorch"))),
    ):
        if value is not None and value not in allowed:
            raise UsageError(f"{option}: found {value}{did_you_mean(value, allowed)}; allowed are {', '.join(allowed)}")
    if accelerator is not None and len(accelerator) > MAX_NAME_LENGTH:
        raise UsageError(f"--accelerator: has {len(accelerator):,} characters; allowed are {MAX_NAME_LENGTH}")
    if published is not None:
        from podium.system_files.published import draft_from, find_published

        given = {"--accelerator": accelerator, "--launcher": launcher}
        given |= {"--image": image, "--size": size}
        unused = [option for option, value in given.items() if value is not None]
        if unused:
            raise UsageError(
                f"{unused[0]}: with --from the published result states it; leave it out, and edit the file"
            )
        draft = draft_from(find_published(published, nodes, gpus), name, recipe, data)
    else:
        options = NewOptions(nodes or 1, gpus, accelerator, launcher, image, recipe or "indexed", size, data)
        draft = draft_for_machine(name, options)
    path, draft = write_system(draft, name)
    if as_json:
        print_output(True, new_json(name, path, draft), lambda _: None)
        return
    for note in draft.notes:
        print_message(note)
    where = ""
    if needs_rendezvous(draft.launch["launcher"], draft.launch["nodes"]):
        where = " (on each node, RANK from 0 up)"
    errors.print(f"Run it with: {run_command(name, draft.launch)}{where}", markup=False, highlight=False)
    print(path)
