"""MLPerf's rulesets by name. Differences between rounds for BERT are in rulesets.yaml only, not in code."""

from dataclasses import dataclass
from functools import cache

from pydantic import TypeAdapter

from benchmarks.bert.rules import RULESETS
from podium.core.errors import UsageError
from podium.core.paths import package_file
from podium.core.yaml_files import read_yaml

LATEST = RULESETS[-1]


@dataclass(frozen=True)
class Ruleset:
    """The rules of a round that differ between rounds."""

    name: str
    # Limit on initialisation in the open division, in minutes; in closed it is 30 in all rounds.
    open_minutes: int
    tensors: bool  # a closed log has a line for every initialised tensor of the model
    log_names: bool  # a log has submission_org and submission_platform
    log_status: bool  # a log has submission_status
    status_checked: bool  # a system's status must be one of the four of the rules
    seeds_checked: bool  # every run must log a seed, and all seeds must differ
    # A closed score that needs fewer samples than the reference, but is allowed, is scaled up: scaling.json.
    scaled: bool
    repo_checker: bool  # the official repo_checker knows this ruleset


def ruleset(name: str) -> Ruleset:
    """Return the ruleset of that name, such as 5.0.0. Raises UsageError if it does not include BERT."""
    if name not in RULESETS:
        raise UsageError(f"--ruleset {name}: there is no such ruleset for BERT; allowed are {', '.join(RULESETS)}")
    return _rulesets()[name]


@cache
def _rulesets() -> dict[str, Ruleset]:
    entries = read_yaml(package_file("podium.mllog", "rulesets.yaml"))
    return TypeAdapter(dict[str, Ruleset]).validate_python({n: {"name": n, **entry} for n, entry in entries.items()})
