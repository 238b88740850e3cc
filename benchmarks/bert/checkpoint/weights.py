"""All weights of one BERT, gathered from a checkpoint and checked: names, shapes, size, finite values.

They are stored in the safetensors format: files of named tensors that contain a header and bytes, and no code.
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

SHOWN = 3  # so many of the missing tensors are named


class Source(Protocol):
    """A checkpoint of some format, opened."""

    path: Path
    names: list[str]  # of every tensor in it, an optimizer's too

    def shape(self, name: str) -> tuple[int, ...]: ...

    def read(self, name: str) -> NDArray[np.float32]: ...


@dataclass(frozen=True)
class Weights:
    """The weights of one BERT by the project's names, float32."""

    size: Size
    vocabulary: int
    tensors: dict[str, NDArray[np.float32]]

    @property
    def parameters(self) -> int:
        """Values there are."""
        return sum(values.size for values in self.tensors.values())


def find_size(source: Source, layout: Layout, asked: Size | None = None) -> tuple[Size, int]:
    """Which size a checkpoint has, by its layers and their width, and how many words.

    Raises UsageError where that is no known size or not the one asked for, WorkError if it is no BERT.
    """
    if layout.words not in source.names:
        raise WorkError(f"{source.path}: lacks {layout.words}, so it is no checkpoint of BERT; name another")
    shape = source.shape(layout.words)
    if len(shape) != 2:
        raise WorkError(f"{source.path}: {layout.words} is {list(shape)}, allowed is [vocabulary, hidden]")
    vocabulary, hidden = shape
    numbers = [int(found[1]) for found in map(layout.layer.match, source.names) if found]
    layers = max(numbers, default=-1) + 1
    found = next((size for size in SIZES.values() if (size.layers, size.hidden) == (layers, hidden)), None)
    here = f"its encoder is of {layers} × {hidden} (layers × width)" + (f", size {found.name}" if found else "")
    if asked and found != asked:
        wanted = f"size {asked.name} was asked for, which is {asked.layers} × {asked.hidden}"
        raise UsageError(f"{source.path}: {here}; {wanted}")
    if found is None:
        known = ", ".join(f"{size.name} {size.layers} × {size.hidden}" for size in SIZES.values())
        raise UsageError(f"{source.path}: {here}; the sizes are {known}")
    return found, vocabulary


def check_shapes(source: Source, layout: Layout, size: Size, vocabulary: int) -> list[Part]:
    """The tensors to read, each of which is there in its shape. Raises WorkError naming what is missing or wrong."""
    parts, there = layout.parts(size, vocabulary), set(source.names)
    missing = [part.name for part in parts if part.name not in there]
    if missing:
        more = f" and {len(missing) - SHOWN} more" if len(missing) > SHOWN else ""
        raise WorkError(
            f"{source.path}: lacks {', '.join(missing[:SHOWN])}{more} of the {len(parts)} tensors of size {size.name}; "
            "a whole checkpoint of pre-training is needed, with its heads"
        )
    for part in parts:
        shape = source.shape(part.name)
        if shape != part.shape:
            raise WorkError(
                f"{source.path}: {part.name} is {list(shape)}, allowed for size {size.name} is {list(part.shape)}"
            )
    return parts


def require_finite(path: Path, name: str, values: NDArray[np.float32]) -> NDArray[np.float32]:
    """The values of a tensor; WorkError if one is infinite or not a number."""
    bad = values.size - int(np.count_nonzero(np.isfinite(values)))
    if bad:
        raise WorkError(f"{path}: {name} has values that are infinite or no numbers, {bad:,} in all; use another")
    return values


def gather(
    source: Source, layout: Layout, asked: Size | None = None, on_tensor: Callable[[int, int], None] = lambda *_: None
) -> Weights:
    """Read every tensor of a checkpoint into the project's, bit for bit. At most one tensor more is held at a time.

    `on_tensor` is told how many were read, and of how many. Raises UsageError for another size than the one asked
    for and WorkError for whatever is missing or damaged.
    """
    size, vocabulary = find_size(source, layout, asked)
    parts = check_shapes(source, layout, size, vocabulary)
    tensors = {name: np.empty(shape, np.float32) for name, shape in podium_shapes(size, vocabulary).items()}
    for number, part in enumerate(parts, start=1):
        values = require_finite(source.path, part.name, source.read(part.name))
        tensors[part.podium][part.rows] = values.T if part.transposed else values
        on_tensor(number, len(parts))
    return Weights(size, vocabulary, tensors)


SUFFIX = ".safetensors"
FLOAT = "F32"
_open: Any = safe_open  # whose methods have no types


class SafetensorsFile:
    """One file, opened; float32 tensors are read one at a time.

    Opening reads the header, which the library checks against the file's size. Raises UsageError if there is no such
    file and WorkError if it is not whole or not of this format.
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
            raise WorkError(f"{path}: cannot be read as safetensors ({error}); make it or copy it again") from error
        self.names: list[str] = list(self._file.keys())
        self.metadata: Mapping[str, str] = self._file.metadata() or {}

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a tensor that is in `names`. Raises WorkError if it is not float32."""
        tensor = self._file.get_slice(name)
        if tensor.get_dtype() != FLOAT:
            found = f"{name} is {tensor.get_dtype()}"
            raise WorkError(f"{self.path}: {found}, allowed is {FLOAT}; save the weights as float32")
        return tuple(tensor.get_shape())

    def read(self, name: str) -> NDArray[np.float32]:
        """A float32 tensor that is in `names`. Raises WorkError if it is not float32 or cannot be read."""
        self.shape(name)
        try:
            values: NDArray[np.float32] = self._file.get_tensor(name)
        except (SafetensorError, OSError) as error:
            raise WorkError(f"{self.path}: {name} cannot be read ({error}); make it or copy it again") from error
        return values


def write_safetensors(path: Path, tensors: Mapping[str, NDArray[np.float32]], metadata: Mapping[str, str]) -> None:
    """Write a file, whole or not at all; the same tensors and metadata give the same bytes.

    Raises WorkError if the disk or the permissions do not allow it.
    """
    assert all(values.flags.c_contiguous and values.dtype == np.float32 for values in tensors.values())
    with atomic_file(path) as temporary:
        temporary.touch()
        mode = temporary.stat().st_mode
        try:
            save_file(dict(tensors), temporary, dict(metadata))
        except SafetensorError as error:
            advice = "see that the folder exists, may be written and has space"
            raise WorkError(f"{path}: cannot be written ({error}); {advice}") from error
        _order_metadata(temporary)
        temporary.chmod(mode)  # the library keeps its files to the user alone


def _order_metadata(path: Path) -> None:
    """Put the header's metadata in the order of their names: the library's order differs from time to time."""
    with path.open("r+b") as file:
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length))
        header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
        text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
        assert len(text) <= length, "the same content, written as compactly"
        file.seek(8)
        file.write(text.ljust(length))
