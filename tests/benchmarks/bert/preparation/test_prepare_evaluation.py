"""The pick of the evaluation samples."""

import numpy as np
import pytest

from benchmarks.bert.preparation.prepare import evaluation_pick


@pytest.mark.parametrize(("number", "count"), [(10_000, 10_000), (10_833, 10_000), (156_726_829, 10_000), (3, 7)])
def test_it_is_the_reference_formula(number: int, count: int) -> None:
    picked = evaluation_pick(number, count)
    assert picked.dtype == np.int64
    ratio = number / count
    assert picked.tolist() == [int(i * ratio) for i in range(count)]


def test_the_ratio_rounds_as_the_reference_s_does() -> None:
    below = [
        (number, count)
        for number in range(1, 100)
        for count in range(1, 50)
        if evaluation_pick(number, count).tolist() != [i * number // count for i in range(count)]
    ]
    assert below, "somewhere the rounded ratio is what makes the difference"


@pytest.mark.parametrize(("number", "count"), [(0, 5), (5, 0)])
def test_nothing_can_be_picked_from_nothing(number: int, count: int) -> None:
    with pytest.raises(ValueError, match="cannot pick"):
        evaluation_pick(number, count)
