"""JSON from strangers: bounded in depth and size, and what json.loads lets through silently is told.

json.loads takes NaN and Infinity, turns 1e999 into infinity, keeps the last of two equal keys and reads integers of any
length up to Python's own limit. Here such a number becomes null, the last of two equal keys counts, as it does for the
official tools, and both are told.
"""

import json
import math
from collections.abc import Callable, Sequence
from typing import Any

MAX_DEPTH = 32
MAX_VALUES = 10_000
MAX_DIGITS = 20
"""Of an integer: those of 2^64."""


def parse(text: str) -> tuple[Any, Sequence[str]]:
    """The value of a JSON text, and what is odd about it, as sentence fragments.

    Raises ValueError with a fragment that says why it is no JSON, or is larger or deeper than anything sensible.
    """
    opened = text.count("[") + text.count("{")
    if opened + text.count(",") > MAX_VALUES:
        raise ValueError(f"holds more than {MAX_VALUES:,} values")
    try:
        value = _PLAIN.decode(text)
    except _OutOfRangeError:
        value = None
    except json.JSONDecodeError as error:
        raise ValueError(f"is no JSON ({error.msg} at character {error.pos:,})") from None
    except RecursionError:
        raise ValueError(f"is nested more than {MAX_DEPTH} deep") from None
    else:
        if opened > MAX_DEPTH and _depth(value) > MAX_DEPTH:
            raise ValueError(f"is nested more than {MAX_DEPTH} deep")
        if text.count('":') + text.count('" :') == _key_count(value):
            return value, ()
    try:
        return _parse_odd(text)
    except json.JSONDecodeError as error:  # an odd number stood before what makes the text no JSON
        raise ValueError(f"is no JSON ({error.msg} at character {error.pos:,})") from None
    except RecursionError:
        raise ValueError(f"is nested more than {MAX_DEPTH} deep") from None


class _OutOfRangeError(Exception):
    """A number that the quick way does not take."""


def _int(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise _OutOfRangeError(f"an integer of {len(digits):,} digits")
    return int(digits)


def _float(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise _OutOfRangeError(f"a number that is too great ({digits[:20]})")
    return value


def _constant(name: str) -> float:
    raise _OutOfRangeError(f"{name}, which is no number")


_PLAIN = json.JSONDecoder(parse_int=_int, parse_float=_float, parse_constant=_constant)


def _parse_odd(text: str) -> tuple[Any, Sequence[str]]:
    """The slow way, which tells what is odd."""
    odd: list[str] = []

    def tolerant(parse_number: Callable[[str], Any]) -> Callable[[str], Any]:
        def parse_or_none(digits: str) -> Any:
            try:
                return parse_number(digits)
            except _OutOfRangeError as error:
                odd.append(f"has {error}")
                return None

        return parse_or_none

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        whole = dict(items)
        if len(whole) != len(items):
            names = [name for name, _ in items]
            twice = next(name for name in names if names.count(name) > 1)
            odd.append(f"has the key {twice[:40]!r} {names.count(twice)} times")
        return whole

    decoder = json.JSONDecoder(
        parse_int=tolerant(_int),
        parse_float=tolerant(_float),
        parse_constant=tolerant(_constant),
        object_pairs_hook=pairs,
    )
    value = decoder.decode(text)
    if _depth(value) > MAX_DEPTH:
        raise ValueError(f"is nested more than {MAX_DEPTH} deep")
    return value, odd


def _children(value: Any) -> Sequence[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else ()


def _depth(value: Any) -> int:
    """How many lists and objects are inside one another."""
    depth, level = 0, [value]
    while level := [item for item in level if isinstance(item, dict | list)]:
        depth += 1
        level = [child for item in level for child in _children(item)]
    return depth


def _key_count(value: Any) -> int:
    count, level = 0, [value]
    while level:
        count += sum(len(item) for item in level if isinstance(item, dict))
        level = [child for item in level for child in _children(item) if isinstance(child, dict | list)]
    return count
