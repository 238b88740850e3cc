"""The compiled random number generator: the same draws as CPython's."""

from random import Random

import numpy as np
import pytest

from benchmarks.bert.preparation.mt19937 import copy_state, draw_below, draw_float, draw_word, shuffle


@pytest.mark.parametrize("seed", [0, 12345, 2**63 - 1])
def test_draws_of_all_kinds_equal_those_of_cpython(seed: int) -> None:
    expected, kinds = Random(seed), Random(seed + 1)
    state = copy_state(expected)
    for _ in range(3000):
        kind = kinds.randrange(4)
        n = kinds.choice([1, 2, 3, 255, 256, 257, 30_522, 2**31 - 1, 2**31])
        if kind == 0:
            assert draw_word(state) == expected.getrandbits(32)
        elif kind == 1:
            assert draw_float(state) == expected.random()
        elif kind == 2:
            assert draw_below(state, n) == expected.randint(7, n + 6) - 7
        else:
            values = list(range(n % 1000))
            array = np.arange(n % 1000 + 5)
            shuffle(state, array, len(values))
            expected.shuffle(values)
            assert array.tolist() == [*values, *range(len(values), len(values) + 5)]
    assert state.tolist() == list(expected.getstate()[1])


def test_copying_the_state_does_not_change_the_generator() -> None:
    random = Random(3)
    before = random.getstate()
    draw_word(copy_state(random))
    assert random.getstate() == before
