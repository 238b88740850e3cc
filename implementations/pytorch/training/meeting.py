"""Where ranks meet: a place in torchrun's store that no attempt before has written in.

torchrun keeps one TCPStore for all attempts of a run, and ranks that start again would find the addresses of those that
died. Its count of restarts does not tell attempts apart on several nodes, as each node counts for itself. So the first
rank names a place, and every other knows by a word of its own in the answer that it was asked in this attempt.
"""

import os
import secrets
import time
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from benchmarks.errors import WorkError

POLL_SECONDS = 0.02


def agent_store(timeout: timedelta) -> Any:
    """A connection to torchrun's store (a TCPStore); None where ranks were not started by torchrun."""
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return None
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    return dist.TCPStore(host, port, is_master=False, timeout=timeout)  # type: ignore[attr-defined]


def meeting_place(store: Any, rank: int, ranks: int, timeout: timedelta) -> str:
    """A prefix of keys that is new in this attempt and the same on all ranks. WorkError if not all come in time."""
    deadline = time.monotonic() + timeout.total_seconds()
    word = secrets.token_hex(8)
    store.set(_word_of(rank), word)
    if rank > 0:
        while True:
            if store.check(["podium/answer"]):
                place, *words = store.get("podium/answer").decode().split()
                if words[rank : rank + 1] == [word]:
                    store.set(f"{place}/here/{rank}", word)
                    return str(place)
            _wait(deadline, "rank 0")
    place = f"podium/{word}"
    everyone, here = [_word_of(r) for r in range(ranks)], [f"{place}/here/{r}" for r in range(1, ranks)]
    while here and not store.check(here):
        if store.check(everyone):
            store.set("podium/answer", " ".join([place, *(each.decode() for each in store.multi_get(everyone))]))
        _wait(deadline, "some rank")
    return place


def _word_of(rank: int) -> str:
    return f"podium/word/{rank}"


def _wait(deadline: float, whom: str) -> None:
    if time.monotonic() > deadline:
        raise WorkError(f"{whom} has not come within launch.timeout_seconds; see what it printed, and the network")
    time.sleep(POLL_SECONDS)
