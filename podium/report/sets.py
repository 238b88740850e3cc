"""Several sets of runs: the settings in which they differ, and how each differs from the first in time and samples."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Any

from benchmarks.bert.published.hyperparameters import hyperparameter_sets
from podium.config.hyperparameters import NON_NUMERIC_KEYS
from podium.config.load import read_configuration, recipe_files
from podium.config.schema import OptimizerSettings
from podium.mllog.significance import Welch, format_p_value, summarize, welch_test
from podium.report.load import flatten
from podium.report.run import SETTINGS, ReportedRun, ReportedSet, Setting, format_setting

# Quantities that are compared, of the runs that succeeded or completed.
QUANTITIES = ("seconds", "samples", "sequences_per_second")
# Keys that never name a set: paths, and what differs between the runs of a set.
UNNAMED = ("seed", "data.", "phases", "description.")
# The settings that determine which set of hyper-parameters is chosen.
DETERMINE_HYPERPARAMETERS = ("size", "optimizer.algorithm", "global_batch_size")
MAX_NAMED = 6  # settings in a set's name
MAX_VALUE = 60  # characters


@dataclass(frozen=True)
class ComparedSet:
    """One of several sets."""

    set: ReportedSet
    name: str  # the settings in which the sets differ; unique
    differing: Mapping[str, Setting]  # these settings, by their dotted keys
    # Against `reference`, by QUANTITIES; a reason without a test; empty for the reference itself.
    tests: Mapping[str, Welch | str]
    reference: str  # number and name of the first set that has runs which succeeded or completed, else of the first

    def values(self, quantity: str) -> list[float]:
        return _values(self.set, quantity)


def compare_sets(sets: Sequence[ReportedSet]) -> list[ComparedSet]:
    """Name the sets by the settings in which they differ, and test each against the first that has runs."""
    if not sets:
        return []
    first, named = next((place for place, one in enumerate(sets) if one.good_runs), 0), name_sets(sets)
    reference = f"{first + 1} {named[first][0]}"
    values = {key: summarize(_values(sets[first], key)) for key in QUANTITIES}
    found = []
    for place, (one, (name, differing)) in enumerate(zip(sets, named, strict=True)):
        sides = ("this set", f"set {reference}")
        tests = {key: welch_test(summarize(_values(one, key)), values[key], sides) for key in QUANTITIES}
        found.append(ComparedSet(one, name, differing, tests if place != first else {}, reference))
    return found


def _values(one: ReportedSet, quantity: str) -> list[float]:
    return [run.totals[quantity] for run in one.good_runs if quantity in run.totals]


def format_p(test: Welch | str | None) -> str:
    """Format the p of a test for a table; a dash without a test."""
    return format_p_value(test.p).removeprefix("p = ") if isinstance(test, Welch) else "–"


def welch_json(test: Welch | str) -> dict[str, Any]:
    """Return a test for JSON."""
    if isinstance(test, str):
        return {"p": None, "reason": test}
    reason = None if test.interval else "the interval has no finite ends at this n and sd: make more runs"
    return {"p": test.p, "ratio": test.ratio, "interval": test.interval, "reason": reason}


def p_caption(compared: Sequence[ComparedSet]) -> str:
    """Return the caption of a table of sets, with the set that the others are tested against."""
    return (
        f"p: Welch's t-test of the mean against that of set {compared[0].reference}, two-sided and not corrected for "
        "the number of sets. Runs that missed their target, failed or were stopped are left out. –: no test, for fewer "
        "than two runs or no spread."
    )


def name_sets(sets: Sequence[ReportedSet]) -> list[tuple[str, dict[str, Setting]]]:
    """Return for each set a unique name, and the settings in which the sets differ.

    Values that follow from a set's recipe, its hyper-parameters or its system are left out. Sets with the same settings
    are named by their folders too.
    """
    keys = list(differing_keys([one.common_settings for one in sets]))
    settings = [{key: one.common_settings[key] for key in keys if key in one.common_settings} for one in sets]
    names = [", ".join(_format(key, value) for key, value in list(found.items())[:MAX_NAMED]) for found in settings]
    if len(set(names)) < len(names) or not all(names):
        names = [", ".join(filter(None, (name, one.path.name))) for name, one in zip(names, sets, strict=True)]
    if len(set(names)) < len(names):  # sets in folders of the same name
        names = [f"{place} {name}" for place, name in enumerate(names, 1)]
    return list(zip(names, settings, strict=True))


def _format(key: str, value: Setting) -> str:
    text = format_setting(value)[:MAX_VALUE]
    return text if key in ("system", "recipe") else f"{SETTINGS.get(key, key)} {text}"


def differing_keys(common: Sequence[Mapping[str, Setting]]) -> Iterator[str]:
    """Yield the keys in which settings differ, without those that follow from others; the main settings first."""
    known = dict.fromkeys([*SETTINGS, *(key for found in common for key in found)])
    missing = object()  # a key that a set lacks, or in which its runs differ
    differing = [key for key in known if len({_comparable(found.get(key, missing)) for found in common}) > 1]
    bases = [_base(found) for found in common]
    for key in differing:
        if key.startswith(UNNAMED) or (key.startswith("launch.") and "system" in differing):
            continue
        if key == "hyperparameters" and any(other in differing for other in ("recipe", *DETERMINE_HYPERPARAMETERS)):
            continue
        given = [key in base for base in bases]
        follows = all(
            base.get(key, found.get(key)) == found.get(key) for found, base in zip(common, bases, strict=True)
        )
        if not (any(given) and follows) or key in ("recipe", "optimizer.algorithm"):
            yield key


def _comparable(value: object) -> object:
    """Return a value that is equal only to the same value: True is not 1."""
    return (isinstance(value, bool), value)


def _base(settings: Mapping[str, Setting]) -> Mapping[str, Setting]:
    """Return the values that a set's recipe and its hyper-parameters give, by dotted keys."""
    known = hyperparameter_sets().get(str(settings.get("hyperparameters")))
    numbers = OptimizerSettings.model_validate(known.optimizer).model_dump(mode="json") if known is not None else {}
    of_set = {key: value for key, value in numbers.items() if key not in NON_NUMERIC_KEYS}
    recipe = _recipe_values(str(settings.get("implementation", "pytorch"))).get(str(settings.get("recipe")), {})
    return {**recipe, **dict(flatten({"optimizer": of_set}, ""))}


@cache
def _recipe_values(implementation: str) -> Mapping[str, Mapping[str, Setting]]:
    """Return the values of this version's recipes, by recipe and dotted key; empty for an unknown implementation."""
    files = recipe_files(implementation) if implementation.isidentifier() else []
    return MappingProxyType({path.stem: dict(flatten(read_configuration(path), "")) for path in files})


@dataclass(frozen=True)
class SlowRank:
    """A rank that was the slowest of a run in some steps. The field names are keys of the JSON report."""

    rank: int
    steps: int  # in which it was the slowest
    share: float  # of the steps whose times are known
    excess_ms: float  # mean over these steps of its time less the mean of all ranks
    excess_share: float  # that, divided by the mean of all ranks
    host: str | None


def slowest_ranks(run: ReportedRun) -> list[SlowRank]:
    """Return the ranks that were slowest in any step, the most frequent first; empty if their times are not known."""
    work = run.metrics.rank_work
    ranks = [
        SlowRank(rank, count, count / work.steps, excess / count, relative / count, run.host(rank))
        for rank, (count, excess, relative) in work.slowest.items()
    ]
    return sorted(ranks, key=lambda one: (-one.steps, one.rank))
