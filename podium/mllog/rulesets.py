"""MLPerf's rulesets by name: where rounds differ for BERT, they differ in rulesets.yaml only, not in code."""

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
    """A round's rules, as far as they differ from another round's."""

    name: str
    # Initialisation may take this long in the open division; in closed it is 30 minutes in all rounds.
    open_minutes: int
    tensors: bool  # a closed log tells of every initialised tensor of the model
    log_names: bool  # a log says submission_org and submission_platform
    log_status: bool  # a log says submission_status
    status_checked: bool  # a system's status is one of the four that the rules name
    seeds_checked: bool  # every run logs a seed, and no two runs the same
    # A closed score that needs fewer samples than the reference, but is allowed, is scaled up: scaling.json.
    scaled: bool
    repo_checker: bool  # the official repo_checker knows this ruleset


def ruleset(name: str) -> Ruleset:
    """The ruleset of that name, such as 5.0.0; UsageError where BERT has none."""
    if name not in RULESETS:
        raise UsageError(f"--ruleset {name}: there is no such ruleset for BERT; allowed are {', '.join(RULESETS)}")
    return _rulesets()[name]


@cache
def _rulesets() -> dict[str, Ruleset]:
    entries = read_yaml(package_file("podium.mllog", "rulesets.yaml"))
    return TypeAdapter(dict[str, Ruleset]).validate_python({n: {"name": n, **entry} for n, entry in entries.items()})
