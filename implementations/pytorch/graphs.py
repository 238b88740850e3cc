"""CUDA graphs of a function of a batch, one for each batch shape: one launch in place of thousands.

Source: the whole-network capture of PyTorch's CUDA graph documentation. A graph reads static tensors that each batch is
copied into, and writes tensors that the next replay overwrites, so results are copied out. All graphs of one memory
pool may share memory, which is safe as long as no two of them ever run at the same time.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from implementations.pytorch.data.batch import RaggedBatch
from implementations.pytorch.distributed.process_group import close_before_destroy

# A batch and some numbers that belong to it, such as loss weights → tensors on the device.
BatchFunction = Callable[[RaggedBatch, Tensor], list[Tensor]]


@dataclass(frozen=True)
class _Captured:
    graph: torch.cuda.CUDAGraph
    inputs: list[Tensor]
    outputs: list[Tensor]


class StepGraphs:
    """CUDA graphs of a training step or of an evaluation's forward pass, one for each batch shape.

    They are closed before the process group is destroyed. `capture`, `replay` and `close` may be called by different
    threads.
    """

    def __init__(self, body: BatchFunction, device: torch.device, shared: "StepGraphs | None" = None) -> None:
        """`shared`: graphs whose memory pool is used, which never run at the same time as these."""
        self._body, self._device = body, device
        self._captured: dict[tuple[int, ...], _Captured] = {}
        self._pool: Any = shared._pool if shared is not None else None
        self._lock = threading.Lock()  # an evaluation's thread may replay while the main thread closes the graphs
        # Captured on the stream that is current here. For training that is the compute stream: DDP remembers the stream
        # that it was constructed on. It is not the default stream, which cannot be captured (process_group.py).
        self._stream = torch.cuda.current_stream(device) if device.type == "cuda" else None
        close_before_destroy(self)

    def __len__(self) -> int:
        return len(self._captured)

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """The captured shapes (T, M, S), in the order of capture."""
        return list(self._captured)

    def capture(self, batch: RaggedBatch, numbers: Tensor) -> None:
        """Capture the function for batches of this shape, unless it is captured already. Computes nothing.

        The function must have run eagerly before, so that gradients, optimizer state and compiled kernels exist.
        """
        if batch.shape in self._captured:
            return
        static, numbers = batch.map_tensors(lambda t: t.to(self._device).clone()), numbers.to(self._device).clone()
        graph = torch.cuda.CUDAGraph()
        try:
            # thread_local: other threads (data loader, watchdog, NCCL's) may call CUDA during the capture; in the
            # default mode, global, a forbidden call of any thread would invalidate it.
            with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
                outputs = self._body(static, numbers)
        except BaseException:
            graph.reset()  # the error's traceback refers to this frame, and so to the graph
            raise
        with self._lock:
            self._pool = graph.pool()
            self._captured[batch.shape] = _Captured(graph, [*static.tensors(), numbers], outputs)

    def replay(self, batch: RaggedBatch, numbers: Tensor) -> list[Tensor]:
        """Compute the function of a batch of a captured shape, on the host or the device. Returns copies of its result.

        Raises KeyError for a shape that was not captured, and after `close`.
        """
        with self._lock:
            captured = self._captured[batch.shape]
            # All on one stream: inputs are overwritten after the previous replay has read them. Host tensors must be
            # pinned for the copy to be asynchronous.
            torch._foreach_copy_(captured.inputs, [*batch.tensors(), numbers], non_blocking=True)
            captured.graph.replay()
            # The next replay of any graph overwrites the shared pool, and metrics are read one step late.
            return [output.clone() for output in captured.outputs]

    def close(self) -> None:
        """Destroy all graphs and release their memory; a second call does nothing.

        A graph with an all-reduce refers to NCCL's communicator, whose destruction waits until no graph does.
        """
        with self._lock:
            captured, self._captured = list(self._captured.values()), {}
            self._pool = None
        # Reset, not only dropped: the traceback of an error may refer to frames that refer to the graphs. A graph that
        # is still running is freed by CUDA once it has ended.
        for each in captured:
            each.graph.reset()
            each.inputs.clear()
            each.outputs.clear()
