"""Histograms of lengths: quantiles, masked tokens, and files."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks.bert.lengths import quantiles, read_histogram, reference_masked_counts
from podium.core.errors import UsageError


def test_quantiles_follow_the_histogram() -> None:
    histogram = np.array([0, 0, 1, 0, 3])
    assert quantiles(histogram, 4).tolist() == [2, 4, 4, 4]
    assert np.bincount(quantiles(histogram, 400)).tolist() == [0, 0, 100, 0, 300]


def test_masked_counts_are_as_in_the_reference() -> None:
    assert reference_masked_counts(np.array([3, 5, 100, 512], dtype=np.uint16)).tolist() == [1, 1, 15, 76]


def test_histogram_file_begins_with_length_one(tmp_path: Path) -> None:
    path = tmp_path / "h.json"
    path.write_text("[0, 0, 5, 2]")
    assert read_histogram(path).tolist() == [0, 0, 0, 5, 2]


@pytest.mark.parametrize(
    "text",
    [
        *("", "{}", "[]", "[0, 0]", "[0, 0, -1, 2]", '["a"]', "[1, 0, 2]", "[0, 0, Infinity]", "[0, 0, NaN]"),
        str([0, 0, *[1] * 511]),
        *("[0, 0, [1]]", "[0, 0, true]", "[0, 0, null]", "[" * 5000),
    ],
)
def test_invalid_histogram_is_an_error_that_names_the_option(tmp_path: Path, text: str) -> None:
    path = tmp_path / "h.json"
    path.write_text(text)
    with pytest.raises(UsageError, match=r"^--these: .*h\.json .*allowed is a JSON list of up to 512 counts"):
        read_histogram(path, "--these")


def test_missing_histogram_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"--lengths: .*none\.json cannot be read"):
        read_histogram(tmp_path / "none.json")
