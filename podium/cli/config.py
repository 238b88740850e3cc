"""`podium config`: the resolved configuration of a system with the origin of each key, and the schema for editors."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from podium.cli.options import AsJson, Recipe, Settings, print_output
from podium.core.console import Console, print_line, print_message
from podium.core.errors import UsageError

if TYPE_CHECKING:
    from podium.config.load import LoadedSystem

DEFAULT = "default"
VALUE_WIDTH = 60  # longer values push the origin to the right
PLAIN_TEXT = re.compile(r"[A-Za-z/][\w ./+()-]*")  # YAML takes it for text without quotes


def config(
    system: Annotated[
        str | None, typer.Argument(help="A name in systems/, or the path of a system's YAML file.", show_default=False)
    ] = None,
    recipe: Recipe = None,
    settings: Settings = None,
    schema: Annotated[
        bool, typer.Option("--schema", help="Print the JSON Schema of system files, for editors, and nothing else.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Print the resolved configuration of a run, one key a line, with the origin of each value.

    An origin is the default, the recipe, a set of hyper-parameters, the system's file or the command line. Warns if
    the file overrides what makes the recipe the published method. Values `auto` are resolved when a run starts.
    """
    if schema:
        if system is not None or recipe or settings or as_json:
            raise UsageError("--schema is the same for all systems; leave the other arguments out")
        from podium.config.reference import schema_text

        print(schema_text(), end="")
        return
    if system is None:
        raise UsageError("name a system, such as laptop, or give --schema")
    from podium.config.load import resolve_system
    from podium.planning.hardware import hardware_warnings, require_hardware

    loaded = resolve_system(system, recipe, settings or [])
    require_hardware(loaded.config, loaded.origins.locate)  # as `podium run` does
    warnings = (*loaded.warnings, *hardware_warnings(loaded.config))
    for warning in warnings:
        print_message(f"warning: {warning}")
    entries = list(origins_of(loaded))
    document = {
        "system": loaded.config.system,
        "keys": [{"key": key, "value": value, "origin": origin} for key, value, origin in entries],
        "warnings": list(warnings),
    }
    print_output(as_json, document, lambda to: _print_entries(to, entries))


def origins_of(loaded: "LoadedSystem") -> Iterator[tuple[str, Any, str]]:
    """Yield dotted key, value and origin of each setting, in the order of the reference."""
    for key, value in _leaves(loaded.config.model_dump(mode="json", by_alias=True)):
        source = next((found for end in range(len(key), 0, -1) if (found := loaded.origins.source(key[:end]))), None)
        exact = loaded.origins.source(key)
        # A section that a source sets as a whole has its other keys by default.
        label = exact.label if exact else source.label if source and value is None and len(key) == 1 else DEFAULT
        yield ".".join(key), value, label


def _leaves(values: Mapping[str, Any], above: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for key, value in values.items():
        here = (*above, key)
        if isinstance(value, Mapping):
            yield from _leaves(value, here)
        else:
            yield here, value


def _print_entries(console: Console, entries: list[tuple[str, Any, str]]) -> None:
    lines = [(f"{key}: {_format(value)}", origin) for key, value, origin in entries]
    width = min(VALUE_WIDTH, max(len(line) for line, _ in lines))
    for line, origin in lines:
        print_line(console, f"{line:<{width}}  # {origin}")


def _format(value: Any) -> str:
    """Format a value as YAML on one line."""
    plain = isinstance(value, str) and PLAIN_TEXT.fullmatch(value)
    return str(value) if plain else json.dumps(value, ensure_ascii=False)
