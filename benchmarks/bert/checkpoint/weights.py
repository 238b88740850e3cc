"""Loading of all weights of a BERT from a checkpoint, with checks of names, shapes and values; safetensors files.

A safetensors file has a header and the bytes of named tensors. Unlike a pickle it contains no code.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from benchmarks.bert.checkpoint.names import Layout, Part, podium_shapes
from benchmarks.bert.sizes import SIZES, Size
from podium.core.errors import UsageError, WorkError
from podium.core.files import atomic_file

MAX_NAMES_SHOWN = 3  # missing tensors that an error message names


class Source(Protocol):
    """An open checkpoint of any format."""

    path: Path
    names: list[str]  # of all tensors in it, also those of an optimizer

    def shape(self, name: str) -> tuple[int, ...]: ...

    def read(self, name: str) -> NDArray[np.float32]: ...


@dataclass(frozen=True)
class Weights:
    """The weights of one BERT under Podium's names, float32."""

    size: Size
    vocabulary_size: int
    tensors: dict[str, NDArray[np.float32]]

    @property
    def parameters(self) -> int:
        """Number of parameters."""
        return sum(values.size for values in self.tensors.values())


def detect_size(source: Source, layout: Layout, requested: Size | None = None) -> tuple[Size, int]:
    """Return the model size of a checkpoint, by its number of layers and hidden width, and its vocabulary size.

    Raises UsageError if it is not a known size or not the requested one, WorkError if the checkpoint is not a BERT.
    """
    if layout.word_embeddings not in source.names:
        raise WorkError(f"{source.path}: lacks {layout.word_embeddings}, so it is not a BERT checkpoint; name another")
    shape = source.shape(layout.word_embeddings)
    if len(shape) != 2:
        raise WorkError(f"{source.path}: {layout.word_embeddings} is {list(shape)}, allowed is [vocabulary, hidden]")
    vocabulary, hidden = shape
    numbers = [int(found[1]) for found in map(layout.layer.match, source.names) if found]
    layers = max(numbers, default=-1) + 1
    found = next((size for size in SIZES.values() if (size.layers, size.hidden) == (layers, hidden)), None)
    here = f"its encoder has {layers} layer(s) of width {hidden}" + (f", size {found.name}" if found else "")
    if requested and found != requested:
        wanted = f"size {requested.name} was requested, which is {requested.layers} × {requested.hidden}"
        raise UsageError(f"{source.path}: {here}; {wanted}")
    if found is None:
        known = ", ".join(f"{size.name} {size.layers} × {size.hidden}" for size in SIZES.values())
        raise UsageError(f"{source.path}: {here}; the sizes are {known}")
    return found, vocabulary


def check_shapes(source: Source, layout: Layout, size: Size, vocabulary: int) -> list[Part]:
    """Return the tensors to read. Raises WorkError, naming it, if one is missing or has another shape."""
    parts, there = layout.parts(size, vocabulary), set(source.names)
    missing = [part.name for part in parts if part.name not in there]
    if missing:
        more = f" and {len(missing) - MAX_NAMES_SHOWN} more" if len(missing) > MAX_NAMES_SHOWN else ""
        raise WorkError(
            f"{source.path}: lacks {', '.join(missing[:MAX_NAMES_SHOWN])}{more} of the {len(parts)} tensors of size "
            f"{size.name}; use a complete pre-training checkpoint with its heads"
        )
    for part in parts:
        shape = source.shape(part.name)
        if shape != part.shape:
            raise WorkError(
                f"{source.path}: {part.name} is {list(shape)}, allowed for size {size.name} is {list(part.shape)}"
            )
    return parts


def require_finite(path: Path, name: str, values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the values of a tensor. Raises WorkError if one is infinite or NaN."""
    bad = values.size - int(np.count_nonzero(np.isfinite(values)))
    if bad:
        raise WorkError(f"{path}: {name} has values that are infinite or NaN, {bad:,} in all; use another checkpoint")
    return values


def load_weights(
    source: Source,
    layout: Layout,
    requested: Size | None = None,
    on_tensor: Callable[[int, int], None] = lambda *_: None,
) -> Weights:
    """Load all weights of a checkpoint bit for bit. Memory: the weights and one more tensor.

    `on_tensor` is called with the number of tensors read and their total. Raises UsageError for another size than the
    requested one and WorkError for missing or damaged tensors.
    """
    size, vocabulary = detect_size(source, layout, requested)
    parts = check_shapes(source, layout, size, vocabulary)
    tensors = {name: np.empty(shape, np.float32) for name, shape in podium_shapes(size, vocabulary).items()}
    for number, part in enumerate(parts, start=1):
        values = require_finite(source.path, part.name, source.read(part.name))
        tensors[part.podium_name][part.rows] = values.T if part.transposed else values
        on_tensor(number, len(parts))
    return Weights(size, vocabulary, tensors)


SUFFIX = ".safetensors"
FLOAT32 = "F32"
_open: Any = safe_open  # its methods have no type annotations


class SafetensorsFile:
    """An open safetensors file; float32 tensors are read one at a time.

    Opening reads the header, which the library checks against the file's size. Raises UsageError if there is no such
    file and WorkError if it is truncated or has another format.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        if path.is_dir():
            raise UsageError(f"{path}: is a folder; name a {SUFFIX} file")
        if not path.is_file():
            raise UsageError(f"{path}: there is no such file; name a {SUFFIX} file that exists")
        try:
            self._file = _open(path, framework="np", backend="pread")
        except (SafetensorError, OSError) as error:
            raise WorkError(
                f"{path}: cannot be read as safetensors ({error}); create or copy the file again"
            ) from error
        self.names: list[str] = list(self._file.keys())
        self.metadata: Mapping[str, str] = self._file.metadata() or {}

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a tensor in `names`. Raises WorkError if it is not float32."""
        tensor = self._file.get_slice(name)
        if tensor.get_dtype() != FLOAT32:
            found = f"{name} is {tensor.get_dtype()}"
            raise WorkError(f"{self.path}: {found}, allowed is {FLOAT32}; save the weights as float32")
        return tuple(tensor.get_shape())

    def read(self, name: str) -> NDArray[np.float32]:
        """Read a float32 tensor in `names`. Raises WorkError if it is not float32 or cannot be read."""
        self.shape(name)  # for its check of the type
        try:
            values: NDArray[np.float32] = self._file.get_tensor(name)
        except (SafetensorError, OSError) as error:
            raise WorkError(f"{self.path}: {name} cannot be read ({error}); create or copy the file again") from error
        return values


def write_safetensors(path: Path, tensors: Mapping[str, NDArray[np.float32]], metadata: Mapping[str, str]) -> None:
    """Write a safetensors file atomically; the same tensors and metadata give the same bytes.

    Raises WorkError if the file cannot be written.
    """
    assert all(values.flags.c_contiguous and values.dtype == np.float32 for values in tensors.values())
    with atomic_file(path) as temporary:
        temporary.touch()
        mode = temporary.stat().st_mode
        try:
            save_file(dict(tensors), temporary, dict(metadata))
        except SafetensorError as error:
            advice = "check that the folder exists, is writable and has free space"
            raise WorkError(f"{path}: cannot be written ({error}); {advice}") from error
        _order_metadata(temporary)
        temporary.chmod(mode)  # the library makes its files readable for the user only


def _order_metadata(path: Path) -> None:
    """Sort the metadata in the header by name, since the library writes them in an order that is not deterministic."""
    with path.open("r+b") as file:
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length))
        header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
        text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
        assert len(text) <= length, "the same content, written as compactly"
        file.seek(8)
        file.write(text.ljust(length))
