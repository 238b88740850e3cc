"""Verification of a checkpoint's tensor files: that they belong to it and that their content is intact.

The files are in the safetensors format. Their header has a stamp (batch, rank, configuration) and a BLAKE2b digest of
all tensors, which are verified here without the safetensors library.
"""

import json
import math
from collections.abc import Mapping
from hashlib import blake2b
from pathlib import Path
from typing import IO, Any

from podium.core.errors import WorkError
from podium.core.files import open_regular
from podium.core.json_files import json_digest, parse_json

STAMP_KEY = (
    "podium"  # the header's only metadata key, with a JSON value: safetensors writes several keys in no fixed order
)
CONTENT_DIGEST = "content_blake2b"
DIGEST_BYTES = 32
MAX_HEADER_BYTES = 100 * 10**6  # as the safetensors library allows
CHUNK_BYTES = 1 << 24
# safetensors dtype → the name that goes into the digest.
DTYPE_NAMES = {
    "BOOL": "torch.bool",
    "U8": "torch.uint8",
    **{f"I{bits}": f"torch.int{bits}" for bits in (8, 16, 32, 64)},
    **{f"F{bits}": f"torch.float{bits}" for bits in (16, 32, 64)},
    "BF16": "torch.bfloat16",
}


def make_stamp(batches: int, rank: int, configuration: Mapping[str, Any]) -> dict[str, str]:
    """Return the stamp of a tensor file, which identifies its checkpoint, rank and configuration."""
    return {"batches": str(batches), "rank": str(rank), "configuration": json_digest(configuration)}


def verify_tensor_file(path: Path, stamp: Mapping[str, str]) -> None:
    """Raise WorkError unless a tensor file has this stamp and its content matches its digest. Reads the whole file."""
    advice = f"remove the folder {path.parent} to resume from the previous checkpoint"
    try:
        with open_regular(path) as file:
            header, start = _header(file)
            found = _stamp(header)
            for key, value in stamp.items():
                if found.get(key) != value:
                    raise WorkError(
                        f"{path}: belongs to another checkpoint: its {key} is {found.get(key)}, expected {value}; "
                        f"restore the right file, or {advice}"
                    )
            digest = _digest(file, start, header)
    except OSError as error:
        raise WorkError(f"{path}: cannot be read ({error.strerror or error}); {advice}") from error
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise WorkError(f"{path}: cannot be read (it is not a complete tensor file: {error}); {advice}") from error
    if digest != found.get(CONTENT_DIGEST):
        raise WorkError(f"{path}: is damaged: its tensors do not match their digest; {advice}")


def _header(file: IO[bytes]) -> tuple[dict[str, Any], int]:
    """Read the JSON header; return it and the offset of the tensors in bytes."""
    # Layout: header length (8 bytes, little-endian), header (JSON), tensors at offsets relative to the header's end.
    length = int.from_bytes(file.read(8), "little")
    if length > MAX_HEADER_BYTES:
        raise ValueError(f"a header of {length} bytes")
    header = parse_json(file.read(length))
    if not isinstance(header, dict):
        raise ValueError("no header")
    return header, 8 + length


def _stamp(header: Mapping[str, Any]) -> dict[str, Any]:
    """Return the stamp and the digest from the header; {} if it has none."""
    try:
        stamp = json.loads(header["__metadata__"][STAMP_KEY])
    except (KeyError, TypeError, ValueError, RecursionError):
        return {}
    return stamp if isinstance(stamp, dict) else {}


def _digest(file: IO[bytes], start: int, header: Mapping[str, Any]) -> str:
    """BLAKE2b digest over name, type, shape and bytes of all tensors, sorted by name."""
    digest, end = blake2b(digest_size=DIGEST_BYTES), start
    for name in sorted(set(header) - {"__metadata__"}):
        dtype, shape, (first, last) = (header[name][key] for key in ("dtype", "shape", "data_offsets"))
        digest.update(f"{name} {DTYPE_NAMES[dtype]} {[int(size) for size in shape]}\n".encode())
        if not 0 <= first <= last or math.prod(shape) > last - first:
            raise ValueError(f"{name} has {last - first} bytes")
        file.seek(start + first)
        remaining = last - first
        while remaining:
            chunk = file.read(min(remaining, CHUNK_BYTES))
            if not chunk:
                raise ValueError(f"{name} is cut off")
            digest.update(chunk)
            remaining -= len(chunk)
        end = max(end, start + last)
    if file.seek(0, 2) != end:  # bytes after the last tensor would be covered by no digest
        raise ValueError(f"it has {file.tell()} bytes, expected {end}")
    return digest.hexdigest()
