"""Files of tensors that say whose they are and what they hold, so that none is taken that is damaged or another's.

safetensors files, in whose own header stand the owner's stamp and a digest of all tensors: it is there as soon as the
file is, and no rank has to tell it to another. BLAKE2b is as fast on processors without instructions for SHA-256.
"""

import json
from collections.abc import Iterable, Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from benchmarks.errors import WorkError
from benchmarks.files import whole_file

STAMP = "podium"
"""The only key of a header's metadata, whose value is JSON: safetensors writes several in an order of chance."""
CONTENT = "content_blake2b"
DIGEST_BYTES = 32


def content_digest(tensors: Iterable[tuple[str, Tensor]]) -> str:
    """A digest over name, type, shape and bytes of tensors on the host, in the order given."""
    digest = blake2b(digest_size=DIGEST_BYTES)
    for name, tensor in tensors:
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        digest.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def write_tensors(path: Path, tensors: Mapping[str, Tensor], stamp: Mapping[str, str]) -> None:
    """Write a file, whole or not at all. WorkError where the disk does not take it."""
    content = content_digest((name, tensors[name]) for name in sorted(tensors))
    with whole_file(path) as temporary:
        temporary.touch()
        mode = temporary.stat().st_mode
        try:
            save_file(dict(tensors), temporary, metadata={STAMP: json.dumps({**stamp, CONTENT: content})})
        except SafetensorError as error:
            raise WorkError(f"{path}: cannot be written ({error}); see that the disk has space") from error
        temporary.chmod(mode)  # the library keeps its files to the user alone


class TensorFile:
    """A file of tensors to read. WorkError for one that cannot be read."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._file: Any = safe_open(path, framework="pt")
            self._names = set(self._file.keys())  # type: ignore[no-untyped-call]
        except (OSError, SafetensorError) as error:
            raise WorkError(f"{path}: cannot be read ({error}); remove the folder {path.parent}") from error

    def require(self, stamp: Mapping[str, str]) -> None:
        """WorkError unless it is the one that was written with this stamp, with all that was written. Reads all."""
        said = self._said()
        advice = f"remove the folder {self._path.parent}, and the run goes on from the checkpoint before it"
        for key, value in stamp.items():
            if said.get(key) != value:
                raise WorkError(
                    f"{self._path}: is not this checkpoint's: its {key} is {said.get(key)}, and {value} is right; "
                    f"put the right file back, or {advice}"
                )
        if content_digest((name, self.get(name)) for name in sorted(self._names)) != said.get(CONTENT):
            raise WorkError(f"{self._path}: is damaged: its tensors are not those that were written; {advice}")

    def _said(self) -> dict[str, Any]:
        """The stamp and the digest; nothing where the file has none."""
        try:
            said = json.loads((self._file.metadata() or {})[STAMP])
        except (KeyError, ValueError):
            return {}
        return said if isinstance(said, dict) else {}

    def get(self, name: str) -> Tensor:
        if name not in self._names:
            raise WorkError(f"{self._path}: holds no {name}; go on with the version and packages that wrote it")
        tensor: Tensor = self._file.get_tensor(name)
        return tensor

    def copy_to(self, name: str, tensor: Tensor) -> None:
        """Bring a tensor to what it was, in place."""
        found = self.get(name)
        if (found.shape, found.dtype) != (tensor.shape, tensor.dtype):
            raise WorkError(
                f"{self._path}: {name} is {found.dtype} {list(found.shape)}, and the run has {tensor.dtype} "
                f"{list(tensor.shape)}; go on with the configuration that wrote it"
            )
        tensor.copy_(found)
