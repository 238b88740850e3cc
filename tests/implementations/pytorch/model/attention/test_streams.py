"""Forking and joining: the longest group on the compute stream, each other on its own, waited for before it is used."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from implementations.pytorch.model.attention.streams import OneStream, side_by_side, streams_of


class Recording:
    """Notes what is asked of streams, and where work is launched."""

    def __init__(self) -> None:
        self.events: list[tuple[str, object]] = []
        self.shared: list[Tensor] = []
        self.joined: list[Tensor] = []
        self._on: object = "compute"

    @contextmanager
    def fork(self, side: int, shared: Tensor) -> Iterator[None]:
        self.events.append(("fork", side))
        self.shared.append(shared)
        self._on = side
        yield
        self._on = "compute"

    def join(self, side: int, result: Tensor) -> None:
        self.events.append(("join", side))
        self.joined.append(result)

    def launch(self, number: int) -> Tensor:
        self.events.append((f"launch {number}", self._on))
        return torch.tensor(number)


def test_the_first_is_on_the_compute_stream_and_all_others_are_waited_for() -> None:
    streams, shared = Recording(), torch.zeros(1)
    launches = [lambda n=n: streams.launch(n) for n in range(3)]
    results = side_by_side(launches, shared, streams)
    assert [int(result) for result in results] == [0, 1, 2]
    assert streams.events == [
        ("fork", 0),
        ("launch 1", 0),
        ("fork", 1),
        ("launch 2", 1),
        ("launch 0", "compute"),
        ("join", 0),
        ("join", 1),
    ]
    assert all(tensor is shared for tensor in streams.shared)
    assert [int(result) for result in streams.joined] == [1, 2]


def test_one_group_needs_no_other_stream() -> None:
    streams = Recording()
    side_by_side([lambda: streams.launch(0)], torch.zeros(1), streams)
    assert streams.events == [("launch 0", "compute")]


def test_a_cpu_has_one_stream() -> None:
    assert isinstance(streams_of(torch.device("cpu")), OneStream)
    launches = [lambda n=n: torch.tensor(n) for n in range(4)]
    assert [int(r) for r in side_by_side(launches, torch.zeros(1), OneStream())] == [0, 1, 2, 3]
