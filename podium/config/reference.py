"""Generator of the reference of all configuration keys in docs/configuration.md, from the schema.

`python -m podium.config.reference` writes it into that page, between two marker comments, and the JSON Schema of system
files, which `podium config --schema` prints, to systems/system.schema.json.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks.bert.published.hyperparameters import hyperparameter_sets
from podium.config.hyperparameters import REQUIRED_KEYS
from podium.config.json_schema import (
    INTERNAL,
    SECTIONS,
    Schema,
    format_list,
    format_type,
    model_schema,
    non_null_schemas,
    subschema,
    system_schema,
)
from podium.config.load import read_configuration, recipe_files
from podium.core.errors import UsageError
from podium.core.files import write_atomically
from podium.core.paths import CODE_FOLDER

PAGE = CODE_FOLDER / "docs" / "configuration.md"
SCHEMA_FILE = CODE_FOLDER / "systems" / "system.schema.json"
BEGIN, END = "<!-- reference: begin -->", "<!-- reference: end -->"


def configuration_reference() -> str:
    """Return Markdown with a heading and a table of keys for each section of a system's file, in the schema's order."""
    schema = model_schema()
    sections = list(_sections(schema, schema, ()))
    return "\n".join(line for keys, part in sections for line in _render_section(keys, part, schema))


def schema_text() -> str:
    """Return the JSON Schema of system files as text."""
    recipes = [path.stem for path in recipe_files("pytorch")]
    return json.dumps(system_schema(recipes, list(hyperparameter_sets())), indent=2, ensure_ascii=False) + "\n"


def update_reference(page: str) -> str:
    """Return the page with the current reference between its markers. Raises UsageError if they are missing."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise UsageError(f"{PAGE}: the lines {BEGIN} and {END} are missing; add them where the reference belongs")
    return f"{before}{BEGIN}\n\n{configuration_reference()}\n{END}{after}"


def _sections(part: Schema, schema: Schema, keys: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Schema]]:
    """Yield (keys, schema) of each section: `description`, `launch`, `reproduces`, then `bert`."""
    inner = {key: found for key, value in part["properties"].items() if (found := subschema(value, schema))}
    if keys:
        yield keys, part
    for key in (key for key in inner if not keys and key in SECTIONS):
        yield from _sections(inner[key], schema, (key,))
    if not keys:
        yield (), part
    for key in (key for key in inner if keys or key not in SECTIONS):
        yield from _sections(inner[key], schema, (*keys, key))


def _render_section(keys: tuple[str, ...], part: Schema, schema: Schema) -> Iterator[str]:
    name = ".".join(keys) or "bert"
    about = part["description"] if keys else "The run: recipe, model, data, and all that differs from the recipe."
    yield f"### `{name}`"
    yield ""
    yield " ".join(about.split())
    yield ""
    yield "| key | allowed | default | meaning |"
    yield "|---|---|---|---|"
    for key, value in part["properties"].items():
        if keys or key not in (*SECTIONS, INTERNAL):
            cells = (
                f"`{key}`",
                _format_allowed(value, schema, (*keys, key)),
                _format_default(key, value, part, keys),
                _description(value),
            )
            yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
    yield ""


def _description(value: Schema) -> str:
    return " ".join(str(value["description"]).split())


def _format_allowed(value: Schema, schema: Schema, keys: tuple[str, ...]) -> str:
    if subschema(value, schema):
        anchor = "".join(character for character in ".".join(keys) if character != ".")
        below = f"[`{'.'.join(keys)}`](#{anchor})"
        return f"list of {below}" if value.get("type") == "array" else below
    (option,) = non_null_schemas(value)
    if "enum" in option:
        return ", ".join(f"`{one}`" for one in option["enum"])
    if "const" in option:
        return f"`{option['const']}`"
    return format_list(option) if option["type"] == "array" else format_type(option)


def _format_default(key: str, value: Schema, part: Schema, keys: tuple[str, ...]) -> str:
    """Default of a key, or where its value comes from if it has none."""
    if key in part.get("required", ()):
        if keys == ("optimizer",) and key in REQUIRED_KEYS and key != "algorithm":
            return "of `hyperparameters`"
        return "of the recipe" if (*keys, key) in _recipe_keys() else "required"
    default = value["default"]
    if isinstance(default, bool) or default in (None, "", [], {}) or isinstance(default, dict):
        return "–"
    return f"`{default:g}`" if isinstance(default, float) else f"`{default}`"


def _recipe_keys() -> set[tuple[str, ...]]:
    """Keys, one or two levels deep, that every shipped recipe sets."""
    found: list[set[tuple[str, ...]]] = []
    for path in recipe_files("pytorch"):
        recipe = read_configuration(path)
        below = {(key, inner) for key, value in recipe.items() if isinstance(value, dict) for inner in value}
        found.append({(key,) for key in recipe} | below)
    return set.intersection(*found)


def main(page: Path = PAGE, schema_file: Path = SCHEMA_FILE) -> None:
    """Write the reference into its page, and the schema of system files.

    Raises UsageError if the page is missing, as in an installation.
    """
    if not page.is_file():
        raise UsageError(f"{page}: there is no such page; run this in a clone of the repository")
    write_atomically(page, update_reference(page.read_text(encoding="utf-8")))
    write_atomically(schema_file, schema_text())


if __name__ == "__main__":
    try:
        main()
    except UsageError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)
