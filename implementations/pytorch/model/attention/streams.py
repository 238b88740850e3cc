"""Work that branches off the compute stream to side streams and comes back.

Autograd runs what backward does for an operation on the stream that its forward ran on, and has a stream wait wherever
a gradient passes from one to another (PyTorch's CUDA semantics, "Stream semantics of backward passes"), so work that
forks here forks in backward too.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Protocol

import torch
from torch import Tensor


class Streams(Protocol):
    """Side streams of one device, numbered from 0."""

    def fork(self, side: int, shared: Tensor) -> AbstractContextManager[object]:
        """Run on this side stream what follows, after all that the compute stream has been given so far.

        `shared` is read there, so its memory is not given away before that has happened.
        """

    def join(self, side: int, result: Tensor) -> None:
        """Have the compute stream wait for what this side stream was given; it may then use the result."""


class OneStream:
    """Everything one after the other: a CPU, or a GPU for comparison."""

    def fork(self, side: int, shared: Tensor) -> AbstractContextManager[object]:
        return nullcontext()

    def join(self, side: int, result: Tensor) -> None:
        pass


class CudaStreams:
    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._sides: list[torch.cuda.Stream] = []

    def fork(self, side: int, shared: Tensor) -> AbstractContextManager[object]:
        while len(self._sides) <= side:
            self._sides.append(torch.cuda.Stream(self._device))  # type: ignore[no-untyped-call]
        stream = self._sides[side]
        stream.wait_stream(torch.cuda.current_stream(self._device))
        shared.record_stream(stream)
        return torch.cuda.stream(stream)

    def join(self, side: int, result: Tensor) -> None:
        current = torch.cuda.current_stream(self._device)
        current.wait_stream(self._sides[side])
        result.record_stream(current)


@cache
def streams_of(device: torch.device) -> Streams:
    return CudaStreams(device) if device.type == "cuda" else OneStream()


def side_by_side(launches: Sequence[Callable[[], Tensor]], shared: Tensor, streams: Streams) -> list[Tensor]:
    """Results of the launches, all of which read `shared`: the first on the compute stream, each other on its own."""
    results: list[Tensor] = []
    for side, launch in enumerate(launches[1:]):
        with streams.fork(side, shared):
            results.append(launch())
    first = launches[0]()
    for side, result in enumerate(results):
        streams.join(side, result)
    return [first, *results]
