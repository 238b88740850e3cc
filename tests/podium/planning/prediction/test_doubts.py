"""Learning rates: those that were published pass, those far from them are doubted."""

import re

import pytest

from benchmarks.bert.published.reading import read_learning_rates
from podium.planning.prediction.doubts import learning_rate_doubt


def test_published_rates_and_those_within_a_factor_of_four_pass() -> None:
    rows = read_learning_rates()
    assert {row.optimizer for row in rows} == {"lamb", "adamw"}
    for row in rows:
        for factor in (1, 3.9, 1 / 3.9):
            assert learning_rate_doubt(row.optimizer, factor * row.learning_rate, row.global_batch_size) == []


@pytest.mark.parametrize(
    ("optimizer", "rate", "batch", "words"),
    [
        ("lamb", 100.0, 448, "learning_rate 100 is far from .*0.0004 to 0.000425 at 448"),
        ("lamb", 1e-5, 5000, "0.0035 at 4,608"),
        ("adamw", 4.25e-3, 448, "published with adamw .*0.000393 at 16,384"),
    ],
)
def test_rates_far_from_the_nearest_published_are_doubted(optimizer: str, rate: float, batch: int, words: str) -> None:
    (sentence,) = learning_rate_doubt(optimizer, rate, batch)
    assert re.search(words, sentence)
    assert "samples to target" in sentence


def test_an_optimizer_without_published_rates_is_not_doubted() -> None:
    assert learning_rate_doubt("sgd", 100.0, 448) == []
