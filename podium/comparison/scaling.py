"""By what the rules scale a score whose runs needed fewer samples than the reference: as published, or as they will."""

from pathlib import Path

from benchmarks.bert.rules import RUNS
from benchmarks.errors import Interrupted, PodiumError
from podium.comparison.result import Result
from podium.reading.json_text import parse
from podium.reading.package import ResultFolder
from podium.reading.run_log import as_number
from podium.submission.packaging.scaling import SCALING, convergence
from podium.submission.rulesets import LATEST, ruleset

MAX_BYTES = 1 << 16
MOST = 2.0
"""That a factor can be: twice as many samples are never within what chance allows."""
CLOSED = "closed"


def factor(result: Result, folder: ResultFolder, odd: list[str]) -> float | None:
    """The factor in scaling.json, which the official package checker leaves beside the logs; None where it scales not.

    For one's own ten runs of the closed division the official checker is asked, by the latest ruleset. What is wrong is
    added to `odd`.
    """
    path = next((path for path in folder.others if path.name == SCALING), None)
    if path is not None:
        return _published(path, odd)
    if not result.own or result.division != CLOSED or not result.full_size or len(result.runs) != RUNS:
        return None
    if result.score_minutes is None:
        return None
    try:
        found = convergence(folder.logs, ruleset(LATEST))
    except Interrupted:
        raise
    except PodiumError as error:
        odd.append(f"how it converges against the reference is not known: {error}")
        return None
    if not found.passed:
        odd.append(f"needs fewer samples than ruleset {LATEST} accepts: {found.words}")
        return None
    return found.factor if found.scaling is not None else None


def _published(path: Path, odd: list[str]) -> float | None:
    try:
        if not path.is_file() or path.is_symlink():
            raise ValueError("is no plain file")
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise ValueError(f"is larger than {MAX_BYTES:,} bytes")
        fields, _ = parse(content.decode("utf-8"))
        found = as_number(fields.get("scaling_factor")) if isinstance(fields, dict) else None
        if found is None or not 1 <= found <= MOST:
            raise ValueError(f"has no scaling_factor from 1 to {MOST:g}")
    except (OSError, ValueError) as error:
        odd.append(f"{SCALING} is not used: it {error}")
        return None
    return found
