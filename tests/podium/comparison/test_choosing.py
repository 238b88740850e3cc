"""Which results are shown."""

import pytest

from benchmarks.errors import UsageError
from podium.comparison.choosing import choose
from podium.comparison.gathering import Comparison
from tests.podium.comparison.conftest import make_result

RESULTS = [
    make_result(),
    make_result(round="v2.1", accelerator="Habana Gaudi2", kind=None),
    make_result(round=None, division="open", accelerator=None, kind=None),
]
COMPARISON = Comparison(tuple(RESULTS), ("a note",))


@pytest.mark.parametrize(
    ("rounds", "accelerators", "divisions", "numbers"),
    [
        ([], [], [], [0, 1, 2]),
        (["2.1"], [], [], [1]),
        (["v2.0", "own"], [], [], [0, 2]),
        ([], ["a100"], [], [0]),
        ([], ["SXM4"], [], [0]),
        ([], ["gaudi", "A100"], [], [0, 1]),
        ([], [], ["open"], [2]),
        ([], [], ["open", "closed"], [0, 1, 2]),
        (["2.1"], ["A100"], [], []),
    ],
)
def test_choices(rounds: list[str], accelerators: list[str], divisions: list[str], numbers: list[int]) -> None:
    chosen = choose(COMPARISON, rounds, accelerators, divisions)
    assert chosen.results == tuple(RESULTS[number] for number in numbers)
    assert chosen.others == tuple(RESULTS[number] for number in range(3) if number not in numbers)
    assert chosen.notes == ("a note",)


def test_names_that_nothing_has() -> None:
    with pytest.raises(UsageError, match=r"--round v3\.0: no result is of it; there are own, v2\.0, v2\.1"):
        choose(COMPARISON, ["3.0"], [], [])
    with pytest.raises(UsageError, match="--accelerator h100: no result has one; there are Habana Gaudi2, NVIDIA A"):
        choose(COMPARISON, [], ["H100"], [])
    with pytest.raises(UsageError, match="--division Closed: allowed is closed or open"):
        choose(COMPARISON, [], [], ["Closed"])
