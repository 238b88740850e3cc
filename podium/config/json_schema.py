"""JSON Schema of the configuration, the allowed values of single keys, and the schema of system files for editors.

All of it is derived from podium.config.schema. `podium config --schema` prints the schema of system files, which
systems/system.schema.json has.
"""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from functools import cache
from typing import Any

from pydantic import BaseModel

from podium.config.schema import RunConfig

SECTIONS = ("description", "launch", "reproduces")  # of a system's file; all other keys are in `bert`
INTERNAL = "system"  # set from the file's name
TYPES = {"string": "text", "integer": "whole number", "number": "number", "array": "list", "boolean": "true or false"}
# Keys of `bert` that neither a recipe nor a set of hyper-parameters supplies.
REQUIRED = ("recipe", "size", "global_batch_size", "max_samples")
SUPPLIED_ELSEWHERE = ("OptimizerSettings", "Clipping")  # sections whose keys a recipe or a set may supply
# YAML 1.1, which Podium reads, has numbers such as 60_000 that editors (YAML 1.2) take for text.
NUMBER_TEXT = {
    "integer": r"^[+-]?[0-9][0-9_]*$",
    "number": r"^[+-]?[0-9_]*\.?[0-9_]+([eE][+-]?[0-9]+)?$",
}

Schema = Mapping[str, Any]


@cache
def model_schema(model: type[BaseModel] = RunConfig) -> Schema:
    """JSON Schema of a model of the configuration, by the names of its keys."""
    return model.model_json_schema()


def non_null_schemas(value: Schema) -> list[Schema]:
    """Alternatives of a value's schema, without null."""
    return [option for option in value.get("anyOf", [value]) if option.get("type") != "null"]


def subschema(value: Schema, schema: Schema) -> Schema | None:
    """Schema of the section below a key, or of the entries of its list; None for plain values."""
    for option in non_null_schemas(value):
        reference = option.get("$ref") or option.get("items", {}).get("$ref")
        if reference:
            found: Schema = schema["$defs"][reference.rpartition("/")[2]]
            return found
    return None


def format_type(option: Schema) -> str:
    """Format the type and the bounds of a plain value, such as `whole number ≥ 1`."""
    kind = "path" if option.get("format") == "path" else TYPES[option["type"]]
    low, above = option.get("minimum"), option.get("exclusiveMinimum")
    high, below = option.get("maximum"), option.get("exclusiveMaximum")
    bounds = (("≥", low), (">", above), ("≤", high), ("<", below))
    return " ".join([kind, ", ".join(f"{sign} {bound:,}" for sign, bound in bounds if bound is not None)]).strip()


def format_list(option: Schema) -> str:
    """Format the number and the type of a list's entries, such as `list of 4: whole number ≥ 0`."""
    number = f" of {option['minItems']}" if option.get("minItems") == option.get("maxItems", 0) else ""
    return f"list{number}: {format_type(option['items'])}"


def allowed_values(location: Sequence[str], model: type[BaseModel]) -> str | None:
    """Describe the values that a key allows; None for an unknown key. Numbers in `location` are positions in lists."""
    schema = model_schema(model)
    part: Schema | None = schema
    value: Schema | None = None
    for key in location:
        if key.isdecimal() and value is not None:
            items = next((option["items"] for option in non_null_schemas(value) if "items" in option), None)
            value = items
            part = subschema(value, schema) if value is not None else None
        else:
            value = (part or {}).get("properties", {}).get(key)
            part = subschema(value, schema) if value is not None else None
        if value is None:
            return None
    if value is None:
        return None
    null = ["null"] if any(option.get("type") == "null" for option in value.get("anyOf", ())) else []
    return " or ".join([*dict.fromkeys(_format_option(option) for option in non_null_schemas(value)), *null])


def _format_option(option: Schema) -> str:
    if "enum" in option:
        return ", ".join(repr(one) for one in option["enum"])
    if "const" in option:
        return repr(option["const"])
    if "$ref" in option or option.get("type") == "object":
        return "a mapping of keys to values"
    if option.get("type") == "array":
        return "a list of mappings" if "$ref" in option["items"] else format_list(option)
    return format_type(option) if "type" in option else "text"


def system_schema(recipes: Sequence[str], hyperparameters: Sequence[str]) -> dict[str, Any]:
    """JSON Schema of a system's file, with the short forms that the loader reads, for editors.

    `recipes` and `hyperparameters` are the names that these keys allow. What depends on several keys, or on the recipe,
    is not part of it.
    """
    whole = deepcopy(dict(model_schema()))
    definitions = whole["$defs"]
    for name, definition in definitions.items():
        if name in SUPPLIED_ELSEWHERE:
            definition.pop("required", None)
        of_description = name == "Description"
        for key, value in definition["properties"].items():
            definition["properties"][key] = _text_field(value) if of_description else _with_short_forms(value)
    run = {
        key: _with_short_forms(value) for key, value in whole["properties"].items() if key not in (*SECTIONS, INTERNAL)
    }
    run["recipe"] |= {"enum": list(recipes)}
    name_of_set = {"enum": list(hyperparameters)}
    run["hyperparameters"] = {
        "description": run["hyperparameters"]["description"],
        "anyOf": [name_of_set, {"type": "array", "items": name_of_set}, {"type": "null"}],
    }
    bert = {
        "type": "object",
        "description": "The run: recipe, model, data, and all that differs from the recipe.",
        "additionalProperties": False,
        "required": list(REQUIRED),
        "properties": run,
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "System of Podium",
        "description": "A system and what is trained on it; see docs/configuration.md.",
        "type": "object",
        "additionalProperties": False,
        "required": ["launch", "bert"],
        "properties": {
            "description": {"anyOf": [{"$ref": "#/$defs/Description"}, {"type": "null"}]},
            "launch": {"$ref": "#/$defs/Launch"},
            "reproduces": whole["properties"]["reproduces"],
            "bert": bert,
        },
        "$defs": definitions,
    }


def _text_field(value: dict[str, Any]) -> dict[str, Any]:
    """Schema of a field of the description: every scalar is read as text."""
    return value if "enum" in value else value | {"type": ["string", "number", "boolean", "null"]}


def _with_short_forms(value: dict[str, Any]) -> dict[str, Any]:
    """Add the forms that are also read: numbers with underscores, and one path for a list of paths."""
    about = {key: value[key] for key in ("description", "default", "title") if key in value}
    about.pop("title", None)
    options: list[Any] = []
    for option in value.get("anyOf", [{key: part for key, part in value.items() if key not in about}]):
        plain = {key: part for key, part in option.items() if key not in ("title", "format")}
        if plain.get("type") == "array":
            items = _with_short_forms(plain["items"])
            options += [plain | {"items": items}, *([{"type": "string"}] if plain["items"].get("format") else [])]
        else:
            options.append(plain)
        if plain.get("type") in NUMBER_TEXT:
            options.append({"type": "string", "pattern": NUMBER_TEXT[plain["type"]]})
    return about | ({"anyOf": options} if len(options) > 1 else options[0])
