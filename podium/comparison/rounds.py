"""Which round of MLPerf Training a tree of results is: by its name, by what it was cloned from, or by its dates."""

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

ROUNDS = {
    "v0.5": "2018-12-12",
    "v0.6": "2019-07-10",
    "v0.7": "2020-07-29",
    "v1.0": "2021-06-30",
    "v1.1": "2021-12-01",
    "v2.0": "2022-06-29",
    "v2.1": "2022-11-09",
    "v3.0": "2023-06-27",
    "v3.1": "2023-11-08",
    "v4.0": "2024-06-12",
    "v4.1": "2024-11-13",
    "v5.0": "2025-06-04",
    "v5.1": "2025-11-12",
}
"""When its results were published. BERT was in v0.7 to v5.0."""

_NAMED = re.compile(r"(?:^|[\W_])(?:v|round)?(\d\.\d)(?:\.0)?(?=$|[^\w.]|_)", re.IGNORECASE)
_CLONED = re.compile(r"training[-_]results[-_]v?(\d\.\d)", re.IGNORECASE)
MAX_GIT_CONFIG = 1 << 16
LEVELS = 3
"""Folders above a package that may name its round."""


def round_named(text: str) -> str | None:
    """The round that a name speaks of, such as v2.1 for training_results_v2.1, 2.1 or V2.1; None for none."""
    found = [f"v{number}" for number in _NAMED.findall(text)]
    known = [name for name in found if name in ROUNDS]
    return known[-1] if known else None


def round_of(root: Path, top: Path) -> str | None:
    """The round of the package in `root`, found in the tree `top`: by the names of the folders above it, the nearest
    first, down to `top`'s own and its parents', or by what `top` was cloned from. None where nothing tells."""
    for folder in list(root.absolute().parents)[:LEVELS]:
        name = round_named(folder.name) or _cloned(folder)
        if name is not None:
            return name
    return round_named(top.name) or _cloned(top)


def round_by_dates(starts_ms: Sequence[float]) -> str | None:
    """The round that runs of these dates can have been made for: the first one that was published after the median of
    the newest half of them, as results of earlier rounds may be handed in again. None after the last round."""
    if not starts_ms:
        return None
    newest = median(sorted(starts_ms)[len(starts_ms) // 2 :])
    return next((name for name, day in ROUNDS.items() if newest < _milliseconds(day)), None)


def _milliseconds(day: str) -> float:
    return datetime.fromisoformat(day).replace(tzinfo=UTC).timestamp() * 1e3


def _cloned(folder: Path) -> str | None:
    try:
        with (folder / ".git" / "config").open("rb") as file:
            found = _CLONED.search(file.read(MAX_GIT_CONFIG).decode("utf-8", errors="replace"))
    except OSError:
        return None
    return f"v{found[1]}" if found is not None and f"v{found[1]}" in ROUNDS else None
