"""A stand-in for the module `cudnn` on a CPU: it runs attention graphs on the memory that their tensors declare.

Every element is read and written at the address that follows from a tensor's pointer, its ragged offset and its
strides, so that wrong declarations give wrong results.
"""

import ctypes
import math
from types import SimpleNamespace
from typing import Any

import numpy as np

TYPES = {"half": np.float16, "float": np.float32, "int32": np.int32, "int64": np.int64}


class Declared:
    """A tensor of a graph; its setters are those of cuDNN."""

    def __init__(self, **values: Any) -> None:
        self.dim: list[int] = []
        self.stride: list[int] = []
        self.ragged_offset: Declared | None = None
        self.uid, self.data_type = 0, ""
        vars(self).update(values)

    def __getattr__(self, name: str) -> Any:
        assert name.startswith("set_"), name
        return lambda value: setattr(self, name.removeprefix("set_"), value) or self

    def flat(self, pointers: dict[int, int]) -> np.ndarray:
        """The tensor as a vector; for those without a ragged offset."""
        return self._at(pointers[self.uid], self.dim[:1], self.stride[:1])

    def sequence(self, pointers: dict[int, int], number: int, length: int) -> np.ndarray:
        """The part [H, length, K] of one sequence."""
        assert self.ragged_offset is not None
        assert length <= self.dim[2]
        start = int(self.ragged_offset.flat(pointers)[number])
        address = pointers[self.uid] + start * np.dtype(TYPES[self.data_type]).itemsize
        return self._at(address, [self.dim[1], length, self.dim[3]], self.stride[1:])

    def _at(self, address: int, shape: list[int], strides: list[int]) -> np.ndarray:
        dtype = np.dtype(TYPES[self.data_type])
        items = 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
        memory = (ctypes.c_byte * (items * dtype.itemsize)).from_address(address)
        return np.ndarray(shape, dtype, memory, strides=[stride * dtype.itemsize for stride in strides])


class Graph:
    def __init__(self, stand_in: "StandIn", **options: Any) -> None:
        self.stand_in, self.options, self.built = stand_in, options, False

    def tensor(self, **values: Any) -> Declared:
        return Declared(**values)

    def sdpa(self, **operands: Any) -> tuple[Declared, Declared]:
        self.operands, self.outputs = operands, (Declared(), Declared())
        return self.outputs[0], self.outputs[1]

    def sdpa_backward(self, **operands: Any) -> tuple[Declared, ...]:
        self.operands, self.outputs = operands, (Declared(), Declared(), Declared())
        return self.outputs

    def validate(self) -> None: ...
    def build_operation_graph(self) -> None: ...
    def create_execution_plans(self, modes: list[Any]) -> None: ...
    def check_support(self) -> None: ...

    def build_plans(self) -> None:
        self.built = True
        self.stand_in.built += 1

    def get_workspace_size(self) -> int:
        return 16

    def execute(self, pointers: dict[int, int], workspace: int, handle: Any) -> None:
        assert self.built
        assert workspace and handle == "handle"
        operands = self.operands
        assert operands["use_padding_mask"] and operands["seq_len_q"] is operands["seq_len_kv"]
        for number, length in enumerate(operands["seq_len_q"].flat(pointers).tolist()):
            if length:
                self._run(pointers, number, length)

    def _run(self, pointers: dict[int, int], number: int, length: int) -> None:
        operands = self.operands

        def part(declared: Declared) -> np.ndarray:
            return declared.sequence(pointers, number, length)

        q, k, v = (part(operands[name]).astype(np.float64) for name in "qkv")
        scores = q @ k.swapaxes(1, 2) * operands["attn_scale"]
        kept = self._kept(pointers, number, scores.shape)
        if "o" not in operands:
            top = scores.max(-1, keepdims=True)
            sums = np.exp(scores - top).sum(-1, keepdims=True)
            context, statistics = self.outputs
            part(context)[...] = (np.exp(scores - top) / sums * kept) @ v
            part(statistics)[...] = top + np.log(sums)
            return
        weights = np.exp(scores - part(operands["stats"]))
        context, upstream = (part(operands[name]).astype(np.float64) for name in ("o", "dO"))
        if self.stand_in.other_mask_in_backward:
            kept = self._kept(pointers, number + 100, scores.shape)
        dkept = upstream @ v.swapaxes(1, 2) * kept
        dscores = weights * (dkept - (upstream * context).sum(-1, keepdims=True)) * operands["attn_scale"]
        dq, dk, dv = self.outputs
        part(dq)[...], part(dk)[...] = dscores @ k, dscores.swapaxes(1, 2) @ q
        part(dv)[...] = (weights * kept).swapaxes(1, 2) @ upstream

    def _kept(self, pointers: dict[int, int], number: int, shape: tuple[int, ...]) -> Any:
        """The scaled dropout mask of a sequence: a function of seed, offset and sequence."""
        if "dropout" not in self.operands or self.stand_in.ignores_dropout:
            return 1.0
        probability, seed, offset = self.operands["dropout"]
        key = [int(seed.flat(pointers)[0]), int(offset.flat(pointers)[0]), number]
        return (np.random.default_rng(key).random(shape) >= probability) / (1 - probability)


class StandIn(SimpleNamespace):
    """The names of the module `cudnn` that are used, and switches for faults."""

    data_type = SimpleNamespace(HALF="half", BFLOAT16="bfloat16", FLOAT="float", INT32="int32", INT64="int64")
    heur_mode = SimpleNamespace(A="A")

    def __init__(self) -> None:
        super().__init__()
        self.built = 0  # plans
        self.streams: list[int] = []
        self.ignores_dropout = self.other_mask_in_backward = False

    def create_handle(self) -> str:
        return "handle"

    def set_stream(self, handle: str, stream: int) -> None:
        self.streams.append(stream)

    def pygraph(self, **options: Any) -> Graph:
        assert options["io_data_type"] == "half" and math.isfinite(self.built)
        return Graph(self, **options)
