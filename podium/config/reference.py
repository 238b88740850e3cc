"""Generator of the reference of all configuration keys in docs/configuration.md, from the schema.

`python -m podium.config.reference` writes it into that page, between two marker comments.
"""

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from podium.config.hyperparameters import REQUIRED_KEYS
from podium.config.load import read_configuration, recipe_files
from podium.config.schema import RunConfig
from podium.core.errors import UsageError
from podium.core.files import write_atomically
from podium.core.paths import CODE_FOLDER

PAGE = CODE_FOLDER / "docs" / "configuration.md"
BEGIN, END = "<!-- reference: begin -->", "<!-- reference: end -->"
SECTIONS = ("description", "launch", "reproduces")  # of a system's file; all other keys are in `bert`
INTERNAL = "system"  # set from the file's name
TYPES = {"string": "text", "integer": "whole number", "number": "number", "array": "list"}

Schema = Mapping[str, Any]


def configuration_reference() -> str:
    """Return Markdown with a heading and a table of keys for each section of a system's file, in the schema's order."""
    schema = RunConfig.model_json_schema()
    sections = list(_sections(schema, schema, ()))
    return "\n".join(line for keys, part in sections for line in _render_section(keys, part, schema))


def update_reference(page: str) -> str:
    """Return the page with the current reference between its markers. Raises UsageError if they are missing."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise UsageError(f"{PAGE}: the lines {BEGIN} and {END} are missing; add them where the reference belongs")
    return f"{before}{BEGIN}\n\n{configuration_reference()}\n{END}{after}"


def _sections(part: Schema, schema: Schema, keys: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Schema]]:
    """Yield (keys, schema) of each section: `description`, `launch`, `reproduces`, then `bert`."""
    inner = {key: found for key, value in part["properties"].items() if (found := _subschema(value, schema))}
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


def _non_null_schemas(value: Schema) -> list[Schema]:
    """Alternatives of a value's schema, without null."""
    return [option for option in value.get("anyOf", [value]) if option.get("type") != "null"]


def _subschema(value: Schema, schema: Schema) -> Schema | None:
    """Schema of the section below a key, or of the entries of its list; None for plain values."""
    for option in _non_null_schemas(value):
        reference = option.get("$ref") or option.get("items", {}).get("$ref")
        if reference:
            found: Schema = schema["$defs"][reference.rpartition("/")[2]]
            return found
    return None


def _format_allowed(value: Schema, schema: Schema, keys: tuple[str, ...]) -> str:
    if _subschema(value, schema):
        anchor = "".join(character for character in ".".join(keys) if character != ".")
        below = f"[`{'.'.join(keys)}`](#{anchor})"
        return f"list of {below}" if value.get("type") == "array" else below
    (option,) = _non_null_schemas(value)
    if "enum" in option:
        return ", ".join(f"`{one}`" for one in option["enum"])
    if "const" in option:
        return f"`{option['const']}`"
    if option["type"] == "array":
        number = f" of {option['minItems']}" if option.get("minItems") == option.get("maxItems", 0) else ""
        return f"list{number}: {_format_type(option['items'])}"
    return _format_type(option)


def _format_type(option: Schema) -> str:
    kind = "path" if option.get("format") == "path" else TYPES[option["type"]]
    low, above = option.get("minimum"), option.get("exclusiveMinimum")
    high, below = option.get("maximum"), option.get("exclusiveMaximum")
    bounds = (("≥", low), (">", above), ("≤", high), ("<", below))
    return " ".join([kind, ", ".join(f"{sign} {bound:,}" for sign, bound in bounds if bound is not None)]).strip()


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


def main(page: Path = PAGE) -> None:
    """Write the reference into its page. Raises UsageError if the page is missing, as in an installation."""
    if not page.is_file():
        raise UsageError(f"{page}: there is no such page; run this in a clone of the repository")
    write_atomically(page, update_reference(page.read_text(encoding="utf-8")))


if __name__ == "__main__":
    try:
        main()
    except UsageError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)
