"""The round of MLPerf Training that a tree of results belongs to: by its name, its repository's URL, or its dates."""

import re
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from podium.mllog.benchmarks import round_at, rounds

_ROUND_NAME = re.compile(r"(?:^|[\W_])(?:v|round)?(\d\.\d)(?:\.0)?(?=$|[^\w.]|_)", re.IGNORECASE)
_CLONE_URL = re.compile(r"training[-_]results[-_]v?(\d\.\d)", re.IGNORECASE)
MAX_GIT_CONFIG = 1 << 16
PARENT_LEVELS = 3  # folders above a package that may name its round


def parse_round(text: str) -> str | None:
    """Return the round in a name, such as v2.1 for training_results_v2.1, 2.1 or V2.1; None if there is none."""
    found = [f"v{number}" for number in _ROUND_NAME.findall(text)]
    known = [name for name in found if name in rounds()]
    return known[-1] if known else None


def find_round(root: Path, top: Path) -> str | None:
    """Return the round of the package in `root`, which was found in the tree `top`; None if it is unknown.

    It is taken from the names of the folders above `root`, the nearest first, and of `top`, or from the URL that one of
    them was cloned from.
    """
    for folder in list(root.absolute().parents)[:PARENT_LEVELS]:
        name = parse_round(folder.name) or _round_from_git_config(folder)
        if name is not None:
            return name
    return parse_round(top.name) or _round_from_git_config(top)


def round_from_dates(starts_ms: Sequence[float]) -> str | None:
    """Return the round that runs which started at these times (ms since 1970) were made for.

    This is the round at the median of the newest half of the times, since runs of earlier rounds may be submitted
    again. None for no times, and for times after the last published round.
    """
    found = round_at(median(sorted(starts_ms)[len(starts_ms) // 2 :])) if starts_ms else None
    return None if found is None or rounds()[found] is None else found


def _round_from_git_config(folder: Path) -> str | None:
    try:
        with (folder / ".git" / "config").open("rb") as file:
            found = _CLONE_URL.search(file.read(MAX_GIT_CONFIG).decode("utf-8", errors="replace"))
    except OSError:
        return None
    return f"v{found[1]}" if found is not None and f"v{found[1]}" in rounds() else None
