"""Checks of what logs disclose about a run: misspelled keys, and the configuration that a log names."""

import difflib
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from mlperf_logging.mllog import constants

from podium.core.text import short_repr
from podium.mllog.official_keys import known_keys, mandatory_keys
from podium.mllog.rulesets import Ruleset
from podium.submission.checks.context import CheckedPackage, CheckedRun, Findings

# Similarity of two spellings of a key, from 0 to 1. local_batch_size and global_batch_size have 0.91.
MIN_SIMILARITY = 0.92
MIN_WORDS = 2  # that a misspelled key shares with the official one where it has a word more or less
MIN_ABBREVIATION = 3  # letters with which an abbreviated word begins as the whole one
MAX_KEY = 100  # characters of a key that is compared; official ones have up to 39
MAX_UNKNOWN_KEYS = 200  # keys of a log that are compared; published logs have up to some ten


def _check_spelling(run: CheckedRun, ruleset: Ruleset) -> Findings:
    """Check for keys that no ruleset knows and that are close to a mandatory key which the log does not have."""
    known, keys = known_keys(), run.log.by_key
    unknown = [key for key in keys if key not in known and len(key) <= MAX_KEY]
    mandatory = _mandatory(run) if unknown else {}
    missing = [key for key in mandatory if key not in keys]
    for key in unknown[:MAX_UNKNOWN_KEYS]:
        meant = _closest(key, missing)
        if meant is not None:
            is_required = ruleset.name in mandatory[meant]
            by = ruleset.name if is_required else mandatory[meant][-1]
            message = (
                f"{short_repr(key)} is not a key of MLPerf, and the log has no {meant}, which ruleset {by} requires; "
                f"log it as {meant}"
            )
            yield (run.error if is_required else run.warning)("key_misspelled", message, run.log.first(key))


def _mandatory(run: CheckedRun) -> Mapping[str, tuple[str, ...]]:
    return mandatory_keys(run.log.text("submission_division") or "", run.log.text("submission_benchmark") or "")


def _closest(key: str, candidates: Sequence[str]) -> str | None:
    """Return the candidate of which `key` is a likely misspelling; None if there is none."""
    spelling = re.sub(r"[^a-z0-9]+", "_", key.lower()).strip("_")
    candidates = [candidate for candidate in candidates if _digits(candidate) == _digits(spelling)]
    similar = difflib.get_close_matches(spelling, candidates, n=1, cutoff=MIN_SIMILARITY)
    return next(
        iter(similar),
        next((candidate for candidate in candidates if _differs_in_a_word(spelling, candidate)), None),
    )


def _digits(key: str) -> str:
    return re.sub(r"\D", "", key)


def _differs_in_a_word(spelling: str, key: str) -> bool:
    """Whether the words of two keys are the same or abbreviated, but for at most one that only one of them has."""
    shorter, longer = sorted((spelling.split("_"), key.split("_")), key=len)
    if len(shorter) < MIN_WORDS or len(longer) - len(shorter) > 1:
        return False
    if len(longer) == len(shorter):
        return _same_words(shorter, longer)
    return any(_same_words(shorter, longer[:left_out] + longer[left_out + 1 :]) for left_out in range(len(longer)))


def _same_words(words: Iterable[str], others: Iterable[str]) -> bool:
    return all(
        word == other or (min(len(word), len(other)) >= MIN_ABBREVIATION and _is_prefix(word, other))
        for word, other in zip(words, others, strict=True)
    )


def _is_prefix(word: str, other: str) -> bool:
    return word.startswith(other) or other.startswith(word)


DISCLOSURE_CHECKS = (_check_spelling,)


def _check_configuration_exists(checked: CheckedPackage, ruleset: Ruleset) -> Findings:
    """Check that the configuration that a log names is a file below benchmarks/.

    The name is a path or a bare name. Of an absolute path, which is that of a container, the last part has to exist.
    """
    benchmarks = checked.package.root / "benchmarks"
    if not benchmarks.is_dir() or benchmarks.is_symlink():
        return
    files: Mapping[str, Sequence[PurePosixPath]] | None = None
    for run in (run for runs in checked.sets for run in runs.runs):
        event = run.log.first(constants.CONFIG_FILENAME)
        if event is None:
            continue
        is_required = ruleset.name in _mandatory(run).get(constants.CONFIG_FILENAME, ())
        make = run.error if is_required else run.warning
        parts = _parts(event.value)
        if not parts:
            message = f"config_filename is {short_repr(event.value)}; log the name of the run's configuration file"
            yield make("config_filename", message, event)
            continue
        files = _files_by_name(benchmarks) if files is None else files
        found = files.get(parts[-1], ())
        if not found:
            message = (
                f"config_filename is {short_repr(event.value)}, and benchmarks/ has no file of that name; "
                "add the run's configuration"
            )
            yield make("config_filename", message, event)
        elif not event.value.startswith("/") and not any(path.parts[-len(parts) :] == parts for path in found):
            message = (
                f"config_filename is {short_repr(event.value)}, and benchmarks/ has the file elsewhere: "
                f"{short_repr(str(found[0]))}; check whether it is the run's configuration"
            )
            yield run.warning("config_filename", message, event)


def _parts(name: Any) -> tuple[str, ...]:
    """Return the folders and the name in a logged path; empty for anything but a path."""
    parts = PurePosixPath(name.strip().replace("\\", "/")).parts if isinstance(name, str) else ()
    return tuple(part for part in parts if part not in ("/", "//", ".."))


def _files_by_name(benchmarks: Path) -> Mapping[str, Sequence[PurePosixPath]]:
    """Return the paths of all files below benchmarks/ by their names; links are not followed."""
    found: dict[str, list[PurePosixPath]] = {}
    for folder, folders, names in os.walk(benchmarks):
        folders.sort()
        for name in sorted(names):
            found.setdefault(name, []).append(PurePosixPath(Path(folder, name).relative_to(benchmarks).as_posix()))
    return found


CONFIGURATION_CHECKS = (_check_configuration_exists,)
