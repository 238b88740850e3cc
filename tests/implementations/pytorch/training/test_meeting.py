"""Ranks that start again meet where nobody has been before, whatever their predecessors have left behind."""

import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
import torch.distributed as dist

from benchmarks.errors import WorkError
from implementations.pytorch.training.meeting import agent_store, meeting_place

SOON = timedelta(seconds=20)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """torchrun's store."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # type: ignore[attr-defined]
    environment = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port), "TORCHELASTIC_USE_AGENT_STORE": "True"}
    for key, value in environment.items():
        monkeypatch.setenv(key, value)
    yield store


def meet(ranks: int, delays: dict[int, float] | None = None) -> list[str]:
    places = [""] * ranks

    def come(rank: int) -> None:
        time.sleep((delays or {}).get(rank, 0.0))
        places[rank] = meeting_place(agent_store(SOON), rank, ranks, SOON)

    threads = [threading.Thread(target=come, args=(rank,)) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return places


@pytest.mark.parametrize("late", [0, 1, 2])
def test_every_attempt_has_a_place_of_its_own(server: Any, late: int) -> None:
    """Whoever comes late finds the words of the attempt before, and so do those who came before."""
    places = [meet(3, {late: 0.3} if attempt else None) for attempt in range(3)]
    assert all(len(set(place)) == 1 for place in places)
    assert len({place[0] for place in places}) == 3


def test_an_attempt_that_not_all_have_come_to_disturbs_no_later_one(server: Any) -> None:
    first = meet(2)
    with pytest.raises(WorkError, match="some rank has not come within"):
        meeting_place(agent_store(SOON), 0, 2, timedelta(seconds=0.3))
    with pytest.raises(WorkError, match="rank 0 has not come within"):
        meeting_place(agent_store(SOON), 1, 2, timedelta(seconds=0.3))
    second = meet(2, {0: 0.2})
    assert len(set(second)) == 1 and second[0] != first[0]


def test_a_single_rank_meets_nobody(server: Any) -> None:
    assert meet(1)[0] != meet(1)[0]


def test_without_torchrun_there_is_no_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TORCHELASTIC_USE_AGENT_STORE", raising=False)
    assert agent_store(SOON) is None
