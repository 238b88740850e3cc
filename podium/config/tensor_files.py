"""A checkpoint's files of tensors: whose they are, and that each byte of the tensors is as it was written.

The files are in the safetensors format. Their header has a stamp of the owner and a BLAKE2b digest of all tensors,
which are compared here without the library that reads the tensors.
"""

import json
import math
from collections.abc import Mapping
from hashlib import blake2b
from pathlib import Path
from typing import IO, Any

from podium.core.errors import WorkError
from podium.core.files import open_regular
from podium.core.json_files import digest_of, parse_json

STAMP = "podium"  # the header's only metadata key (a JSON value): safetensors has no fixed order of several
CONTENT = "content_blake2b"
DIGEST_BYTES = 32
LARGEST_HEADER = 100 * 10**6  # of safetensors
PIECE = 1 << 24
# The format's names of types, and those that the digest is made over.
TYPES = {
    "BOOL": "torch.bool",
    "U8": "torch.uint8",
    **{f"I{bits}": f"torch.int{bits}" for bits in (8, 16, 32, 64)},
    **{f"F{bits}": f"torch.float{bits}" for bits in (16, 32, 64)},
    "BF16": "torch.bfloat16",
}


def stamp_of(batches: int, rank: int, configuration: Mapping[str, Any]) -> dict[str, str]:
    """Whose file of tensors it is: of which checkpoint, rank and configuration."""
    return {"batches": str(batches), "rank": str(rank), "configuration": digest_of(configuration)}


def require_tensors(path: Path, stamp: Mapping[str, str]) -> None:
    """WorkError unless it is the file that was written with this stamp, with all that was written. Reads all of it."""
    advice = f"remove the folder {path.parent}, and the run goes on from the checkpoint before it"
    try:
        with open_regular(path) as file:
            header, start = _header(file)
            said = _stamp(header)
            for key, value in stamp.items():
                if said.get(key) != value:
                    raise WorkError(
                        f"{path}: is not this checkpoint's: its {key} is {said.get(key)}, and {value} is right; "
                        f"put the right file back, or {advice}"
                    )
            digest = _digest(file, start, header)
    except OSError as error:
        raise WorkError(f"{path}: cannot be read ({error.strerror or error}); {advice}") from error
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise WorkError(f"{path}: cannot be read (it is no whole file of tensors: {error}); {advice}") from error
    if digest != said.get(CONTENT):
        raise WorkError(f"{path}: is damaged: its tensors are not those that were written; {advice}")


def _header(file: IO[bytes]) -> tuple[dict[str, Any], int]:
    """The header, and where the tensors begin."""
    length = int.from_bytes(file.read(8), "little")
    if length > LARGEST_HEADER:
        raise ValueError(f"a header of {length} bytes")
    header = parse_json(file.read(length))
    if not isinstance(header, dict):
        raise ValueError("no header")
    return header, 8 + length


def _stamp(header: Mapping[str, Any]) -> dict[str, Any]:
    """The stamp and the digest; nothing where the file has none."""
    try:
        said = json.loads(header["__metadata__"][STAMP])
    except (KeyError, TypeError, ValueError, RecursionError):
        return {}
    return said if isinstance(said, dict) else {}


def _digest(file: IO[bytes], start: int, header: Mapping[str, Any]) -> str:
    """The digest over name, type, shape and bytes of the tensors, in the order of their names."""
    digest, end = blake2b(digest_size=DIGEST_BYTES), start
    for name in sorted(set(header) - {"__metadata__"}):
        kind, shape, (first, last) = (header[name][key] for key in ("dtype", "shape", "data_offsets"))
        digest.update(f"{name} {TYPES[kind]} {[int(size) for size in shape]}\n".encode())
        if not 0 <= first <= last or math.prod(shape) > last - first:
            raise ValueError(f"{name} is of {last - first} bytes")
        file.seek(start + first)
        left = last - first
        while left:
            piece = file.read(min(left, PIECE))
            if not piece:
                raise ValueError(f"{name} is cut off")
            digest.update(piece)
            left -= len(piece)
        end = max(end, start + last)
    if file.seek(0, 2) != end:
        raise ValueError(f"it has {file.tell()} bytes, and {end} are right")
    return digest.hexdigest()
