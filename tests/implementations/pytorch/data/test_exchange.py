"""Sample exchange: the same batches bit for bit, and each sample is read once, by the rank that it was drawn for."""

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.bert.samples import gather
from benchmarks.bert.store import SampleStore
from implementations.pytorch.data.exchange import GRACE_SECONDS, ExchangePlan
from implementations.pytorch.data.loader import ExchangePrefetcher
from podium.core.errors import UsageError
from podium.planning.balancing.interface import AssignmentSpec
from podium.planning.batch_plan import TrainingOrder
from podium.planning.samplers import part_bounds

SAMPLES, RANKS, BATCH, STEPS = 200, 4, 24, 9
CASES = ("exchanged", "accumulated", "indexed", "packed", "presorted", "padded", "one_piece")
PER_RANK = ("exchanged", "indexed", "packed", "padded")


@pytest.fixture(scope="module")
def ranks(
    tmp_path_factory: pytest.TempPathFactory,
    write_store: Callable[..., Path],
    wikipedia_lengths: Callable[[int, int], np.ndarray],
    start_ranks: Callable[..., None],
) -> list[dict[str, Any]]:
    """The results of four ranks."""
    folder = tmp_path_factory.mktemp("exchange")
    shard = write_store(folder / "store", wikipedia_lengths(SAMPLES, 3))
    worker = Path(__file__).with_name("exchange_worker.py")
    outs = [folder / f"{rank}.json" for rank in range(RANKS)]
    start_ranks(worker, [(shard, folder / "rendezvous", rank, RANKS, out) for rank, out in enumerate(outs)])
    return [json.loads(out.read_text(encoding="utf-8")) for out in outs]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.slow
def test_exchanged_steps_equal_those_of_a_reader_of_all_data(ranks: list[dict[str, Any]], case: str) -> None:
    assert [rank[case]["same"] for rank in ranks] == [[True] * STEPS] * RANKS


@pytest.mark.parametrize("case", CASES)
@pytest.mark.slow
def test_every_sample_is_read_once_and_trained_on_once(ranks: list[dict[str, Any]], case: str) -> None:
    read, trained = (Counter(i for rank in ranks for i in rank[case][what]) for what in ("read", "trained"))
    assert read == trained
    assert sum(read.values()) == STEPS * BATCH
    assert {rank[case]["measured"]["samples"] for rank in ranks} == {len(rank[case]["trained"]) for rank in ranks}


@pytest.mark.parametrize("case", PER_RANK)
@pytest.mark.slow
def test_rank_reads_only_its_part(ranks: list[dict[str, Any]], case: str) -> None:
    bounds = part_bounds(SAMPLES, RANKS)
    for number, rank in enumerate(ranks):
        assert all(bounds[number] <= index < bounds[number + 1] for index in rank[case]["read"])
    if case != "padded":
        strangers = [set(rank[case]["trained"]) - set(rank[case]["read"]) for rank in ranks]
        assert all(strangers), "no samples were exchanged"


