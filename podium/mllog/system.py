"""Lenient parsing of the fields of a system description, which are written by hand, with all values as text."""

import math
import re
from collections.abc import Mapping
from typing import Any

from podium.core.text import one_line

EMPTY_TEXTS = ("", "n/a", "na", "none", "-", "null", "not applicable")
# An amount of memory at the start of a text: `1 TB`, `1,024 GB`, `24 x 32GB RDIMM`.
MEMORY_AMOUNT = re.compile(
    r"\s*(?:(\d{1,6})\s*[x×*]\s*)?(\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d{1,15}(?:\.\d+)?)\s*([mgtp])(i?)b(?![\w/])",
    re.IGNORECASE,
)
# After the amount: text by which it is not the total, such as `per socket`, `x 8`, or a second amount.
NOT_A_TOTAL = re.compile(r"\b(?:per|each|x)\b|[×*+]|\bx\d|\d\s*[mgtp]i?b\b", re.IGNORECASE)
MAX_COUNT = 10_000_000  # upper bound on plausible numbers of nodes or accelerators


def readable_fields(fields: Mapping[str, Any]) -> dict[str, str]:
    """Return the fields of a description that are strings or numbers, as printable single lines."""
    found = {}
    for key, value in fields.items():
        if isinstance(value, str) or (isinstance(value, int | float) and not isinstance(value, bool)):
            found[one_line(key)] = one_line(str(value))
    return found


def parse_count(text: str | None) -> int | None:
    """Parse a count such as `8`, `8.0` or ` 8 `; 0 for texts such as `N/A` or `none`, None for anything else."""
    if text is None:
        return None
    if text.strip().lower() in EMPTY_TEXTS[1:]:
        return 0
    try:
        number = float(text)
    except ValueError:
        return None
    return int(number) if math.isfinite(number) and 0 <= number <= MAX_COUNT and number == int(number) else None


def parse_memory_size(text: str) -> float | None:
    """Parse bytes from an amount such as `1.5 TB`, `512 GiB` or `8 x 64 GB`; None for no amount, or several."""
    found = MEMORY_AMOUNT.match(text)
    if found is None or NOT_A_TOTAL.search(text, found.end()):
        return None
    times, number, unit, binary = found.groups()
    power = "mgtp".index(unit.lower()) + 2
    unit_bytes = float((1024 if binary else 1000) ** power)
    return int(times or 1) * float(number.replace(",", "")) * unit_bytes


def parse_name(text: str | None) -> str | None:
    """Return a name without surrounding space; None for an empty text, `N/A`, `none` and the like."""
    return None if text is None or text.strip().lower() in EMPTY_TEXTS else text.strip()


def parse_division(text: str | None) -> str | None:
    """Parse a division: `closed` (also spelled `close`) or `open`; None for anything else."""
    return {"closed": "closed", "close": "closed", "open": "open"}.get((text or "").strip().lower())
