"""Reading of untrusted JSON with a bound on its size, and the digest of a JSON document."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from podium.core.files import read_bounded

MAX_JSON_BYTES = 64 << 20  # the largest file of a run is one that contains its log


def json_digest(document: Mapping[str, Any]) -> str:
    """SHA-256 of a JSON document with sorted keys, in hexadecimal."""
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode("utf-8")).hexdigest()


def read_json(path: Path, largest: int = MAX_JSON_BYTES) -> Any:
    """Read a JSON file of at most `largest` bytes. Raises ValueError if it cannot be read or is not JSON."""
    try:
        content = read_bounded(path, largest)
    except OSError as error:
        raise ValueError(f"it cannot be read ({error.strerror})") from None
    return parse_json(content)


def parse_json(text: str | bytes) -> Any:
    """Parse a JSON document. Raises ValueError if it is not JSON, is nested too deeply or has a huge integer."""
    # json raises RecursionError for deep nesting, and ValueError for an integer of more than 4,300 digits.
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"it is not a JSON document ({error})") from None
