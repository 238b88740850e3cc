"""Sorts results by one of their figures, and keeps the first of each benchmark."""

from collections.abc import Mapping, Sequence
from typing import Any

from podium.core.errors import UsageError
from podium.core.text import printable, short_repr

DEFAULT_KEY = "time_to_train"
# Headings of the tables in the terminal, as other names of keys.
HEADINGS = {
    "minutes": "time_to_train",
    "samples": "samples_to_target",
    "batch": "GBS",
    "samples/s": "samples_per_second_per_accelerator",
    "samples/s per accel": "samples_per_second_per_accelerator",
    "samples/s per node": "samples_per_second_per_node",
    "eval": "evaluation_share",
    "energy mj": "Energy",
    "accelerators": "accelerators_count",
}


def ranked(objects: Sequence[Mapping[str, Any]], key: str, top: int | None = None) -> list[int]:
    """Return the indices of rows in the order of a key, grouped by benchmark; of each the first `top` if given.

    `key` is a key of the rows or a heading of the table, in any case; with a leading `-` the largest comes first.
    Unknown values come last. Raises UsageError for a key that the rows do not have.
    """
    descending, name = key.startswith("-"), key.removeprefix("-")
    found = find_key(objects, name)
    if top is not None and top < 1:
        raise UsageError(f"--top: found {top}, allowed is 1 or more")
    if all(row[found] is None for row in objects):
        raise UsageError(f"--sort {name}: it is known of none of these results; sort by another key")
    by_benchmark: dict[str, list[int]] = {}
    for number, row in enumerate(objects):
        by_benchmark.setdefault(row["benchmark"], []).append(number)
    chosen: list[int] = []
    for benchmark in sorted(by_benchmark):
        numbers = by_benchmark[benchmark]
        known = [number for number in numbers if objects[number][found] is not None]
        known.sort(key=lambda number: _comparable(objects[number][found]), reverse=descending)
        chosen += [*known, *(number for number in numbers if objects[number][found] is None)][:top]
    return chosen


def find_key(objects: Sequence[Mapping[str, Any]], name: str) -> str:
    """Return the key of the rows that a user's name stands for. Raises UsageError for an unknown one."""
    keys = [key for key in objects[0] if not any(isinstance(row[key], list) for row in objects)]
    heading = " ".join(name.casefold().split()).rstrip(".")  # headings have several lines, and abbreviations
    wanted = HEADINGS.get(heading, heading).casefold()
    found = next((key for key in keys if key.casefold() == wanted), None)
    if found is None:
        raise UsageError(
            f"--sort {short_repr(printable(name))}: results have no such key to sort by; allowed are "
            f"{', '.join(sorted({*keys, *HEADINGS}, key=str.casefold))}, with a - before it for the largest first"
        )
    return found


def _comparable(value: Any) -> Any:
    return value.casefold() if isinstance(value, str) else value
