"""JSON files of untrusted origin, read with a bound on their size, and the digest of a JSON document."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def digest_of(document: Mapping[str, Any]) -> str:
    """SHA-256 of a JSON document with sorted keys, in hexadecimal."""
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode("utf-8")).hexdigest()


def read_json(path: Path, largest: int) -> Any:
    """The document in a file of at most `largest` bytes. Raises ValueError with the reason where there is none."""
    if not path.is_file():
        raise ValueError("it is no regular file")
    try:
        with path.open("rb") as file:
            content = file.read(largest + 1)
    except OSError as error:
        raise ValueError(f"it cannot be read ({error.strerror})") from None
    if len(content) > largest:
        raise ValueError(f"it has more than {largest:,} bytes")
    try:
        return json.loads(content.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"it is no JSON document ({error})") from None
