"""Checks of the power logs of a set: a folder for each run, with logs of the same nodes and switches, all readable."""

import os
import re
from collections import Counter
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

from podium.core.errors import attempt
from podium.core.finding import Finding, Severity
from podium.core.text import format_list, short_repr
from podium.mllog.power import MAX_ENTRIES, POWER, PowerFolder, digest_of, list_power_folder, read_power
from podium.mllog.rulesets import Ruleset
from podium.submission.checks.context import CheckedSet, Findings

LOG_NAME = re.compile(r"(?:node|sw)_(\d{1,6})\.txt", re.ASCII)


def _check_power_logs(runs: CheckedSet, ruleset: Ruleset) -> Findings:
    """Check each run's power logs: names, and content as the energy of the run is computed from it."""
    for run, folder in zip(runs.runs, _list_folders(runs), strict=False):
        if folder.problem is not None:
            yield run.error("power_missing", f"{folder.problem}; where one run has power logs, each run has them")
            continue
        path = f"{run.path.rpartition('/')[0]}/{POWER}/{folder.path.name}"
        for logs, kind in ((folder.nodes, "node"), (folder.switches, "sw")):
            if odd := _misnamed(logs):
                message = f"has {format_list(odd, 3)}; its {len(logs)} are {kind}_0.txt to {kind}_{len(logs) - 1}.txt"
                severity: Severity = "error" if _is_rejected(folder, kind) else "warning"
                yield Finding("power_names", severity, message, path=path)
        if folder.others:
            listed = format_list([short_repr(other.name) for other in folder.others], 3)
            yield Finding.warning(path, "unknown_file", f"{listed} is no power log; remove it")
        power = read_power(folder, "")
        unknown = power.watts is None
        for number, problem in enumerate(power.problems):
            fatal = unknown and number == len(power.problems) - 1
            message = f"{problem}; the energy of the run cannot be computed" if fatal else problem
            yield (run.error if fatal else run.warning)("power_logs", message)


def _check_equal_numbers(runs: CheckedSet, ruleset: Ruleset) -> Findings:
    """Check that all runs have logs of as many nodes and switches."""
    folders = [folder for folder in _list_folders(runs) if folder.problem is None]
    for kind, counts in (
        ("node_*.txt", {folder.path.name: len(folder.nodes) for folder in folders}),
        ("sw_*.txt", {folder.path.name: len(folder.switches) for folder in folders}),
    ):
        usual = Counter(counts.values()).most_common(1)[0][0] if counts else 0
        for name, count in counts.items():
            if count != usual:
                message = f"has {count} {kind}, and most runs {usual}; the power of all nodes and switches is logged"
                yield Finding.error(f"{runs.path}/{POWER}/{name}", "power_counts", message)


def _check_copies(runs: CheckedSet, ruleset: Ruleset) -> Findings:
    """Check for the same power logs of two runs."""
    first: dict[str, str] = {}
    for folder in _list_folders(runs):
        digest, _ = attempt(digest_of, folder) if folder.problem is None else (None, None)
        if digest is not None and (name := first.setdefault(digest, folder.path.name)) != folder.path.name:
            message = f"has the same power logs as {name}; the power of each run is measured"
            yield Finding.warning(f"{runs.path}/{POWER}/{folder.path.name}", "power_copied", message)


def _check_other_entries(runs: CheckedSet, ruleset: Ruleset) -> Findings:
    """Check for entries of the folder that belong to no run."""
    if not (folders := _list_folders(runs)) or folders[0].path.parent.is_symlink():
        return
    names = {folder.path.name for folder in folders}
    try:
        with os.scandir(folders[0].path.parent) as entries:
            others = sorted({entry.name for entry in islice(entries, MAX_ENTRIES)} - names)
    except OSError:
        return  # not a folder: every run lacks its power logs, which is found above
    if others:
        listed = format_list([short_repr(name) for name in others], 3)
        yield Finding.warning(f"{runs.path}/{POWER}", "unknown_file", f"{listed} belongs to no run; remove it")


def _list_folders(runs: CheckedSet) -> Sequence[PowerFolder]:
    """Return the folder of power logs of each run; empty where the set has none."""
    if all(path.name != POWER for path in runs.folder.others):
        return ()
    return [list_power_folder(run.log.path) for run in runs.runs]


def _misnamed(logs: Sequence[Path]) -> list[str]:
    """Return the names that are not numbered from 0 to the number of logs less one, each number once."""
    allowed, odd = set(range(len(logs))), list[str]()
    for log in logs:
        match = LOG_NAME.fullmatch(log.name)
        number = int(match[1]) if match is not None else -1
        if number in allowed:
            allowed.remove(number)
        else:
            odd.append(short_repr(log.name))
    return odd


def _is_rejected(folder: PowerFolder, kind: str) -> bool:
    """Whether the official checker rejects the names of nodes or switches: it counts all files with this prefix."""
    names = [path.stem for path in (*folder.nodes, *folder.switches, *folder.others) if path.name.startswith(kind)]
    numbers = [name.rpartition("_")[2] for name in names]
    return any(re.fullmatch(r"[0-9]{1,6}", number) is None or int(number) >= len(names) for number in numbers)


POWER_CHECKS = (_check_power_logs, _check_equal_numbers, _check_copies, _check_other_entries)
