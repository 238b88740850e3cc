"""Duplicate samples: within a store, across shards, and in consecutive positions."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.bert.formats.rows import concatenate_samples
from benchmarks.bert.samples import Samples
from benchmarks.bert.shard import Shard
from benchmarks.bert.verification import duplicates, shard_stats
from benchmarks.bert.verification.duplicates import find_duplicates, hash_samples
from podium.core.finding import Finding

Verify = Callable[..., dict[str, Finding]]
ValidSamples = Callable[[int], Samples]
Reorder = Callable[[Samples, Any], Samples]
CHECKS = ("shared samples", "repeated samples", "repeats in a row")


def levels(findings: dict[str, Finding]) -> list[str]:
    return [findings[check].severity for check in CHECKS]


def test_equal_shards_are_detected(write_store: Any, valid_samples: ValidSamples, verify: Verify) -> None:
    store = write_store(valid_samples(1), valid_samples(2), valid_samples(1))
    findings = verify(store)
    assert levels(findings) == ["error", "error", "ok"]
    assert findings["shared samples"].message == f"1 pair of shards\n{store / 'a.h5'} and {store / 'c.h5'} share 100.0%"
    assert findings["repeated samples"].message == "1,500 of 4,500 (33.3333%)"


def test_shuffled_copy_is_detected(
    write_store: Any, valid_samples: ValidSamples, verify: Verify, reorder: Reorder
) -> None:
    order = np.random.default_rng(7).permutation(1_500)
    findings = verify(write_store(valid_samples(1), reorder(valid_samples(1), order)))
    assert levels(findings) == ["error", "error", "ok"]
    assert findings["shared samples"].message.endswith("share 100.0%")


def test_overlap_of_three_percent_is_detected(
    write_store: Any, valid_samples: ValidSamples, verify: Verify, reorder: Reorder
) -> None:
    order = np.random.default_rng(7).permutation(1_500)
    small = reorder(valid_samples(1), order[:1_000])
    mixed = concatenate_samples([reorder(small, range(30)), reorder(valid_samples(2), range(1_470))])
    store = write_store(small, mixed, *map(valid_samples, range(3, 10)))
    findings = verify(store)
    assert levels(findings) == ["error", "error", "ok"]
    assert findings["shared samples"].message.endswith("b.h5 share 3.0%")  # of the 1,000 samples of the smaller shard


def test_overlap_up_to_the_limit_is_accepted(
    write_store: Any, valid_samples: ValidSamples, verify: Verify, reorder: Reorder
) -> None:
    """15 of 1,500 samples are one percent, which is allowed for two shards; 15 of 3,015 are too many for a store."""
    mixed = concatenate_samples([valid_samples(1), reorder(valid_samples(2), range(15))])
    findings = verify(write_store(mixed, valid_samples(2)))
    assert findings["shared samples"].severity == "ok"
    more = concatenate_samples([valid_samples(1), reorder(valid_samples(2), range(16))])
    assert verify(write_store(more, valid_samples(2), name="more"))["shared samples"].severity == "error"
    one = concatenate_samples([valid_samples(1), reorder(valid_samples(2), range(1))])
    assert verify(write_store(one, valid_samples(2), name="one"))["repeated samples"].severity == "ok"
    assert verify(write_store(mixed, valid_samples(2), name="again"))["repeated samples"].severity == "error"


def test_equal_shards_are_reported_in_one_message(
    write_store: Any, valid_samples: ValidSamples, verify: Verify, reorder: Reorder
) -> None:
    copies = [reorder(valid_samples(1), np.random.default_rng(seed).permutation(1_500)) for seed in range(7)]
    found = verify(write_store(*copies))["shared samples"]
    assert (found.severity, found.message) == (
        "error",
        "all 7 shards hold the same samples: any two share at least 100.0%",
    )


def test_only_the_first_pairs_are_listed(write_store: Any, valid_samples: ValidSamples, verify: Verify) -> None:
    found = verify(write_store(*[valid_samples(1)] * 4, valid_samples(2)))["shared samples"].message.splitlines()
    assert found[0] == "6 pairs of shards"
    assert len(found) == 7
    assert found[-1] == "and 1 more"


def test_evaluation_samples_in_the_training_store_are_detected(
    write_store: Any, valid_samples: ValidSamples, verify: Verify, reorder: Reorder
) -> None:
    evaluation = write_store(reorder(valid_samples(2), range(700, 1_100)), name="evaluation")
    findings = verify(write_store(valid_samples(1), valid_samples(2)), evaluation=evaluation)
    assert levels(findings) == ["error", "error", "ok"]
    assert str(evaluation / "a.h5") in findings["shared samples"].message


def test_repeated_sample_in_one_shard_is_detected(
    write_store: Any, valid_samples: ValidSamples, verify: Verify, reorder: Reorder
) -> None:
    order = np.random.default_rng(7).permutation([*range(1_500), *[33] * 5])
    findings = verify(write_store(reorder(valid_samples(1), order), valid_samples(2)))
    assert levels(findings) == ["ok", "error", "ok"]
    assert findings["repeated samples"].message.startswith("5 of 3,005 ")


@pytest.mark.parametrize(("times", "level"), [(2, "ok"), (3, "error"), (9, "error")])
def test_consecutive_repeats_are_detected(
    write_store: Any, valid_samples: ValidSamples, verify: Verify, reorder: Reorder, times: int, level: str
) -> None:
    many = [valid_samples(n) for n in range(2, 8)]
    store = write_store(reorder(valid_samples(1), [*range(700), *[700] * times, *range(701, 1_500)]), *many)
    finding = verify(store)["repeats in a row"]
    assert finding.severity == level
    if level == "error":
        assert finding.message == f"{times - 1}, most of them in {store / 'a.h5'} ({times - 1})"


def test_unshuffled_repeats_are_detected(
    write_store: Any, valid_samples: ValidSamples, verify: Verify, reorder: Reorder
) -> None:
    in_order = reorder(valid_samples(1), np.repeat(np.arange(150), 10))
    findings = verify(write_store(in_order))
    assert findings["repeats in a row"].severity == "error"
    mixed = reorder(in_order, np.random.default_rng(1).permutation(1_500))
    assert verify(write_store(mixed, name="mixed"))["repeats in a row"].severity == "ok"


def one_of_each_change(samples: Samples, index: int) -> list[Samples]:
    """Copies of the samples with one value of sample `index` changed, in each array and each lane of a hashed word."""
    changed = []
    start, masked = int(samples.sample_offsets[index]), int(samples.masked_offsets[index])
    places = [("token_ids", start + n) for n in range(9)] + [
        (name, masked + n) for name in ("masked_positions", "masked_token_ids") for n in range(5)
    ]
    for name, place in [*places, ("first_segment_lengths", index), ("next_sentence_labels", index)]:
        array = vars(samples)[name].copy()
        array[place] ^= 1
        changed.append(replace(samples, **{name: array}))
    return changed


def test_hash_depends_on_every_value_of_a_sample(valid_samples: ValidSamples) -> None:
    samples = valid_samples(1)
    index = int(np.argmax(np.diff(samples.masked_offsets) > 5))
    hashes = hash_samples(samples)
    assert len(set(hashes.tolist())) == len(samples)
    for changed in one_of_each_change(samples, index):
        differing = np.flatnonzero(hash_samples(changed) != hashes)
        assert differing.tolist() == [index]


def test_hash_depends_on_order_and_array_boundaries(valid_samples: ValidSamples) -> None:
    def alone(tokens: list[int], positions: list[int], originals: list[int]) -> int:
        sample = Samples(
            np.array(tokens, dtype=np.uint16),
            np.array([0, len(tokens)]),
            np.array([3], dtype=np.uint16),
            np.array(positions, dtype=np.uint16),
            np.array(originals, dtype=np.uint16),
            np.array([0, len(positions)]),
            np.array([0], dtype=np.uint8),
        )
        return int(hash_samples(sample)[0])

    tokens = [2, 5, 3, 6, 7, 8, 9, 3]
    different = [
        alone(tokens, [1], [5]),
        alone([*tokens, 0], [1], [5]),
        alone(tokens[4:] + tokens[:4], [1], [5]),
        alone(tokens, [5], [1]),
        alone(tokens[:-1], [3], [5]),
        alone([2, 5, 3, 6, 8, 7, 9, 3], [1], [5]),
    ]
    assert len(set(different)) == len(different)


def test_hash_bits_are_balanced_and_independent(valid_samples: ValidSamples) -> None:
    bits = np.concatenate(
        [np.unpackbits(hash_samples(valid_samples(n)).view(np.uint8)).reshape(-1, 64) for n in range(1, 9)]
    )
    spread = 6 / np.sqrt(len(bits))
    assert np.abs(2 * bits.mean(axis=0) - 1).max() < spread
    together = np.corrcoef(bits.T) - np.eye(64)
    assert np.abs(together).max() < spread


@pytest.mark.parametrize("partition", [2**23, 256])
@pytest.mark.parametrize("work", [2**30, 1_000])
def test_shared_samples_equal_a_direct_count(
    write_store: Any,
    valid_samples: ValidSamples,
    monkeypatch: pytest.MonkeyPatch,
    reorder: Reorder,
    partition: int,
    work: int,
) -> None:
    """Exactly, also in small partitions; approximately where only a part of the hashes is counted."""
    monkeypatch.setattr(duplicates, "PARTITION_HASHES", partition)
    monkeypatch.setattr(duplicates, "MAX_PAIR_STEPS", work)
    random = np.random.default_rng(3)
    parts = [reorder(valid_samples(1), random.choice(1_500, 1_200)) for _ in range(5)] + [valid_samples(2)]
    store = write_store(*parts)
    paths = sorted(store.glob("*.h5"))
    hashes = [hash_samples(Shard(path).samples) for path in paths]
    found = find_duplicates(paths, hashes)
    merged = np.concatenate(hashes)
    assert (found.samples, found.repeated, found.collisions) == (7_500, 7_500 - len(np.unique(merged)), 0)
    assert found.compared > 100
    assert found.compared <= duplicates.MAX_COMPARED_PAIRS
    for one in range(6):
        for other in range(one + 1, 6):
            values, counts = np.unique(hashes[one], return_counts=True)
            other_counts = np.array([np.count_nonzero(hashes[other] == value) for value in values])
            expected = int(np.minimum(counts, other_counts).sum())
            if work == 2**30:
                assert found.shared[one, other] == expected
            else:
                assert found.shared[one, other] == pytest.approx(expected, rel=0.5)
    assert found.shared[np.tril_indices(6)].sum() == 0
    shares = found.shares([1_200, 600, *[1_200] * 4])
    assert shares[0, 1] == min(1, found.shared[0, 1] / 600) > shares[0, 2] == found.shared[0, 2] / 1_200 > 0.2


def test_hash_collisions_are_not_duplicates(
    write_store: Any, valid_samples: ValidSamples, verify: Verify, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard_stats, "hash_samples", lambda samples: np.arange(len(samples), dtype=np.uint64) << 50)
    findings = verify(write_store(valid_samples(1), valid_samples(2)))
    assert levels(findings) == ["ok", "ok", "ok"]
    assert findings["repeated samples"].message.startswith("0 of 3,000")


@pytest.mark.parametrize("name", ["token_ids", "first_segment_lengths", "masked_token_ids", "next_sentence_labels"])
def test_pairs_are_compared_in_all_arrays(
    tmp_path: Path, write_store: Any, valid_samples: ValidSamples, name: str
) -> None:
    array = vars(valid_samples(1))[name].copy()
    array[0] ^= 1
    store = write_store(valid_samples(1), replace(valid_samples(1), **{name: array}))
    hashes = np.arange(1_500, dtype=np.uint64)
    found = find_duplicates([store / "a.h5", store / "b.h5"], [hashes, hashes])
    assert (found.compared, found.collisions) == (1_500, 1)
    assert found.repeated == 1_499


def test_hashes_are_processed_in_partitions(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No more than the hashes of one partition are copied at a time."""
    monkeypatch.setattr(duplicates, "PARTITION_HASHES", 2**12)
    seen: list[int] = []
    select_partition = duplicates._select_partition

    def record(*given: Any) -> Any:
        found = select_partition(*given)
        seen.append(len(found[0]))
        return found

    monkeypatch.setattr(duplicates, "_select_partition", record)
    hashes = np.random.default_rng(2).integers(0, 2**64, 2**16, dtype=np.uint64)
    found = find_duplicates([tmp_path] * 8, np.split(hashes, 8))
    assert (found.repeated, found.samples, sum(seen)) == (0, 2**16, 2**16)
    assert max(seen) < 1.2 * 2**12


def test_statistics_keep_one_copy_of_a_shard_in_memory(
    write_store: Any, valid_samples: ValidSamples, reorder: Reorder
) -> None:
    import tracemalloc

    store = write_store(reorder(valid_samples(1), np.tile(np.arange(1_500), 8)))
    size = (store / "a.h5").stat().st_size
    shard_stats.compute_shard_statistics(store / "a.h5", None)
    tracemalloc.start()
    shard_stats.compute_shard_statistics(store / "a.h5", None)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert size > 8_000_000
    assert peak < 1.2 * size
