"""Messages for configuration errors: file and key, what was found, what is allowed."""

import difflib
from collections.abc import Mapping
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from podium.core.text import short_repr

Location = tuple[str, ...]


class Origins:
    """Record of the source, a file or the command line, of each key's value."""

    def __init__(self, file: Path, shown_under: str = "") -> None:
        """`file` and its section `shown_under` are named in messages about keys that no source sets."""
        self._file, self._shown_under = file, shown_under
        self._sources: dict[Location, tuple[str, str]] = {}

    def merge(
        self, values: dict[str, Any], more: Mapping[str, Any], source: str, shown_under: str = "", at: Location = ()
    ) -> None:
        """Merge `more` into `values`, key by key, and record the source; `at` is the path of both mappings."""
        for key, value in more.items():
            here = (*at, str(key))
            self._sources[here] = (source, shown_under)
            if isinstance(value, Mapping):
                if not isinstance(values.get(key), dict):
                    values[key] = {}
                self.merge(values[key], value, source, shown_under, here)
            else:
                values[key] = value

    def locate(self, location: Location) -> str:
        """Return `FILE: KEY` for a key: its source, or the file in which it should be set."""
        for end in range(len(location), 0, -1):
            if location[:end] in self._sources:
                source, shown_under = self._sources[location[:end]]
                return f"{source}: {'.'.join(filter(None, (shown_under, *location)))}"
        if not location:
            return str(self._file)
        section = "" if location[0] in ("description", "launch", "reproduces") else self._shown_under
        return f"{self._file}: {'.'.join(filter(None, (section, *location)))}"


def format_validation_error(error: ValidationError, model: type[BaseModel], origins: Origins) -> str:
    """Format a validation error as one line per fault, unknown keys first: they often cause the others."""
    details = sorted(error.errors(), key=lambda detail: detail["type"] != "extra_forbidden")
    return "\n".join(_format_detail(detail, model, origins) for detail in details)


def _format_detail(detail: ErrorDetails, model: type[BaseModel], origins: Origins) -> str:
    location = _key_path(detail["loc"], model)
    place = origins.locate(location)
    allowed = detail.get("ctx", {})
    found = f"found {short_repr(detail['input'])}"
    match detail["type"]:
        case "extra_forbidden":
            keys = _sibling_keys(location, model)
            close = difflib.get_close_matches(location[-1], keys, n=1)
            hint = f" (did you mean {close[0]}?)" if close else ""
            return f"{place}: there is no such key{hint}; allowed are {', '.join(keys)}"
        case "missing":
            return f"{place}: is missing; add it"
        case "model_type":
            return f"{place}: {found}; a mapping of keys to values is expected"
        case "literal_error":
            return f"{place}: {found}; allowed is {str(allowed['expected']).replace(' or ', ', ')}"
        case "value_error":
            return f"{place}: {detail['ctx']['error']}"
        case "int_parsing" | "int_from_float" | "int_type":
            return f"{place}: {found}; allowed: a whole number"
        case "float_parsing" | "float_type":
            return f"{place}: {found}; allowed: a number"
        case _:
            expectation = detail["msg"].removeprefix("Input should ").removeprefix("be ")
            return f"{place}: {found}; allowed: {expectation}"


def _key_path(location: tuple[int | str, ...], model: type[BaseModel]) -> Location:
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


def _submodel(model: type[BaseModel], key: str) -> type[BaseModel] | None:
    field = model.model_fields.get(key)
    if field is None:
        return None
    several = get_origin(field.annotation) in (Union, UnionType, tuple)
    options = get_args(field.annotation) if several else (field.annotation,)
    return next((o for o in options if isinstance(o, type) and issubclass(o, BaseModel)), None)
