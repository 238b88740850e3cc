"""The reference of all configuration keys in docs/configuration.md, generated from the schema.

`python -m podium.config.reference` writes it into that page, between the two comments that mark it.
"""

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from podium.config.hyperparameters import NEEDED
from podium.config.load import read_configuration, recipe_files
from podium.config.schema import RunConfig
from podium.core.errors import UsageError
from podium.core.files import write_whole
from podium.core.paths import CODE_FOLDER

PAGE = CODE_FOLDER / "docs" / "configuration.md"
BEGIN, END = "<!-- reference: begin -->", "<!-- reference: end -->"
SECTIONS = ("description", "launch")  # of a system's file; every other key is one of `bert`
INTERNAL = "system"  # given by the name of the file
TYPES = {"string": "text", "integer": "whole number", "number": "number", "array": "list"}

Schema = Mapping[str, Any]


def configuration_reference() -> str:
    """Markdown: a heading and a table of keys for each section of a system's file, in the schema's order."""
    schema = RunConfig.model_json_schema()
    sections = list(_sections(schema, schema, ()))
    return "\n".join(line for keys, part in sections for line in _section(keys, part, schema))


def with_reference(page: str) -> str:
    """The page with the present reference between its two marks. UsageError for a page without them."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise UsageError(f"{PAGE}: the lines {BEGIN} and {END} are missing; put the reference between them")
    return f"{before}{BEGIN}\n\n{configuration_reference()}\n{END}{after}"


def _sections(part: Schema, schema: Schema, keys: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Schema]]:
    """Each section by its keys: `description` and `launch` with what is below them first, then `bert`."""
    inner = {key: found for key, value in part["properties"].items() if (found := _model_of(value, schema))}
    if keys:
        yield keys, part
    for key in (key for key in inner if not keys and key in SECTIONS):
        yield from _sections(inner[key], schema, (key,))
    if not keys:
        yield (), part
    for key in (key for key in inner if keys or key not in SECTIONS):
        yield from _sections(inner[key], schema, (*keys, key))


def _section(keys: tuple[str, ...], part: Schema, schema: Schema) -> Iterator[str]:
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
            cells = (f"`{key}`", _allowed(value, schema, (*keys, key)), _default(key, value, part, keys), _text(value))
            yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
    yield ""


def _text(value: Schema) -> str:
    return " ".join(str(value["description"]).split())


def _options(value: Schema) -> list[Schema]:
    """The forms that a value may have, without null."""
    return [option for option in value.get("anyOf", [value]) if option.get("type") != "null"]


def _model_of(value: Schema, schema: Schema) -> Schema | None:
    """The section below a key, or of the entries of its list; None where it has plain values."""
    for option in _options(value):
        reference = option.get("$ref") or option.get("items", {}).get("$ref")
        if reference:
            found: Schema = schema["$defs"][reference.rpartition("/")[2]]
            return found
    return None


def _allowed(value: Schema, schema: Schema, keys: tuple[str, ...]) -> str:
    if _model_of(value, schema):
        anchor = "".join(character for character in ".".join(keys) if character != ".")
        below = f"[`{'.'.join(keys)}`](#{anchor})"
        return f"list of {below}" if value.get("type") == "array" else below
    (option,) = _options(value)
    if "enum" in option:
        return ", ".join(f"`{one}`" for one in option["enum"])
    if "const" in option:
        return f"`{option['const']}`"
    if option["type"] == "array":
        number = f" of {option['minItems']}" if option.get("minItems") == option.get("maxItems", 0) else ""
        return f"list{number}: {_kind(option['items'])}"
    return _kind(option)


def _kind(option: Schema) -> str:
    kind = "path" if option.get("format") == "path" else TYPES[option["type"]]
    low, above = option.get("minimum"), option.get("exclusiveMinimum")
    high, below = option.get("maximum"), option.get("exclusiveMaximum")
    bounds = (("≥", low), (">", above), ("≤", high), ("<", below))
    return " ".join([kind, ", ".join(f"{sign} {bound:,}" for sign, bound in bounds if bound is not None)]).strip()


def _default(key: str, value: Schema, part: Schema, keys: tuple[str, ...]) -> str:
    """What holds where the key is not given."""
    if key in part.get("required", ()):
        if keys == ("optimizer",) and key in NEEDED and key != "algorithm":
            return "of `hyperparameters`"
        return "of the recipe" if (*keys, key) in _recipe_keys() else "required"
    default = value["default"]
    if isinstance(default, bool) or default in (None, [], {}) or isinstance(default, dict):
        return "–"
    return f"`{default:g}`" if isinstance(default, float) else f"`{default}`"


def _recipe_keys() -> set[tuple[str, ...]]:
    """The keys that every shipped recipe gives, one or two deep."""
    found: list[set[tuple[str, ...]]] = []
    for path in recipe_files("pytorch"):
        recipe = read_configuration(path)
        below = {(key, inner) for key, value in recipe.items() if isinstance(value, dict) for inner in value}
        found.append({(key,) for key in recipe} | below)
    return set.intersection(*found)


def main(page: Path = PAGE) -> None:
    """Write the reference into its page. UsageError where there is no such page, as in an installation."""
    if not page.is_file():
        raise UsageError(f"{page}: there is no such page; run this in a clone of the repository")
    write_whole(page, with_reference(page.read_text(encoding="utf-8")))


if __name__ == "__main__":
    try:
        main()
    except UsageError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)
