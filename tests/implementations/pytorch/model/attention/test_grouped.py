"""Streams of grouped attention: the longest group on the compute stream, the others on side streams, then joined."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from implementations.pytorch.model.attention.grouped import run_concurrently, side_stream


class _Stream:
    """A stand-in for torch.cuda.Stream that records waits."""

    def __init__(self, name: str, events: list[tuple[str, ...]]) -> None:
        self.name, self.events = name, events

    def wait_stream(self, other: "_Stream") -> None:
        self.events.append((self.name, "waits for", other.name))


class _Memory:
    """A stand-in for a tensor that records the streams it is used on."""

    device = torch.device("cuda", 0)

    def __init__(self, name: str, events: list[tuple[str, ...]]) -> None:
        self.name, self.events = name, events

    def record_stream(self, stream: _Stream) -> None:
        self.events.append((self.name, "is used on", stream.name))


def test_side_streams_and_compute_stream_wait_for_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """With stand-ins for PyTorch's streams; each side stream is created once and reused."""
    events: list[tuple[str, ...]] = []
    running = [_Stream("compute", events)]
    made: list[_Stream] = []

    side_stream.cache_clear()

    def make(device: torch.device, priority: int) -> _Stream:
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

    shared = cast(Tensor, _Memory("shared", events))
    launches = [lambda n=n: launch(n) for n in range(3)]
    for _ in range(2):
        events.clear()
        run_concurrently(launches, shared)
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
    events.clear()
    run_concurrently(launches[:1], shared)
    assert events == [("launch 0", "on", "compute")]
    side_stream.cache_clear()