@pytest.mark.slow
def test_exchange_statistics(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        measured = rank["exchanged"]["measured"]
        assert measured["pieces"] == 3  # of 4, 4 and 1 steps
        assert rank["one_piece"]["measured"]["pieces"] == 1
        assert measured["reading_seconds"] > 0 < measured["sending_seconds"]
        assert measured["first_wait_seconds"] > 0
        assert rank["padded"]["measured"]["sent_bytes"] == 0
    sent = sum(rank["exchanged"]["measured"]["sent_bytes"] for rank in ranks)
    assert 0.5 * 3 / 4 < sent / (STEPS * BATCH * (2 * 250 + 4 * 37 + 3)) < 1.5 * 3 / 4  # three of four go elsewhere


@pytest.mark.slow
def test_samples_are_read_in_the_exchange_thread(ranks: list[dict[str, Any]]) -> None:
    assert all(rank["threads"] == ["exchange"] for rank in ranks)


@pytest.mark.slow
def test_early_exit_ends_all_threads_soon(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        assert (rank["early"]["taken"], rank["early"]["threads"]) == (5, 0)
        assert rank["early"]["seconds"] < 20


@pytest.mark.slow
def test_read_error_is_raised_on_all_ranks(ranks: list[dict[str, Any]]) -> None:
    for number, rank in enumerate(ranks):
        error = "the disk is damaged"
        assert rank["unreadable"] == {
            "taken": 4,  # the two pieces before
            "error": error if number == 1 else f"rank 1 could not read its samples: {error}",
            "threads": 0,
        }


@pytest.mark.slow
def test_failing_rank_does_not_wait_for_the_others(ranks: list[dict[str, Any]]) -> None:
    assert max(rank["alone"]["seconds"] for rank in ranks[:1]) < GRACE_SECONDS + 8


@pytest.fixture
def store(make_store: Callable[..., SampleStore], wikipedia_lengths: Callable[[int, int], np.ndarray]) -> SampleStore:
    return make_store(wikipedia_lengths(SAMPLES, 3))


@pytest.mark.parametrize(("strategy", "per_node"), [("exchanged", 4), ("presorted", 2), ("random", 4)])
def test_samples_are_sent_between_the_ranks_of_the_strategy(store: SampleStore, strategy: str, per_node: int) -> None:
    order = TrainingOrder(
        store, seed=1, strategy=strategy, global_batch_size=32, spec=AssignmentSpec(4, per_node), accumulation_steps=1
    )
    global_batches = [order.global_batch(step) for step in range(3)]
    plans = [ExchangePlan.of(global_batches, rank, 4) for rank in range(4)]
    sent = np.array([plan.read_counts for plan in plans])
    assert np.array_equal(sent.T, [plan.arriving_counts for plan in plans])
    assert (sent.sum(axis=1) == 24).all()  # each reads the samples that were drawn for it
    among = np.kron(np.eye(4 // per_node), np.ones((per_node, per_node))) if strategy != "random" else np.eye(4)
    assert ((sent > 0) <= (among > 0)).all()
    assert (sent > 0).sum() == among.sum()
    for rank, plan in enumerate(plans):
        mine = np.concatenate(
            [global_batch.indices[part] for global_batch in global_batches for part in global_batch.micro_batches(rank)]
        )
        assert np.array_equal(plan.arriving[plan.places], mine)


@pytest.mark.parametrize("accumulation", [1, 3])
def test_plan_lists_the_samples_between_each_pair_of_ranks(store: SampleStore, accumulation: int) -> None:
    """Each sample is read where it was drawn and trained on where it was assigned, in the order of the steps."""
    order = TrainingOrder(
        store,
        seed=1,
        strategy="exchanged",
        global_batch_size=24,
        spec=AssignmentSpec(4, 2),
        accumulation_steps=accumulation,
    )
    global_batches = [order.global_batch(number) for number in range(5)]
    routes = []  # (index, home, owner)
    for global_batch in global_batches:
        for rank in range(4):
            for part in global_batch.micro_batches(rank):
                homes = (global_batch.positions[part] // 6).tolist()
                routes += [
                    (index, home, rank) for index, home in zip(global_batch.indices[part].tolist(), homes, strict=True)
                ]
    for rank in range(4):
        plan = ExchangePlan.of(global_batches, rank, 4)
        read = [[i for i, home, owner in routes if (home, owner) == (rank, other)] for other in range(4)]
        came = [[i for i, home, owner in routes if (home, owner) == (other, rank)] for other in range(4)]
        assert plan.read.tolist() == [index for part in read for index in part]
        assert plan.arriving.tolist() == [index for part in came for index in part]
        assert plan.read_counts.tolist() == [*map(len, read)]
        assert plan.arriving_counts.tolist() == [*map(len, came)]
        assert plan.arriving[plan.places].tolist() == [i for i, _, owner in routes if owner == rank]


def test_gather_selects_samples_by_index(store: SampleStore) -> None:
    from benchmarks.bert.store_reader import BulkReader

    indices = np.array([5, 199, 0, 5, 31])
    with BulkReader(store) as bulk:
        all_samples, expected = bulk.gather(np.arange(SAMPLES)), bulk.gather(indices)
    chosen = gather(all_samples, indices)
    for name, values in vars(expected).items():
        assert np.array_equal(getattr(chosen, name), values), name
        assert getattr(chosen, name).dtype == values.dtype
    assert len(gather(all_samples, indices[:0])) == 0


def test_exchange_without_a_process_group_is_an_error(store: SampleStore) -> None:
    order = TrainingOrder(
        store, seed=1, strategy="exchanged", global_batch_size=8, spec=AssignmentSpec(2, 2), accumulation_steps=1
    )
    with pytest.raises(UsageError, match=r"loader: found exchange, .* use loader=own here"):
        ExchangePrefetcher(order, 0, range(2), 1)
