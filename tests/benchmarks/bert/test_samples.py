"""Samples in flat arrays."""

import numpy as np
import pytest

from benchmarks.bert.samples import gather, slice_samples
from tests.benchmarks.bert.formats.conftest import make_samples


@pytest.mark.parametrize(("first", "end"), [(0, 5), (0, 2), (1, 4), (3, 5), (2, 2)])
def test_section_equals_gather_of_the_same_indices(first: int, end: int) -> None:
    samples = make_samples([5, 64, 9, 30, 17], most=9)
    for one, other in zip(
        slice_samples(samples, first, end).arrays, gather(samples, np.arange(first, end)).arrays, strict=True
    ):
        assert one.dtype == other.dtype
        assert one.tolist() == other.tolist()
