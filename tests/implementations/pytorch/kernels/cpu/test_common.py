"""Counter-based random numbers: they match the published generator, are uniform and uncorrelated."""

import numpy as np
import pytest
import torch

from implementations.pytorch.kernels.cpu.common import draw_seed, draws_per_row, philox
from implementations.pytorch.kernels.interface import dropout_threshold_and_scale
from podium.core.jit import compiled
from tests.implementations.pytorch.kernels.cpu.masks import kept_mask


@compiled
def _one(counter: np.ndarray, key: np.ndarray, rounds: int) -> tuple[int, int, int, int]:
    return philox(counter[0], counter[1], counter[2], counter[3], key[0], key[1], rounds)  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("counter", "key", "rounds", "expected"),
    [
        ((0, 0, 0, 0), (0, 0), 7, (0x5F6FB709, 0x0D893F64, 0x4F121F81, 0x4F730A48)),
        ((0, 0, 0, 0), (0, 0), 10, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, 7, (0x5207DDC2, 0x45165E59, 0x4D8EE751, 0x8C52F662)),
        ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, 10, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    ],
)
def test_philox_matches_published_vectors(
    counter: tuple[int, ...], key: tuple[int, ...], rounds: int, expected: object
) -> None:
    """Known-answer vectors of the authors' library Random123."""
    assert _one(np.array(counter, np.uint64), np.array(key, np.uint64), rounds) == expected


@pytest.mark.parametrize("columns", [1, 7, 8, 64, 509, 512])
def test_kept_share_is_right_in_all_rows_and_columns(columns: int) -> None:
    rows = 400_000 // columns
    keeps = kept_mask(torch.tensor([12345]), rows, columns, 0.1).double()
    assert keeps.shape == (rows, columns)
    deviation = (0.9 * 0.1) ** 0.5
    assert abs(float(keeps.mean()) - 0.9) < 4.5 * deviation / (rows * columns) ** 0.5
    assert float((keeps.mean(0) - 0.9).abs().max()) < 5.5 * deviation / rows**0.5
    assert float((keeps.mean(1) - 0.9).abs().max()) < 6.5 * deviation / columns**0.5 + 1e-9


def test_masks_of_neighbours_and_seeds_are_uncorrelated() -> None:
    shape = (512, 512)
    one, other = kept_mask(torch.tensor([1]), *shape, 0.5), kept_mask(torch.tensor([2]), *shape, 0.5)
    pairs = [(one, other), (one[1:], one[:-1]), (one[:, 1:], one[:, :-1]), (one[:, 64:], one[:, :-64])]
    for a, b in pairs:
        assert abs(float((a == b).double().mean()) - 0.5) < 4.5 * 0.5 / a.numel() ** 0.5


def test_row_uses_64_bits_of_the_counter() -> None:
    """The row takes 64 bits of the counter."""

    @compiled
    def first(row: int) -> int:
        low, high = np.uint64(row) & np.uint64(0xFFFFFFFF), np.uint64(row) >> np.uint64(32)
        return philox(np.uint64(0), np.uint64(0), low, high, np.uint64(5), np.uint64(6), 7)[0]  # type: ignore[no-any-return]

    assert len({first(5), first(2**32 + 5), first(2**33 + 5)}) == 3


def test_seed_comes_from_torchs_generator() -> None:
    torch.manual_seed(4)
    one, other = draw_seed(0.1), draw_seed(0.1)
    torch.manual_seed(4)
    assert torch.equal(draw_seed(0.0), torch.zeros(1, dtype=torch.int64))  # nothing is drawn
    assert torch.equal(draw_seed(0.1), one)
    assert not torch.equal(one, other)
    assert torch.equal(kept_mask(one, 5, 5, 0.5), kept_mask(one.clone(), 5, 5, 0.5))


@pytest.mark.parametrize("probability", [0.0, 0.1, 0.5, 0.9])
def test_expectation_of_dropout_is_exact(probability: float) -> None:
    threshold, scale = dropout_threshold_and_scale(probability)
    assert scale * (65536 - threshold) / 65536 == pytest.approx(1, abs=1e-12)
    assert threshold / 65536 == pytest.approx(probability, abs=1e-5)


def test_draws_per_row_are_a_multiple_of_eight() -> None:
    assert [draws_per_row(n) for n in (1, 8, 9, 512)] == [8, 8, 16, 512]
