"""One rank of test_exchange: runs the exchange with all strategies and writes its results as JSON.

Arguments: shard, file of the process group, rank, ranks, file to save to.
"""

import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from benchmarks.bert.samples import Samples
from benchmarks.bert.store import SampleStore
from benchmarks.bert.store_reader import BulkReader
from implementations.pytorch.data import exchange
from implementations.pytorch.data.loader import ExchangePrefetcher
from implementations.pytorch.data.reader import Step
from podium.core.errors import WorkError
from podium.planning.balancing.interface import AssignmentSpec
from podium.planning.batch_plan import TrainingOrder
from tests.implementations.pytorch.data.plain_reader import read_step

BATCH, STEPS = 24, range(2, 11)


class Gathers:
    """Records which samples are read, and fails at call number `fail_at`."""

    def __init__(self) -> None:
        self.indices: list[int] = []
        self.fail_at = -1
        self.threads: set[str] = set()
        gather = BulkReader.gather

        def noted(reader: BulkReader, indices: Any) -> Samples:
            if len(indices):
                self.fail_at -= 1
                if self.fail_at == 0:
                    raise WorkError("the disk is damaged")
                self.indices += indices.tolist()
                self.threads.add(threading.current_thread().name)
            return gather(reader, indices)

        BulkReader.gather = noted  # type: ignore[method-assign]


def order_of(store: SampleStore, strategy: str, ranks: int, **settings: Any) -> TrainingOrder:
    accumulation = settings.pop("accumulation_steps", 1)
    spec = AssignmentSpec(ranks, settings.pop("parts_per_node", ranks), pair_cost=1e-3)
    return TrainingOrder(
        store,
        seed=4,
        strategy=strategy,
        global_batch_size=BATCH,
        spec=spec,
        accumulation_steps=accumulation,
        **settings,
    )


def same(one: Step, other: Step) -> bool:
    pairs = zip(one.micro_batches, other.micro_batches, strict=True)
    return all(
        a.lengths == b.lengths and all(torch.equal(x, y) for x, y in zip(a.tensors(), b.tensors(), strict=True))
        for a, b in pairs
    ) and np.array_equal(one.global_batch.indices, other.global_batch.indices)


def take_all(order: TrainingOrder, rank: int, gathers: Gathers, window: int) -> dict[str, Any]:
    gathers.indices.clear()
    with ExchangePrefetcher(order, rank, STEPS, 2, window=window) as steps:
        found = list(steps)
    read, stats = list(gathers.indices), vars(steps.stats)
    expected = [read_step(order, number, rank) for number in STEPS]
    return {
        "same": [same(a, b) for a, b in zip(found, expected, strict=True)],
        "read": read,
        "trained": [
            int(i)
            for s in expected
            for part in s.global_batch.micro_batches(rank)
            for i in s.global_batch.indices[part]
        ],
        "measured": stats,
    }


def leave_early(order: TrainingOrder, rank: int) -> dict[str, Any]:
    """All ranks stop after the same step, some later than others."""
    taken = 0
    with ExchangePrefetcher(order, rank, range(1000), 1, window=2) as steps:
        for _ in steps:
            taken += 1
            if taken == 5:
                break
        time.sleep(0.3 * rank)
        began = time.perf_counter()
    return {"taken": taken, "seconds": time.perf_counter() - began, "threads": exchanging()}


def fail_to_read(order: TrainingOrder, rank: int, gathers: Gathers) -> dict[str, Any]:
    """Rank 1 cannot read its third piece."""
    if rank == 1:
        gathers.fail_at = 3
    taken = 0
    try:
        with ExchangePrefetcher(order, rank, STEPS, 2, window=2) as steps:
            for _ in steps:
                taken += 1
    except WorkError as error:
        return {"taken": taken, "error": str(error), "threads": exchanging()}
    return {"taken": taken, "error": ""}


def fail_alone(order: TrainingOrder, rank: int, done: Path) -> dict[str, Any]:
    """Rank 0 raises an error while the others continue with the next piece and wait for it."""
    began = time.perf_counter()
    try:
        with ExchangePrefetcher(order, rank, range(1000), 1, window=2) as steps:
            for number, _ in enumerate(steps):
                if rank == 0 and number == 3:
                    began = time.perf_counter()
                    raise KeyError("rank 0")
                if rank > 0 and number == 1:
                    while not done.exists():
                        time.sleep(0.01)
                    raise KeyError("later")
    except KeyError:
        done.touch()
    return {"seconds": time.perf_counter() - began}


def exchanging() -> int:
    return sum(thread.name in ("exchange", "prefetch") for thread in threading.enumerate())


def main() -> None:
    shard, rendezvous, rank, ranks, out = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5]
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=ranks)
    store, gathers = SampleStore([Path(shard)]), Gathers()
    exchange.GRACE_SECONDS = 0.5
    found: dict[str, Any] = {}
    for name, strategy, settings in (
        ("exchanged", "exchanged", {"shards": "per_rank"}),
        ("accumulated", "exchanged", {"accumulation_steps": 2}),
        ("indexed", "indexed", {"shards": "per_rank"}),
        ("packed", "packed", {"accumulation_steps": 2, "shards": "per_rank"}),
        ("presorted", "presorted", {"parts_per_node": ranks // 2}),
        ("padded", "padded", {"shards": "per_rank"}),
    ):
        found[name] = take_all(order_of(store, strategy, ranks, **settings), rank, gathers, window=4)
    order = order_of(store, "exchanged", ranks)
    found["one_piece"] = take_all(order, rank, gathers, window=100)
    found["threads"] = sorted(gathers.threads - {"MainThread"})
    found["early"] = leave_early(order, rank)
    found["unreadable"] = fail_to_read(order, rank, gathers)
    dist.barrier()
    found["alone"] = fail_alone(order, rank, Path(rendezvous).with_name("done"))
    Path(out).write_text(json.dumps(found), encoding="utf-8")
    os._exit(0)  # a thread of a rank that failed alone may still wait for the others: Python's own end would abort


if __name__ == "__main__":
    main()
