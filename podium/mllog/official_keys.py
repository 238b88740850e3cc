"""Keys that MLPerf's logs may and must have, from the compliance checker's rulesets as installed."""

import re
from collections.abc import Mapping
from functools import cache, lru_cache
from pathlib import Path
from types import MappingProxyType

from mlperf_logging import compliance_checker
from mlperf_logging.mllog import constants

# A field of a key's record. By pattern, since not all of these files are valid YAML, and quicker.
FIELD = re.compile(r"^\s*(NAME|REQ)\s*:\s*[\"']?([A-Za-z0-9_]+)", re.MULTILINE)
ALWAYS_REQUIRED = ("EXACTLY_ONE", "AT_LEAST_ONE")
PREFIX = "training_"


@cache
def known_keys() -> frozenset[str]:
    """Return every key of mlperf-logging's constants and of any ruleset for training."""
    named = {value for value in vars(constants).values() if isinstance(value, str)}
    return frozenset(named.union(*(keys for files in _rulesets().values() for keys in files.values())))


@lru_cache(64)
def mandatory_keys(division: str, benchmark: str) -> Mapping[str, tuple[str, ...]]:
    """Return the rulesets, from the oldest, that require a key of a division's logs of a benchmark, by key."""
    found: dict[str, list[str]] = {}
    for ruleset, files in _rulesets().items():
        required = {
            key
            for file in ("common", f"{division}_common", f"{division}_{benchmark}")
            for key, requirement in files.get(file, {}).items()
            if requirement in ALWAYS_REQUIRED
        }
        for key in required:
            found.setdefault(key, []).append(ruleset)
    return MappingProxyType({key: tuple(rulesets) for key, rulesets in sorted(found.items())})


@cache
def _rulesets() -> Mapping[str, Mapping[str, Mapping[str, str]]]:
    """Return the requirement of each key ("" without one) by ruleset, from the oldest, and file without suffix."""
    folders = {}
    for folder in Path(compliance_checker.__file__).parent.glob(f"{PREFIX}*"):
        name = folder.name.removeprefix(PREFIX)
        if re.fullmatch(r"\d+\.\d+\.\d+", name):  # not 0.7.0_warn, of which no key is required
            folders[name] = folder
    return {
        name: {path.stem: _read_keys(path) for path in sorted(folders[name].glob("*.yaml"))}
        for name in sorted(folders, key=lambda name: [int(part) for part in name.split(".")])
    }


def _read_keys(path: Path) -> Mapping[str, str]:
    keys: dict[str, str] = {}
    name = ""
    for field, value in FIELD.findall(path.read_text(encoding="utf-8")):
        if field == "NAME":
            name = value
            keys.setdefault(name, "")
        elif name:
            keys[name] = value
    return keys
