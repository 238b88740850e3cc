"""JSON of untrusted origin, read with a bound on its size, and the digest of a JSON document."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from podium.core.files import read_bounded

LARGEST = 64 << 20  # bytes of a file of a run; the greatest holds the run's log


def digest_of(document: Mapping[str, Any]) -> str:
    """SHA-256 of a JSON document with sorted keys, in hexadecimal."""
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode("utf-8")).hexdigest()


def read_json(path: Path, largest: int = LARGEST) -> Any:
    """The document in a file of at most `largest` bytes. Raises ValueError with the reason where there is none."""
    try:
        content = read_bounded(path, largest)
    except OSError as error:
        raise ValueError(f"it cannot be read ({error.strerror})") from None
    return parse_json(content)


def parse_json(text: str | bytes) -> Any:
    """The document in a text. Raises ValueError with the reason where there is none, also where it is nested too deep
    or has a number of thousands of digits."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"it is no JSON document ({error})") from None
