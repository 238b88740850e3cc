"""MLPerf's rulesets by name. Differences between rounds are in rulesets.yaml only, not in code."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from types import MappingProxyType

from pydantic import TypeAdapter

from benchmarks.bert.rules import RULESETS
from podium.core.errors import UsageError
from podium.core.paths import package_file
from podium.core.yaml_files import read_yaml
from podium.mllog.benchmarks import Benchmark, benchmarks

LATEST = RULESETS[-1]  # that includes BERT


@dataclass(frozen=True)
class Ruleset:
    """The rules of a round that differ between rounds."""

    name: str
    # Limit on initialisation in the open division, in minutes; in closed it is 30 in all rounds.
    open_minutes: int
    tensors: bool  # a closed log of BERT has a line for every initialised tensor of the model
    log_names: bool  # a log has submission_org and submission_platform
    log_status: bool  # a log has submission_status
    status_checked: bool  # a system's status must be one of the four of the rules
    seeds_checked: bool  # every run must log a seed, and all seeds must differ
    # A closed score that needs fewer samples than the reference, but is allowed, is scaled up: scaling.json.
    scaled: bool
    repo_checker: bool  # the official repo_checker knows this ruleset

    @property
    def round(self) -> str:
        """The round of the ruleset, such as v5.1."""
        return f"v{self.name.removesuffix('.0')}"

    @cached_property
    def benchmarks(self) -> Mapping[str, Benchmark]:
        """The benchmarks of the round, by name."""
        return MappingProxyType({name: one for name, one in benchmarks().items() if self.round in one.rounds})


def ruleset(name: str) -> Ruleset:
    """Return the ruleset of that name, such as 5.1.0. Raises UsageError if there is none."""
    if name not in rulesets():
        raise UsageError(f"--ruleset {name}: there is no such ruleset; allowed are {', '.join(rulesets())}")
    return rulesets()[name]


def ruleset_of_round(name: str) -> Ruleset | None:
    """Return the ruleset of a round, such as v5.1; None if there is none."""
    return next((one for one in rulesets().values() if one.round == name), None)


def bert_ruleset(name: str) -> Ruleset:
    """Return the ruleset of that name. Raises UsageError if it does not include BERT."""
    found = ruleset(name)
    if name not in RULESETS:
        rounds = benchmarks()["bert"].rounds
        raise UsageError(
            f"--ruleset {name}: BERT is not a benchmark of that round, but of rounds {rounds[0]} to {rounds[-1]}; "
            f"allowed are {', '.join(RULESETS)}"
        )
    return found


@cache
def rulesets() -> Mapping[str, Ruleset]:
    """Return all rulesets by name, oldest first."""
    entries = read_yaml(package_file("podium.mllog", "rulesets.yaml"))
    adapter = TypeAdapter(dict[str, Ruleset])
    return MappingProxyType(adapter.validate_python({name: {"name": name, **one} for name, one in entries.items()}))
