"""Load of the run's store in a rendezvous of many ranks, with a simulated clock for each rank."""

import secrets
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from types import SimpleNamespace

import numpy as np
import pytest

from implementations.pytorch.distributed import process_group
from implementations.pytorch.distributed.process_group import rendezvous_prefix

TIMEOUT = timedelta(seconds=600)
FIRST_SECONDS = 4.0  # in which polls are frequent, so that a start without late ranks is fast


class SimulatedStore:
    """Key-value store that one rank after another uses, each from its own time on: keys exist from when they were set.

    Counts requests and bytes (keys and values in both directions), in total and by the second of simulated time.
    """

    def __init__(self) -> None:
        self.values: dict[str, tuple[float, bytes]] = {}  # key → seconds, value
        self.now = 0.0
        self.requests: Counter[int] = Counter()  # by second
        self.bytes: Counter[int] = Counter()

    def _count(self, content: Sequence[str | bytes]) -> None:
        self.requests[int(self.now)] += 1
        self.bytes[int(self.now)] += sum(map(len, content))

    def set(self, key: str, value: str) -> None:
        self._count([key, value])
        self.values.setdefault(key, (self.now, value.encode()))

    def multi_set(self, keys: list[str], values: list[str]) -> None:
        self._count([*keys, *values])
        for key, value in zip(keys, values, strict=True):
            self.values[key] = (self.now, value.encode())

    def check(self, keys: list[str]) -> bool:
        self._count(keys)
        return all(self.values.get(key, (np.inf, b""))[0] <= self.now for key in keys)

    def get(self, key: str) -> bytes:
        (value,) = self.multi_get([key])
        return value

    def multi_get(self, keys: list[str]) -> list[bytes]:
        values = [self.values[key][1] for key in keys]
        self._count([*keys, *values])
        return values


def simulate(monkeypatch: pytest.MonkeyPatch, arrivals: np.ndarray, restarts: int) -> tuple[SimulatedStore, np.ndarray]:
    """Let ranks arrive at these times (seconds) in the last of some attempts. Returns the store and the end times.

    Rank 0 is simulated first. So the other ranks' nonces and arrivals are known to it: a rank arrives as soon as it
    is answered, which delays the end of rank 0 by less than one of its polls.
    """
    ranks, store = len(arrivals), SimulatedStore()
    nonces = [f"{restarts:08x}{rank:08x}" for rank in range(ranks)]
    for rank, arrival in enumerate(arrivals.tolist()):
        store.values[f"podium/nonce/{rank}"] = (0.0 if restarts else arrival, nonces[rank].encode())
        store.values[f"podium/{nonces[0]}/here/{rank}"] = (float(arrivals.max()) + 2.0, b"")
    if restarts:  # what the attempt before has left
        store.values["podium/answer"] = (0.0, " ".join(["podium/old", *(n[::-1] for n in nonces)]).encode())

    def sleep(seconds: float) -> None:
        store.now += seconds

    monkeypatch.setattr(process_group, "time", SimpleNamespace(monotonic=lambda: store.now, sleep=sleep))
    ends = []
    for rank, arrival in enumerate(arrivals.tolist()):
        monkeypatch.setattr(secrets, "token_hex", lambda size, rank=rank: nonces[rank])
        store.now = arrival
        assert rendezvous_prefix(store, rank, ranks, TIMEOUT) == f"podium/{nonces[0]}"
        ends.append(store.now)
    return store, np.array(ends)


@pytest.mark.parametrize("ranks", [8, 1024, 4096])
def test_polls_are_few_and_small_while_ranks_are_late(ranks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 0 arrives half a minute after the others, which have been restarted."""
    arrivals = np.zeros(ranks)
    arrivals[0] = 30.0
    store, ends = simulate(monkeypatch, arrivals, restarts=1)
    waiting = [second for second in store.requests if FIRST_SECONDS <= second < 30]
    mean = sum(store.requests[second] for second in waiting) / len(waiting)
    assert mean < 1.2 * process_group.POLLS_PER_SECOND
    assert max(store.requests[second] for second in waiting) < 3 * process_group.POLLS_PER_SECOND
    assert sum(store.bytes[second] for second in waiting) / sum(store.requests[second] for second in waiting) < 64
    assert ends[1:].max() - 30.0 < 0.1 + 1.5 * ranks / process_group.POLLS_PER_SECOND


def test_ranks_that_arrive_together_wait_for_a_fraction_of_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    arrivals = np.random.default_rng(0).uniform(0.0, 0.1, 1024)
    _, ends = simulate(monkeypatch, arrivals, restarts=0)
    assert ends[1:].max() < 0.6
