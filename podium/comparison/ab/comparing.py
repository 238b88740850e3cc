"""Two sides held against each other: whether they differ, by how much, in what, and what speaks against it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from benchmarks.errors import UsageError
from podium.comparison.ab.olympic import Fewer, fewer
from podium.comparison.ab.settings import Difference, differences, logged, unequal
from podium.comparison.ab.sides import Side
from podium.comparison.ab.significance import compare, summary
from podium.comparison.ab.verdict import Quantity, verdict
from podium.reading.run_log import Run

FEW = 5
"""Runs of a side below which a t-test says little."""
RECIPE = "recipe"
"""A name for other settings, and no further thing that differs."""
MOST_KEYS = 8
"""Settings that a warning names."""


@dataclass(frozen=True)
class Kind:
    """A quantity of runs that is compared."""

    title: str
    unit: str
    of: Callable[[Run], float | None]


KINDS: Mapping[str, Kind] = MappingProxyType(
    {
        "seconds": Kind("seconds", "s", lambda run: run.seconds),
        "samples": Kind("samples", "", lambda run: run.samples),
        "sequences_per_second": Kind("sequences/s", "/s", lambda run: run.rate),
        "sequences_per_second_without_evaluation": Kind("in training", "/s", lambda run: run.training_rate),
        "sequences_per_second_between_evaluations": Kind("steady", "/s", lambda run: run.steady_rate),
    }
)
"""To the target: time, samples and, of both, throughput; it without evaluation, and without start-up, where known."""


@dataclass(frozen=True)
class AB:
    """A against B."""

    a: Side
    b: Side
    verdict: str
    quantities: tuple[Quantity, ...]
    """In the order of KINDS."""
    a_fewer: Fewer | str
    """The rules' test of A's samples, B being the reference; or why there is none."""
    b_fewer: Fewer | str
    differing: tuple[Difference, ...]
    """Settings and facts that the sides do not have in common."""
    warnings: tuple[str, ...]
    """What speaks against the verdict, a sentence each."""
    notes: tuple[str, ...]


def held_against(a: Side, b: Side) -> AB:
    """Compare. UsageError where one side trained BERT-large and the other something smaller."""
    if a.full_size != b.full_size:
        small, large = ("A", "B") if b.full_size else ("B", "A")
        raise UsageError(
            f"--ab {a.asked!r} {b.asked!r}: {small} did not train BERT-large and {large} did: they cannot be compared"
        )
    quantities = tuple(_quantity(kind, a, b) for kind in KINDS)
    both = a.configured and b.configured
    told = [side.settings if both else logged(side.runs) for side in (a, b)]
    differing = differences({**told[0], **a.facts}, {**told[1], **b.facts})
    return AB(
        a,
        b,
        f"A ({a.name}) and B ({b.name}) are the same runs: there is nothing to compare."
        if len(a.runs) == len(b.runs) == _in_common(a, b) > 0
        else verdict(a.name, b.name, {quantity.kind: quantity for quantity in quantities}),
        quantities,
        _fewer(a, b),
        _fewer(b, a),
        differing,
        tuple(_warnings(a, b, quantities, differing)),
        tuple(_notes(a, b)),
    )


def converged(side: Side) -> tuple[Run, ...]:
    """The runs that are compared."""
    return tuple(run for run in side.runs if run.converged)


def _quantity(kind: str, a: Side, b: Side) -> Quantity:
    values = [[value for run in converged(side) if (value := KINDS[kind].of(run)) is not None] for side in (a, b)]
    summaries = summary(values[0]), summary(values[1])
    return Quantity(kind, *summaries, compare(*summaries))


def _fewer(side: Side, reference: Side) -> Fewer | str:
    """The rules' test, where all samples are known."""
    samples = [[run.samples for run in converged(one) if run.samples is not None] for one in (side, reference)]
    if any(len(known) < len(converged(one)) for known, one in zip(samples, (side, reference), strict=True)):
        return "not every log tells the samples to the target"
    return fewer(samples[0], len(side.runs) - len(converged(side)), samples[1])


def _warnings(a: Side, b: Side, quantities: Sequence[Quantity], differing: Sequence[Difference]) -> Iterator[str]:
    both = _in_common(a, b)
    if both:
        yield f"{both} run{'s are' if both > 1 else ' is'} on both sides, where a test needs independent ones"
    for name, side in (("A", a), ("B", b)):
        runs, left_out = len(converged(side)), len(side.runs) - len(converged(side))
        if left_out:
            all_runs = f"{left_out} of {name}'s {len(side.runs)} runs"
            yield f"{all_runs} did not reach the target and are left out, in {name}'s favour"
        if runs < FEW:
            yield f"{name} has few runs ({runs}): a test of so few sees nothing but large differences"
        mixed = unequal({**side.settings, **side.facts})
        if mixed:
            yield f"{name}'s runs are not of one setting: they differ in {_keys(mixed)}"
    for quantity in quantities:
        for name, side, found in (("A", a, quantity.a), ("B", b, quantity.b)):
            if 0 < found.n < len(converged(side)):
                yield f"{KINDS[quantity.kind].title}: known of {found.n} of {name}'s {len(converged(side))} runs"
            if quantity.kind == "samples" and found.n > 1 and found.sd == 0:
                yield (
                    f"all runs of {name} need the same {found.mean:,.0f} samples: evaluations are too far apart to "
                    "show how they spread"
                )
    things = [one.key for one in differing if one.key != RECIPE]
    if len(things) > 1:
        keys = _keys(things)
        yield f"the sides differ in {len(things)} things, and the test does not tell which of them it is: {keys}"


def _notes(a: Side, b: Side) -> Iterator[str]:
    sides = (("A", a), ("B", b))
    unknown = [name for name, side in sides if not side.configured]
    if len(unknown) == 1:
        yield f"settings are compared by what the logs tell of them: {unknown[0]}'s configuration is not known"
    yield from (f"{name}: {note}" for name, side in sides for note in side.notes)


def _in_common(a: Side, b: Side) -> int:
    """How many of A's runs are B's too: of one log, or as long to the millisecond and of as many samples."""
    digests = {run.digest for run in b.runs}
    prints = {(run.seconds, run.samples) for run in converged(b)}
    return sum(run.digest in digests or (run.converged and (run.seconds, run.samples) in prints) for run in a.runs)


def _keys(keys: Sequence[str]) -> str:
    rest = len(keys) - MOST_KEYS
    return ", ".join(keys[:MOST_KEYS]) + (f" and {rest:,} more" if rest > 0 else "")
