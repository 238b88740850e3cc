"""Results that are handed in again: the same runs under another name or in a later round."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from podium.comparison.result import Result
from podium.reading.run_log import Run

FEWEST = 2
"""Runs in common that are no chance, if they are also half of all."""


def mark_repeats(results: Sequence[Result]) -> list[Result]:
    """The results, in their order, those with `repeats` set that have at least half of their runs from an earlier one.

    Earlier is the earlier round, within a round the one before. Runs are the same if they took equally long, to the
    millisecond, and as many samples: a log may be edited when it is handed in again, its clock and names too.
    """
    first: dict[tuple[float, float | None], int] = {}
    marked = list(results)
    for number in sorted(range(len(results)), key=lambda n: (results[n].own, results[n].round or "", n)):
        result = results[number]
        prints = [found for run in result.runs if (found := _print(run)) is not None]
        origins = Counter(first[one] for one in prints if one in first)
        origin, common = origins.most_common(1)[0] if origins else (number, 0)
        if common >= FEWEST and 2 * common >= len(prints):
            marked[number] = replace(result, repeats=_named(results[origin], result))
        for one in prints:
            first.setdefault(one, number)
    return marked


def _named(origin: Result, result: Result) -> str:
    """With the package's folder where both have the same name."""
    package = Path(origin.source).parts[-4:-3]
    return f"{origin.name} (in {package[0]})" if origin.name == result.name and package else origin.name


def _print(run: Run) -> tuple[float, float | None] | None:
    return None if run.seconds is None or not run.converged else (run.seconds, run.samples)
