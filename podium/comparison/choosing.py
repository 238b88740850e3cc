"""Which of the results are shown."""

from collections.abc import Sequence
from dataclasses import replace

from benchmarks.errors import UsageError
from podium.comparison.gathering import Comparison
from podium.comparison.result import Result
from podium.comparison.rounds import round_named

OWN = "own"


def choose(
    comparison: Comparison, rounds: Sequence[str], accelerators: Sequence[str], divisions: Sequence[str]
) -> Comparison:
    """The results of any of the rounds (`own` for those of none), accelerators and divisions; all where none is named.

    The rest become the comparison's `others`.

    An accelerator is named by a part of its name or of its family's. UsageError for a name that no result has.
    """
    results = comparison.results
    wanted = {OWN if name.lower() == OWN else round_named(name) or name for name in rounds}
    chosen = [one for one in results if not wanted or (one.round or OWN) in wanted]
    there = sorted({one.round or OWN for one in results})
    _all_found("--round", wanted, {one.round or OWN for one in results}, there)
    parts = [part.lower() for part in accelerators]
    for part in parts:
        if not any(_has(one, part) for one in results):
            known = sorted({one.family for one in results if one.family is not None})
            raise UsageError(f"--accelerator {part}: no result has one; there are {', '.join(known) or 'none'}")
    chosen = [one for one in chosen if not parts or any(_has(one, part) for part in parts)]
    for division in divisions:
        if division not in ("closed", "open"):
            raise UsageError(f"--division {division}: allowed is closed or open")
    chosen = [one for one in chosen if not divisions or one.division in divisions]
    numbers = {id(one) for one in chosen}
    others = tuple(one for one in results if id(one) not in numbers)
    return replace(comparison, results=tuple(chosen), others=(*comparison.others, *others))


def _has(result: Result, part: str) -> bool:
    return any(part in name.lower() for name in (result.accelerator, result.family) if name is not None)


def _all_found(option: str, wanted: set[str], found: set[str], there: Sequence[str]) -> None:
    for name in sorted(wanted - found):
        raise UsageError(f"{option} {name}: no result is of it; there are {', '.join(there)}")
