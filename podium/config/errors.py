"""Error messages for a configuration: the file, the key, what was found, what is allowed."""

import difflib
from collections.abc import Mapping
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from podium.core.text import quoted

Location = tuple[str, ...]


class Origins:
    """Which file (or the command line) gave each key its value."""

    def __init__(self, file: Path, shown_under: str = "") -> None:
        """`file` and `shown_under` (a section) say where a key that nothing gave should have been given."""
        self._file, self._shown_under = file, shown_under
        self._given: dict[Location, tuple[str, str]] = {}

    def merge(
        self, values: dict[str, Any], more: Mapping[str, Any], source: str, shown_under: str = "", at: Location = ()
    ) -> None:
        """Put `more` over `values`, key by key, and remember where it came from; `at` is where both are."""
        for key, value in more.items():
            here = (*at, str(key))
            self._given[here] = (source, shown_under)
            if isinstance(value, Mapping):
                if not isinstance(values.get(key), dict):
                    values[key] = {}
                self.merge(values[key], value, source, shown_under, here)
            else:
                values[key] = value

    def place(self, location: Location) -> str:
        """ "FILE: KEY" of a key, or of where it should have been given."""
        for end in range(len(location), 0, -1):
            if location[:end] in self._given:
                source, shown_under = self._given[location[:end]]
                return f"{source}: {'.'.join(filter(None, (shown_under, *location)))}"
        if not location:
            return str(self._file)
        section = "" if location[0] in ("description", "launch") else self._shown_under
        return f"{self._file}: {'.'.join(filter(None, (section, *location)))}"


def explain(error: ValidationError, model: type[BaseModel], origins: Origins) -> str:
    """One line for each thing that is wrong, unknown keys first: they are often the cause of the rest."""
    details = sorted(error.errors(), key=lambda detail: detail["type"] != "extra_forbidden")
    return "\n".join(_explain_one(detail, model, origins) for detail in details)


def _explain_one(detail: ErrorDetails, model: type[BaseModel], origins: Origins) -> str:
    location = _keys(detail["loc"], model)
    place = origins.place(location)
    allowed = detail.get("ctx", {})
    found = f"found {quoted(detail['input'])}"
    match detail["type"]:
        case "extra_forbidden":
            keys = _keys_beside(location, model)
            close = difflib.get_close_matches(location[-1], keys, n=1)
            hint = f" (did you mean {close[0]}?)" if close else ""
            return f"{place}: there is no such key{hint}; allowed are {', '.join(keys)}"
        case "missing":
            return f"{place}: is missing; add it"
        case "model_type":
            return f"{place}: {found}; keys and values are expected below it"
        case "literal_error":
            return f"{place}: {found}; allowed is {str(allowed['expected']).replace(' or ', ', ')}"
        case "value_error":
            return f"{place}: {detail['ctx']['error']}"
        case _:
            expectation = detail["msg"].removeprefix("Input should ").removeprefix("be ")
            return f"{place}: {found}; allowed: {expectation}"


def _keys(location: tuple[int | str, ...], model: type[BaseModel]) -> Location:
    """The location as a user would write it: field names and numbers only."""
    keys: list[str] = []
    current: type[BaseModel] | None = model
    for part in location:
        known = current is not None and part in _field_names(current)
        if keys and current is None and not isinstance(part, int):
            continue
        keys.append(str(part))
        if isinstance(part, int):
            continue
        current = _model_of(current, str(part)) if known and current is not None else None
    return tuple(keys)


def _field_names(model: type[BaseModel]) -> list[str]:
    return [field.alias or name for name, field in model.model_fields.items()]


def _keys_beside(location: Location, model: type[BaseModel]) -> list[str]:
    current = model
    for key in location[:-1]:
        if key.isdecimal():
            continue
        current = _model_of(current, key) or current
    internal = {"system"} if current is model else set()
    return [name for name in _field_names(current) if name not in internal]


def _model_of(model: type[BaseModel], key: str) -> type[BaseModel] | None:
    field = model.model_fields.get(key)
    if field is None:
        return None
    several = get_origin(field.annotation) in (Union, UnionType, tuple)
    options = get_args(field.annotation) if several else (field.annotation,)
    return next((o for o in options if isinstance(o, type) and issubclass(o, BaseModel)), None)
