"""Fields of a system description, parsed leniently: descriptions are written by hand, and all values are text."""

import math
import re
from collections.abc import Mapping
from typing import Any

from podium.core.text import one_line

NOTHING = ("", "n/a", "na", "none", "-", "null", "not applicable")
# How much memory, at the start of a text: `1 TB`, `1,024 GB`, `24 x 32GB RDIMM`.
AMOUNT = re.compile(
    r"\s*(?:(\d{1,6})\s*[x×*]\s*)?(\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d{1,15}(?:\.\d+)?)\s*([mgtp])(i?)b(?![\w/])",
    re.IGNORECASE,
)
# After it: what makes it another amount than that of all memory.
ANOTHER = re.compile(r"\b(?:per|each|x)\b|[×*+]|\bx\d|\d\s*[mgtp]i?b\b", re.IGNORECASE)
MOST = 10_000_000  # nodes, or accelerators of a node, that a description may have


def texts(fields: Mapping[str, Any]) -> dict[str, str]:
    """The fields of a description that are texts or numbers, readable."""
    found = {}
    for key, value in fields.items():
        if isinstance(value, str) or (isinstance(value, int | float) and not isinstance(value, bool)):
            found[one_line(key)] = one_line(str(value))
    return found


def count(text: str | None) -> int | None:
    """A number of things, as `8`, `8.0` or ` 8 `; 0 for what says that there are none, None where it says nothing."""
    if text is None:
        return None
    if text.strip().lower() in NOTHING[1:]:
        return 0
    try:
        number = float(text)
    except ValueError:
        return None
    return int(number) if math.isfinite(number) and 0 <= number <= MOST and number == int(number) else None


def amount_of_memory(text: str) -> float | None:
    """Bytes of an amount such as `1.5 TB`, `512 GiB` or `8 x 64 GB`; None for a text that states none, or several."""
    found = AMOUNT.match(text)
    if found is None or ANOTHER.search(text, found.end()):
        return None
    times, number, unit, binary = found.groups()
    power = "mgtp".index(unit.lower()) + 2
    unit_bytes = float((1024 if binary else 1000) ** power)
    return int(times or 1) * float(number.replace(",", "")) * unit_bytes


def name(text: str | None) -> str | None:
    """A name, or None where it says that there is nothing."""
    return None if text is None or text.strip().lower() in NOTHING else text.strip()


def division(text: str | None) -> str | None:
    """closed (also spelled close) or open, None for anything else."""
    return {"closed": "closed", "close": "closed", "open": "open"}.get((text or "").strip().lower())
