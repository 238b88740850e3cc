"""Combinations of settings of which the default run takes a selection in which every two values meet."""

from collections.abc import Hashable, Iterable, Sequence
from itertools import combinations
from typing import Any

import pytest

Row = tuple[Hashable, ...]


def covering(rows: Sequence[Row]) -> list[Row]:
    """Rows in which every two values that occur together in any row do so, at the same places."""

    def pairs(row: Row) -> set[tuple[object, ...]]:
        return {(one, row[one], other, row[other]) for one, other in combinations(range(len(row)), 2)}

    missing = set[tuple[object, ...]]().union(*map(pairs, rows))
    chosen = []
    while missing:
        chosen.append(max(rows, key=lambda row: len(pairs(row) & missing)))
        missing -= pairs(chosen[-1])
    return chosen


def pairs_by_default(rows: Iterable[Row]) -> list[Any]:
    """All rows as parameters; those that the covering does without are marked `exhaustive`."""
    rows = list(rows)
    chosen = covering(rows)
    return [pytest.param(*row, marks=() if row in chosen else pytest.mark.exhaustive) for row in rows]
