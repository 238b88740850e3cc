"""The indices of the evaluation samples."""

import numpy as np
import pytest

from benchmarks.bert.preparation.prepare import pick_evaluation_indices


@pytest.mark.parametrize(("number", "count"), [(10_000, 10_000), (10_833, 10_000), (156_726_829, 10_000), (3, 7)])
def test_indices_follow_the_reference_formula(number: int, count: int) -> None:
    picked = pick_evaluation_indices(number, count)
    assert picked.dtype == np.int64
    ratio = number / count
    assert picked.tolist() == [int(i * ratio) for i in range(count)]


def test_ratio_is_rounded_to_a_double_as_in_the_reference() -> None:
    below = [
        (number, count)
        for number in range(1, 100)
        for count in range(1, 50)
        if pick_evaluation_indices(number, count).tolist() != [i * number // count for i in range(count)]
    ]
    assert below, "for some numbers the rounded ratio must give other indices than the exact one"


@pytest.mark.parametrize(("number", "count"), [(0, 5), (5, 0)])
def test_zero_samples_or_zero_picks_are_errors(number: int, count: int) -> None:
    with pytest.raises(ValueError, match="cannot pick"):
        pick_evaluation_indices(number, count)
