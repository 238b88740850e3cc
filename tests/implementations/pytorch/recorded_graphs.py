"""A stand-in for CUDA graphs on a CPU, and an attention backend whose operations depend on the shape of a batch only.

While a graph is captured, PyTorch's operations are recorded with their tensors. A replay runs them again on the same
tensors, so that, like a real graph, it reads what the inputs contain then and overwrites the outputs.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from implementations.pytorch.data.batch import RaggedBatch
from implementations.pytorch.kernels.interface import Kernels
from implementations.pytorch.model.attention.dispatch import BACKENDS

BY_SHAPE = "by shape"


def attend_by_shape(qkv_T3HK: Tensor, batch: RaggedBatch, kernels: Kernels, probability: float) -> Tensor:
    """Attention over all pairs of tokens, of which those of different sequences are hidden. Reads no host number."""
    q_HTK, k_HTK, v_HTK = qkv_T3HK.permute(1, 2, 0, 3)
    sequence_T = torch.searchsorted(batch.sequence_starts_i32[1:-1], torch.arange(batch.slots).int(), right=True)
    scores_HTT = torch.matmul(q_HTK, k_HTK.transpose(-1, -2)) / q_HTK.shape[-1] ** 0.5
    weights_HTT = scores_HTT.masked_fill(sequence_T[:, None] != sequence_T, float("-inf")).softmax(-1)
    weights_HTT = torch.dropout(weights_HTT, probability, train=True) if probability else weights_HTT
    return torch.matmul(weights_HTT, v_HTK).permute(1, 0, 2).flatten(1)


class RecordedGraph:
    """Stand-in for torch.cuda.CUDAGraph."""

    def __init__(self) -> None:
        self.operations: list[tuple[Any, tuple[Any, ...], dict[str, Any], Any]] = []
        self.resets = 0

    def pool(self) -> str:
        return "pool"

    @torch.no_grad()
    def replay(self) -> None:
        assert not self.resets, "the graph was destroyed"
        for function, args, kwargs, recorded in self.operations:
            read = {t.untyped_storage().data_ptr() for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)}
            for old, new in zip(tree_leaves(recorded), tree_leaves(function(*args, **kwargs)), strict=True):
                if isinstance(old, Tensor) and old.untyped_storage().data_ptr() not in read:  # not a view, not in place
                    old.copy_(new)

    def reset(self) -> None:
        self.resets += 1
        self.operations.clear()


class _Recorder(TorchDispatchMode):
    def __init__(self, graph: RecordedGraph) -> None:
        super().__init__()
        self.graph = graph

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.graph.operations.append((func, args, kwargs or {}, result))
        return result


def use_recorded_graphs(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Replace CUDA graphs by recorded ones. Returns the memory pools that graphs are captured into, in order."""
    pools: list[object] = []

    @contextmanager
    def capture(
        graph: RecordedGraph, pool: object = None, stream: object = None, capture_error_mode: str = "global"
    ) -> Iterator[None]:
        pools.append(pool)
        with _Recorder(graph):
            yield

    monkeypatch.setattr(torch.cuda, "CUDAGraph", RecordedGraph)
    monkeypatch.setattr(torch.cuda, "graph", capture)
    monkeypatch.setitem(BACKENDS, BY_SHAPE, attend_by_shape)
    return pools
