"""`podium recipes`: lists the recipes and shows what makes each of them."""

from typing import Annotated

import typer

from podium.cli.framework import CommandGroup
from podium.cli.options import AsJson, print_output

recipes = CommandGroup(help="List recipes, and show what makes each of them its paper's.")


@recipes.command(name="list", epilog="Example: [bold]podium recipes list --json[/bold]")
def list_recipes(as_json: AsJson = False) -> None:
    """List the recipes with their papers and the systems that train by them."""
    from podium.system_files.recipes import print_recipes, read_recipes, recipe_json

    found = read_recipes()
    print_output(as_json, {"recipes": [recipe_json(one) for one in found]}, lambda to: print_recipes(to, found))


@recipes.command(epilog="Example: [bold]podium recipes show presorted[/bold]")
def show(
    name: Annotated[str, typer.Argument(metavar="RECIPE", help="A recipe of `podium recipes list`.")],
    as_json: AsJson = False,
) -> None:
    """Show a recipe: its paper, its settings, and where they differ from MLPerf's reference."""
    from podium.system_files.recipes import find_recipe, print_recipe, recipe_json

    found = find_recipe(name)
    print_output(as_json, recipe_json(found), lambda to: print_recipe(to, found))
