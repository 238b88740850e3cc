"""Look-up of samples by stratum in the length index, compared with lists of all samples of a stratum."""

from collections.abc import Callable

import numpy as np
import pytest

from benchmarks.bert.length_index import StoredLengths
from podium.planning.balancing.indexed import _stable_argsort
from podium.planning.balancing.interface import AssignmentSpec
from podium.planning.batch_plan import TrainingOrder
from podium.planning.samplers import StratifiedSampler, stratum_bounds
from podium.planning.strata import Strata

RNG = np.random.default_rng(0)
ARRANGED: dict[str, Callable[[int], np.ndarray]] = {
    "mixed": lambda n: RNG.choice([20, 128, 129, 256, 300, 385, 512], n, p=[0.3, 0.1, 0.1, 0.1, 0.05, 0.05, 0.3]),
    "ascending": lambda n: np.sort(RNG.integers(1, 513, n)),
    "rare at both ends": lambda n: np.concatenate([[500], np.full(max(0, n - 2), 100), [400]])[:n],
    "all of one length": lambda n: np.full(n, 512),
}


def found_in_lists(lengths: np.ndarray, bounds: np.ndarray, stratum: int) -> np.ndarray:
    shorter = lengths > bounds[stratum - 1] if stratum else np.ones(len(lengths), dtype=bool)
    return np.flatnonzero(shorter & (lengths <= bounds[stratum]))


def assert_found(strata: Strata, lengths: np.ndarray, bounds: np.ndarray) -> None:
    for stratum in range(len(bounds)):
        expected = found_in_lists(lengths, bounds, stratum)
        assert strata.sizes[stratum] == len(expected)
        assert np.array_equal(strata.members(stratum), expected)
        numbers = RNG.integers(0, max(1, len(expected)), 300 if len(expected) else 0)
        assert np.array_equal(strata.indices(stratum, numbers), expected[numbers])


@pytest.mark.parametrize("arranged", ARRANGED)
@pytest.mark.parametrize("count", [1, 63, 64, 65, 128, 2047, 2048, 2049, 20_000])
def test_indices_equal_those_of_a_list(arranged: str, count: int) -> None:
    lengths, bounds = ARRANGED[arranged](count), stratum_bounds(512)
    for kind in (np.uint16, np.int64, np.uint32):
        assert_found(Strata(lengths.astype(kind), bounds), lengths, bounds)


@pytest.mark.parametrize(("longest", "masked"), [(512, 76), (128, 20), (512, 1), (4096, 600)])
def test_index_entries_are_scanned_without_a_copy(longest: int, masked: int) -> None:
    lengths = RNG.integers(1, longest + 1, 5000)
    index = StoredLengths.of(lengths, RNG.integers(1, masked + 1, 5000), longest, masked)
    index.entries.flags.writeable = False
    strata = Strata(index.lengths, stratum_bounds(longest))
    assert strata._values.base is index.entries
    assert_found(strata, lengths, stratum_bounds(longest))


def test_stratified_order_shares_memory_with_the_index() -> None:
    index = StoredLengths.of(ARRANGED["mixed"](5000), np.ones(5000, dtype=np.int64), 512, 76)
    order = TrainingOrder(
        index, seed=0, strategy="presorted", global_batch_size=64, spec=AssignmentSpec(4, 2), accumulation_steps=1
    )
    assert isinstance(order.sampler, StratifiedSampler)
    assert np.shares_memory(order.sampler._strata._values, index.entries)


def test_memory_besides_the_index_is_below_0_05_bytes_per_sample() -> None:
    lengths = ARRANGED["mixed"](200_000)
    assert Strata(lengths.astype(np.uint16), stratum_bounds(512)).nbytes < 0.05 * len(lengths)


@pytest.mark.parametrize("wrong", [0, -1, 513, 65_537, 2**32 + 5])
def test_length_outside_of_all_strata_is_an_error(wrong: int) -> None:
    lengths = np.full(100, 100, dtype=np.int64)
    lengths[7] = wrong
    with pytest.raises(ValueError, match="samples of 1 to 512 tokens"):
        Strata(lengths, stratum_bounds(512))


@pytest.mark.parametrize("count", [1, 2, 31, 32, 33, 500])
@pytest.mark.parametrize("greatest", [1, 20, 499, 500, 65_535])
def test_stable_argsort_equals_numpy(count: int, greatest: int) -> None:
    for _ in range(20):
        keys = RNG.integers(0, greatest + 1, count).astype(np.uint16)
        assert np.array_equal(_stable_argsort(keys), np.argsort(keys, kind="stable"))
