"""Messages for configuration errors: file and key, what was found, what is allowed."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from podium.config.json_schema import SECTIONS, allowed_values
from podium.core.text import did_you_mean, short_repr

Location = tuple[str, ...]
Blame = Callable[[Location, str], str | None]


@dataclass(frozen=True)
class Source:
    """Origin of a key's value: its name in a list of settings, and the place where a user changes the value."""

    label: str  # such as `recipe indexed`
    place: str  # a file, or an option of the command line
    section: str = ""  # of the file
    supplied_by: str = ""  # what the value is from, where that is not the place to change it

    def locate(self, location: Location) -> str:
        """Return the place of a key for a message: `FILE: KEY` or `--set KEY`."""
        key = ".".join(filter(None, (self.section, *location)))
        if self.place.startswith("--"):
            return f"{self.place} {key}"
        return f"{self.place}: {key}" + (f" (of {self.supplied_by})" if self.supplied_by else "")


class Origins:
    """Record of the source of each key's value."""

    def __init__(self, file: Path | str, shown_under: str = "") -> None:
        """`file` and its section `shown_under` are named in messages about keys that no source sets."""
        self._file, self._shown_under = file, shown_under
        self._sources: dict[Location, Source] = {}

    def merge(self, values: dict[str, Any], more: Mapping[str, Any], source: Source, at: Location = ()) -> None:
        """Merge `more` into `values`, key by key, and record the source; `at` is the path of both mappings."""
        for key, value in more.items():
            here = (*at, str(key))
            if not isinstance(value, Mapping) or not isinstance(values.get(key), dict):
                self._forget(here)
            self._sources[here] = source
            if isinstance(value, Mapping):
                if not isinstance(values.get(key), dict):
                    values[key] = {}
                self.merge(values[key], value, source, here)
            else:
                values[key] = value

    def record(self, location: Location, source: Source) -> None:
        """Record the source of a key whose value is derived from others."""
        self._sources[location] = source

    def _forget(self, location: Location) -> None:
        """Remove the sources of all keys below a value that is replaced as a whole."""
        for other in [one for one in self._sources if one[: len(location)] == location]:
            del self._sources[other]

    def source(self, location: Location) -> Source | None:
        """Source of exactly this key; None if it has its default."""
        return self._sources.get(location)

    def locate(self, location: Location) -> str:
        """Return the place of a key: its source, or the file in which it should be set."""
        for end in range(len(location), 0, -1):
            if location[:end] in self._sources:
                return self._sources[location[:end]].locate(location)
        return self.locate_in_file(location)

    def holds(self, key: str) -> bool:
        """Whether a key without a section is in the file's section `shown_under`; True if there are no sections."""
        return not self._shown_under or key not in SECTIONS

    def locate_in_file(self, location: Location) -> str:
        """Return the place of a key in the file."""
        if not location:
            return str(self._file)
        section = "" if location[0] in SECTIONS else self._shown_under
        return f"{self._file}: {'.'.join(filter(None, (section, *location)))}"


def format_validation_error(
    error: ValidationError, model: type[BaseModel], origins: Origins, blame: Blame | None = None
) -> str:
    """Format a validation error as one line per fault, unknown keys first: they often cause the others.

    `blame` returns the options of the command line that cause a fault of several keys together, or None if the file
    has it.
    """
    details = sorted(error.errors(), key=lambda detail: detail["type"] != "extra_forbidden")
    return "\n".join(_format_detail(detail, model, origins, blame) for detail in details)


