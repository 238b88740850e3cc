"""The selection of combinations that the default run takes."""

from itertools import combinations, product

from tests.implementations.pytorch.pairwise import covering, pairs_by_default

ROWS = [row for row in product("abcd", "xyz", (True, False), (None, 1)) if row[:3] != ("a", "x", True)]


def test_every_two_values_that_occur_together_are_selected() -> None:
    chosen = covering(ROWS)
    for places in combinations(range(4), 2):
        assert {tuple(row[n] for n in places) for row in chosen} == {tuple(row[n] for n in places) for row in ROWS}
    assert set(chosen) <= set(ROWS)
    assert len(chosen) < len(ROWS) / 2


def test_the_rest_is_marked_exhaustive() -> None:
    parameters = pairs_by_default(ROWS)
    assert [parameter.values for parameter in parameters] == ROWS
    assert [parameter.values for parameter in parameters if not parameter.marks] == sorted(
        covering(ROWS), key=ROWS.index
    )
