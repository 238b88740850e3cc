"""Checks of system descriptions: readable, complete, text only, spelled as in the rules, named as their results."""

import re
from collections.abc import Mapping
from typing import Any, get_args

from podium.config.schema import Description, Status
from podium.core.finding import Finding, Severity
from podium.core.text import quoted
from podium.mllog.rulesets import Ruleset
from podium.submission.checks.context import Findings, Whole
from podium.submission.checks.runs import DIVISIONS

FIELDS = tuple(info.alias or name for name, info in Description.model_fields.items())  # the 33 that MLPerf requires
STATUSES: tuple[str, ...] = get_args(Status)
# As accepted before the four were fixed, in any case.
OLD_STATUSES = ("available", "available on-premise", "available cloud", "onprem", "cloud", "preview", "research", "rdi")
# Where anything but text makes the official checker crash, or skip a check.
READ_AS_TEXT = (
    "submitter",
    "division",
    "status",
    "system_name",
    "host_processor_model_name",
    "host_processor_core_count",
    "accelerator_model_name",
    "accelerators_per_node",
    "framework",
)
COUNTED = ("number_of_nodes", "host_processors_per_node", "accelerators_per_node")
WHOLE_NUMBER = re.compile(r"\d{1,9}(\.0+)?")


def _systems(whole: Whole, ruleset: Ruleset) -> Findings:
    for system in whole.package.systems:
        path = whole.package.relative(system.path)
        if system.problem:
            severity: Severity = "error" if system.fields is None else "warning"
            yield Finding("system_json", severity, f"the description {system.problem}", path=path)
        if system.fields is not None:
            for check in (_missing, _kinds, _values):
                yield from check(path, system.fields, ruleset)
            found = system.fields.get("system_name")
            if isinstance(found, str) and found != system.name:
                named = f"the file is named {system.name}.json; all three names are one"
                yield Finding.warning(path, "system_name", f"system_name is {quoted(found)}, but {named}")


def _missing(path: str, fields: Mapping[str, Any], ruleset: Ruleset) -> Findings:
    missing = [name for name in FIELDS if name not in fields]
    if missing:
        names = ", ".join(missing[:5]) + " …" * (len(missing) > 5)
        message = f"there is no {names}; MLPerf requires {len(FIELDS)} fields"
        yield Finding.error(path, "system_field_missing", message)


def _kinds(path: str, fields: Mapping[str, Any], ruleset: Ruleset) -> Findings:
    for name in FIELDS:
        value = fields.get(name, "")
        if not isinstance(value, str):
            message = f"{name} is {quoted(value)}; every value is text: write it in quotes"
            yield Finding("system_not_text", "error" if name in READ_AS_TEXT else "warning", message, path=path)


def _values(path: str, fields: Mapping[str, Any], ruleset: Ruleset) -> Findings:
    division, status = fields.get("division"), fields.get("status")
    if isinstance(division, str) and division not in DIVISIONS:
        message = f"division is {quoted(division)}; allowed are closed and open, so spelled: otherwise the reference "
        yield Finding.error(path, "system_division", message + "and seed checks are skipped")
    if isinstance(status, str) and status not in STATUSES:
        known = status.casefold() in OLD_STATUSES
        if ruleset.status_checked or not known:
            severity: Severity = "error" if ruleset.status_checked else "warning"
            allowed = ", ".join(f'"{one}"' for one in STATUSES)
            yield Finding("system_status", severity, f"status is {quoted(status)}; allowed are {allowed}", path=path)
    for name in ("submitter", "system_name", "framework", "operating_system", "host_processor_model_name"):
        if isinstance(fields.get(name), str) and not fields[name].strip():
            yield Finding.warning(path, "system_empty", f"{name} is empty; name it")
    for name in COUNTED:
        value = fields.get(name)
        if isinstance(value, str) and not WHOLE_NUMBER.fullmatch(value.strip()):
            yield Finding.warning(path, "system_number", f"{name} is {quoted(value)}, not a whole number")


def _described(whole: Whole, ruleset: Ruleset) -> Findings:
    """Every folder of results has a description, unless only results were given."""
    known = {system.name for system in whole.package.systems}
    if not known and not (whole.package.root / "results").is_dir():
        return
    for name in sorted({folder.system for folder in whole.package.results} - known):
        message = f"there is no systems/{name}.json; every system with results is described there"
        yield Finding.error(f"results/{name}", "system_missing", message)


def _submitters(whole: Whole, ruleset: Ruleset) -> Findings:
    names = {str(system.fields.get("submitter")) for system in whole.package.systems if system.fields}
    if len({name.casefold() for name in names}) > 1:
        told = ", ".join(sorted(names)[:4])
        yield Finding.warning("systems", "submitters", f"the systems have several submitters: {told}")
    folder = whole.package.name
    if names and (whole.package.root / "results").is_dir() and folder.casefold() not in map(str.casefold, names):
        differing = f"the package's folder is {quoted(folder)}, but the submitter is {quoted(min(names))}"
        yield Finding.warning(".", "folder_name", f"{differing}; both are one name")


SYSTEMS = (_systems, _described, _submitters)
