"""A whole training step as one CUDA graph for each shape of its batch: one launch in the place of thousands.

Source: the whole-network capture of PyTorch's CUDA graph documentation. What a graph reads lies in tensors of its own
that each step's batch is copied into; what it computes lies in tensors that the next replay overwrites, so results are
copied out. All graphs share one memory pool, which is sound as no two of them ever run at the same time.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from implementations.pytorch.data.batch import RaggedBatch

Body = Callable[[RaggedBatch, Tensor], list[Tensor]]
"""A step: a batch and its loss weights on the device → numbers on the device, each of no dimension."""


@dataclass(frozen=True)
class _Captured:
    graph: torch.cuda.CUDAGraph
    inputs: list[Tensor]
    outputs: list[Tensor]


class StepGraphs:
    """The graphs of a run, by shape."""

    def __init__(self, body: Body, device: torch.device) -> None:
        self._body, self._device = body, device
        self._captured: dict[tuple[int, ...], _Captured] = {}
        self._pool: Any = None
        self._stream = torch.cuda.current_stream(device) if device.type == "cuda" else None

    def __len__(self) -> int:
        return len(self._captured)

    def capture(self, batch: RaggedBatch, weights: Tensor) -> None:
        """Record the step for batches of this shape. Nothing is computed; the step must have been taken once before."""
        if batch.shape in self._captured:
            return
        static, weights = batch.with_tensors(lambda t: t.to(self._device).clone()), weights.to(self._device).clone()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
            outputs = self._body(static, weights)
        self._pool = graph.pool()
        self._captured[batch.shape] = _Captured(graph, [*static.tensors(), weights], outputs)

    def replay(self, batch: RaggedBatch, weights: Tensor) -> list[Tensor]:
        """Take a step with a batch of a captured shape, on the host or the device."""
        captured = self._captured[batch.shape]
        torch._foreach_copy_(captured.inputs, [*batch.tensors(), weights], non_blocking=True)
        captured.graph.replay()
        return [output.clone() for output in captured.outputs]
