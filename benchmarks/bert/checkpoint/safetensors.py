"""Files of named tensors in the safetensors format: no code in them, nothing but a header and bytes."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from benchmarks.errors import UsageError, WorkError
from benchmarks.files import whole_file

SUFFIX = ".safetensors"
FLOAT = "F32"


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
            self._file = _opened(path)
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


def _opened(path: Path) -> Any:
    return safe_open(path, framework="np", backend="pread")


def write_safetensors(path: Path, tensors: Mapping[str, NDArray[np.float32]], metadata: Mapping[str, str]) -> None:
    """Write a file, whole or not at all; the same tensors and metadata give the same bytes.

    Raises WorkError if the disk or the permissions do not allow it.
    """
    assert all(values.flags.c_contiguous and values.dtype == np.float32 for values in tensors.values())
    with whole_file(path) as temporary:
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
