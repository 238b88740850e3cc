"""One's own results beside the published ones: a sentence each."""

from collections.abc import Sequence

from podium.comparison.result import Result


def own_sentences(results: Sequence[Result], others: Sequence[Result] = ()) -> list[str]:
    """How each of one's own results stands against the published ones of the same kind and number of accelerators.

    `others` are more published ones. Of one size those of one's own division count, where there are any; others are
    named. Where none has that number of accelerators, throughput an accelerator is held against the nearest number.
    """
    published = [one for one in (*results, *others) if not one.own and one.full_size and one.minutes is not None]
    return [_sentence(result, published) for result in results if result.own]


def _sentence(result: Result, published: Sequence[Result]) -> str:
    name = f"your {result.system} ({_size(result)})"
    if not result.full_size:
        return f"{name} did not train BERT-large, and is not held against results that did"
    if result.minutes is None:
        return f"{name} has no run that reached the target"
    alike = [one for one in published if one.family == result.family and one.accelerators]
    if result.family is None or not result.accelerators or not alike:
        return f"{name}: none of the results is of this accelerator, or their sizes are not known"
    told = f"{_length(result)}" + (
        f"; {result.evaluation_share:.0%} of it is evaluation" if result.evaluation_share is not None else ""
    )
    same = [one for one in alike if one.accelerators == result.accelerators]
    same = [one for one in same if one.division == result.division] or same
    if same:
        best = min(same, key=_counting)
        ratio = _counting(result) / _counting(best)
        return f"{name} is at {ratio:.2f}× the best published time ({_named(best)}): {told}"
    rate = result.per_accelerator(result.sequences_per_second)
    rated = [one for one in alike if _rate(one)]
    if not rate or not rated:
        return f"{name}: no published result has as many accelerators; {told}"
    nearest = min(rated, key=lambda one: (abs((one.accelerators or 0) - (result.accelerators or 0)), -_rate(one)))
    return (
        f"{name} trains {rate:,.1f} sequences/s an accelerator, {rate / _rate(nearest):.2f}× as many as the nearest "
        f"published size, {nearest.accelerators:,} ({_named(nearest)}): {told}"
    )


def _counting(result: Result) -> float:
    """Minutes, scaled where the rules scale them."""
    minutes = result.score_minutes_scaled or result.minutes
    assert minutes is not None
    return minutes


def _rate(result: Result) -> float:
    return result.per_accelerator(result.sequences_per_second) or 0.0


def _size(result: Result) -> str:
    if result.accelerators:
        return f"{result.accelerators:,}×{result.family or 'accelerator'}"
    return "no accelerators" if result.accelerators == 0 else "size not known"


def _length(result: Result) -> str:
    if result.score_minutes is None:
        return f"{result.minutes:.2f} min, the mean of {len(result.converged)} run(s) and no score yet"
    scaled = "" if result.scaling_factor is None else f" ({result.score_minutes_scaled:.2f} min as the rules scale it)"
    return f"{result.score_minutes:.2f} min{scaled}"


def _named(result: Result) -> str:
    division = "" if result.division == "closed" else f", {result.division or 'division not known'}"
    return f"{result.round} {result.submitter} {result.system}, {_counting(result):.2f} min{division}"
