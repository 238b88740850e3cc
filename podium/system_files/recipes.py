"""`podium recipes`: what each recipe is, the papers it comes from, its settings, and the systems that use it.

All of it is read from the recipes' files: the comment at a file's head describes it.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from podium.config.load import load_system, read_configuration, recipe_files, system_names
from podium.core.console import print_line, text_table
from podium.core.errors import UsageError, attempt
from podium.core.text import did_you_mean
from podium.system_files.files import head_comment

IMPLEMENTATION = "pytorch"
BASELINE = "padded"  # trains as MLPerf's reference: what makes a recipe is where it differs from this one
PAPER = re.compile(r"arXiv (\d{4}\.\d{4,5})")


@dataclass(frozen=True)
class RecipeSummary:
    """A recipe as its file describes it."""

    name: str
    file: Path
    description: tuple[str, ...]  # sentences of the comment at the file's head
    papers: tuple[str, ...]  # addresses
    settings: dict[str, Any]  # by dotted key
    own_settings: tuple[str, ...]  # keys in which it differs from BASELINE
    systems: tuple[str, ...]  # that name it


def read_recipes() -> list[RecipeSummary]:
    """Return all recipes by name."""
    users: dict[str, list[str]] = {}
    for system in system_names():
        config = attempt(load_system, system)[0]  # a file of the user with errors must not end the list
        if config is not None:
            users.setdefault(config.recipe, []).append(system)
    files = {path.stem: path for path in recipe_files(IMPLEMENTATION)}
    baseline = _flatten(read_configuration(files[BASELINE]))
    found = []
    for name, path in files.items():
        text, settings = head_comment(path), _flatten(read_configuration(path))
        keys = [key for key in (*settings, *baseline) if settings.get(key) != baseline.get(key)]
        papers = tuple(f"https://arxiv.org/abs/{number}" for number in PAPER.findall(text))
        sentences = tuple(re.split(r"(?<=[.]) (?=[A-Z])", text))
        found.append(
            RecipeSummary(
                name, path, sentences, papers, settings, tuple(dict.fromkeys(keys)), tuple(users.get(name, ()))
            )
        )
    return found


def find_recipe(name: str) -> RecipeSummary:
    """Return a recipe. Raises UsageError if there is none of that name."""
    recipes = {one.name: one for one in read_recipes()}
    if name not in recipes:
        raise UsageError(
            f"there is no recipe {name!r}{did_you_mean(name, list(recipes))}; the recipes are {', '.join(recipes)}"
        )
    return recipes[name]


def recipe_json(recipe: RecipeSummary) -> dict[str, Any]:
    """Return a recipe as a JSON object."""
    return {
        "name": recipe.name,
        "file": str(recipe.file),
        "description": " ".join(recipe.description),
        "papers": list(recipe.papers),
        "settings": recipe.settings,
        f"differs_from_{BASELINE}": list(recipe.own_settings),
        "systems": list(recipe.systems),
    }


def print_recipes(console: Console, recipes: list[RecipeSummary]) -> None:
    """Print a row for each recipe."""
    table = text_table("recipe", "paper", "what it is", "systems", no_wrap="recipe")
    for one in recipes:
        papers = ", ".join(paper.rpartition("/")[2] for paper in one.papers) or "–"
        table.add_row(one.name, papers, Text(one.description[0]), ", ".join(one.systems) or "–")
    console.print(table)


def print_recipe(console: Console, recipe: RecipeSummary) -> None:
    """Print all that is known of a recipe."""
    print_line(console, recipe.name, style="bold")
    print_line(console, " ".join(recipe.description))
    print_line(console, f"File: {recipe.file}")
    print_line(console, f"Paper: {', '.join(recipe.papers) or 'none'}")
    table = text_table("setting", "value", f"differs from {BASELINE}, as MLPerf's reference trains", no_wrap="setting")
    for key in dict.fromkeys((*recipe.settings, *recipe.own_settings)):
        value = _format_value(recipe.settings[key]) if key in recipe.settings else "not set"
        table.add_row(key, Text(value), "yes" if key in recipe.own_settings else "")
    console.print(table)
    print_line(console, f"Systems: {', '.join(recipe.systems) or 'none'}")


def _format_value(value: Any) -> str:
    if isinstance(value, list) and any(isinstance(item, dict) for item in value):
        return "; ".join(", ".join(f"{k} {v}" for k, v in item.items()) for item in value)
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _flatten(values: dict[str, Any], above: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in values.items():
        found |= _flatten(value, f"{above}{key}.") if isinstance(value, dict) else {f"{above}{key}": value}
    return found