def _format_detail(detail: ErrorDetails, model: type[BaseModel], origins: Origins, blame: Blame | None) -> str:
    location = key_path(detail["loc"], model)
    place = origins.locate(location)
    if detail["type"] == "value_error" and isinstance(detail["input"], Mapping) and blame is not None:  # several keys
        place = blame(location, detail["type"]) or origins.locate_in_file(location)
    limits = detail.get("ctx", {})
    allowed = allowed_values(location, model)
    found = f"found {_as_written(detail['input'])}"
    match detail["type"]:
        case "extra_forbidden":
            keys = _sibling_keys(location, model)
            if place == origins.locate_in_file(location):  # where the sections are beside `bert`, not in it
                keys = [key for key in keys if len(location) > 1 or origins.holds(key)]
            elsewhere = _keys_of_sections(location[-1], model) if len(location) == 1 else []
            hint = f" (did you mean {' or '.join(elsewhere)}?)" if elsewhere else did_you_mean(location[-1], keys)
            given = _given_keys(place, detail["input"])
            missing = f"no key {location[-1]}" if given != place else "no such key"
            return f"{given}: there is {missing}{hint}; allowed are {', '.join(keys)}"
        case "missing":
            return f"{place}: is missing; add it" + (f" (allowed: {allowed})" if allowed else "")
        case "model_type" | "model_attributes_type":
            keys, or_null = (
                _sibling_keys((*location, ""), model),
                " or null" if (allowed or "").endswith("null") else "",
            )
            return f"{place}: {found}; allowed is a mapping with the keys {', '.join(keys)}{or_null}"
        case "literal_error":
            return f"{place}: {found}; {_allowed(allowed or str(limits['expected']))}"
        case "truth_value":
            text = str(detail["input"]).lower()
            return f"{place}: found {text}; a truth value is not allowed here" + (
                f"; {_allowed(allowed)}" if allowed else ""
            )
        case "value_error":
            return f"{place}: {limits['error']}"
        case "int_parsing" | "int_from_float" | "int_type" | "int_parsing_size":
            kind = allowed if allowed and allowed.startswith("whole number") else "whole number"
            return f"{place}: {found}; allowed: a {kind}{_as_digits(detail['input'])}"
        case "float_parsing" | "float_type":
            return f"{place}: {found}; allowed: a number"
        case "string_type" | "string_unicode" | "tuple_type" | "list_type" | "path_type" | "dict_type" | "bool_type":
            return f"{place}: {found}; allowed: {allowed or TYPE_NAMES.get(detail['type'], 'another type of value')}"
        case "string_too_short" if limits.get("min_length") == 1:
            return f"{place}: {found}; allowed: text that is not empty"
        case "string_pattern_mismatch":
            example = PATTERN_EXAMPLES.get(location[-1] if not location[-1].isdecimal() else location[-2])
            return f"{place}: {found}; allowed: {example or 'text of the form ' + str(limits['pattern'])}"
        case "too_short" | "too_long":
            limit = limits.get("min_length", limits.get("max_length"))
            bound = "at least" if detail["type"] == "too_short" else "at most"
            kind = f" ({allowed})" if allowed and allowed.startswith("list") else ""
            return f"{place}: {found}; allowed: {bound} {limit} item{'' if limit == 1 else 's'}{kind}"
        case "invalid_key":
            return f"{place}: found {short_repr(detail['input'])} as a key; allowed: keys that are text"
        case _:
            expectation = detail["msg"].removeprefix("Input should ").removeprefix("be ")
            return f"{place}: {found}; allowed: {expectation}"


def _allowed(values: str) -> str:
    """`allowed is` before one value or one kind of values, `allowed are` before names, such as 'auto', 'fp32'."""
    several = re.match(r"'[^']*', ", values)
    return f"allowed {'are' if several else 'is'} {values}"


def _as_written(value: Any) -> str:
    """A value for an error message; null as in YAML."""
    return "null" if value is None else short_repr(value)


def _given_keys(place: str, value: Any) -> str:
    """The options that gave the keys below one that does not exist, such as `--set optimzer.learning_rate`."""
    if not place.startswith("--") or not isinstance(value, Mapping) or not value:
        return place
    return ", ".join(_given_keys(f"{place}.{key}", below) for key, below in value.items())


TYPE_NAMES = {
    "string_type": "text",
    "tuple_type": "a list",
    "list_type": "a list",
    "path_type": "a path",
    "dict_type": "a mapping of keys to values",
    "bool_type": "true or false",
}
PATTERN_EXAMPLES = {
    "mounts": "HOST:CONTAINER or HOST:CONTAINER:ro, such as data:/data:ro, where CONTAINER is an absolute path",
    "rendezvous": "HOST:PORT, such as node1:29500 or [fd00::1]:29500",
}


def key_path(location: tuple[int | str, ...], model: type[BaseModel]) -> Location:
    """Convert pydantic's location to the keys a user writes: it also has names of union members and validators."""
    keys: list[str] = []
    current: type[BaseModel] | None = model
    for part in location:
        known = current is not None and part in _field_names(current)
        if keys and current is None and not isinstance(part, int):
            continue
        keys.append(str(part))
        if isinstance(part, int):
            continue
        current = _submodel(current, str(part)) if known and current is not None else None
    return tuple(keys)


def _field_names(model: type[BaseModel]) -> list[str]:
    return [field.alias or name for name, field in model.model_fields.items()]


def _sibling_keys(location: Location, model: type[BaseModel]) -> list[str]:
    current = model
    for key in location[:-1]:
        if key.isdecimal():
            continue
        current = _submodel(current, key) or current
    internal = {"system"} if current is model else set()
    return [name for name in _field_names(current) if name not in internal]


def _keys_of_sections(name: str, model: type[BaseModel]) -> list[str]:
    """The dotted keys of this name in the sections of a model, such as `launch.nodes`."""
    sections = {section: _submodel(model, section) for section in model.model_fields}
    return [f"{section}.{name}" for section, below in sections.items() if below and name in _field_names(below)]


def _as_digits(found: Any) -> str:
    """How to write a whole number that was written as 4.6e6 or 4,600,000; "" for other values."""
    if not isinstance(found, str):
        return ""
    try:
        number = float(found.replace(",", ""))
    except ValueError:
        return ""
    return f"; write {number:.0f}" if number.is_integer() and abs(number) < 2**53 else ""


def _submodel(model: type[BaseModel], key: str) -> type[BaseModel] | None:
    field = model.model_fields.get(key)
    if field is None:
        return None
    several = get_origin(field.annotation) in (Union, UnionType, tuple)
    options = get_args(field.annotation) if several else (field.annotation,)
    return next((o for o in options if isinstance(o, type) and issubclass(o, BaseModel)), None)
