"""Forking and joining: the longest group on the compute stream, each other on its own, waited for before it is used."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from implementations.pytorch.model.attention.grouped import CudaStreams, OneStream, side_by_side, streams_of


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


class _Stream:
    """A stand-in for torch.cuda.Stream that notes who waits for whom."""

    def __init__(self, name: str, events: list[tuple[str, ...]]) -> None:
        self.name, self.events = name, events

    def wait_stream(self, other: "_Stream") -> None:
        self.events.append((self.name, "waits for", other.name))


class _Memory:
    """A stand-in for a tensor that notes which streams it is used on."""

    def __init__(self, name: str, events: list[tuple[str, ...]]) -> None:
        self.name, self.events = name, events

    def record_stream(self, stream: _Stream) -> None:
        self.events.append((self.name, "is used on", stream.name))


def test_side_streams_wait_for_the_compute_stream_and_it_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch's streams are stood in for; each side stream is made once and used again."""
    events: list[tuple[str, ...]] = []
    running = [_Stream("compute", events)]
    made: list[_Stream] = []

    def make(device: torch.device) -> _Stream:
        made.append(_Stream(f"side {len(made)}", events))
        return made[-1]

    @contextmanager
    def use(stream: _Stream) -> Iterator[None]:
        running.append(stream)
        yield
        running.pop()

    monkeypatch.setattr(torch.cuda, "Stream", make)
    monkeypatch.setattr(torch.cuda, "stream", use)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: running[-1])

    def launch(number: int) -> Any:
        events.append((f"launch {number}", "on", running[-1].name))
        return _Memory(f"result {number}", events)

    streams, shared = CudaStreams(torch.device("cuda", 0)), cast(Tensor, _Memory("shared", events))
    launches = [lambda n=n: launch(n) for n in range(3)]
    for _ in range(2):
        events.clear()
        side_by_side(launches, shared, streams)
        assert events == [
            ("side 0", "waits for", "compute"),
            ("shared", "is used on", "side 0"),
            ("launch 1", "on", "side 0"),
            ("side 1", "waits for", "compute"),
            ("shared", "is used on", "side 1"),
            ("launch 2", "on", "side 1"),
            ("launch 0", "on", "compute"),
            ("compute", "waits for", "side 0"),
            ("result 1", "is used on", "compute"),
            ("compute", "waits for", "side 1"),
            ("result 2", "is used on", "compute"),
        ]
    assert len(made) == 2
