"""Checks of system descriptions: readable, complete, text only, spelled as in the rules, with consistent names."""

import re
from collections.abc import Mapping
from typing import Any, get_args

from podium.config.schema import Description, Status
from podium.core.finding import Finding, Severity
from podium.core.text import short_repr
from podium.mllog.rulesets import Ruleset
from podium.submission.checks.context import CheckedPackage, Findings
from podium.submission.checks.runs import DIVISIONS

FIELDS = tuple(info.alias or name for name, info in Description.model_fields.items())  # the 33 that MLPerf requires
STATUSES: tuple[str, ...] = get_args(Status)
# Accepted in any case before the rules fixed the four of `Status`.
OLD_STATUSES = ("available", "available on-premise", "available cloud", "onprem", "cloud", "preview", "research", "rdi")
# A value other than text in these makes the official checker crash or skip a check.
FIELDS_READ_BY_CHECKER = (
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
STACK = "other_software_stack"
COUNT_FIELDS = ("number_of_nodes", "host_processors_per_node", "accelerators_per_node")
WHOLE_NUMBER = re.compile(r"\d{1,9}(\.0+)?")


def _check_descriptions(checked: CheckedPackage, ruleset: Ruleset) -> Findings:
    for system in checked.package.systems:
        path = checked.package.relative(system.path)
        if system.problem:
            severity: Severity = "error" if system.fields is None else "warning"
            yield Finding("system_json", severity, f"the description {system.problem}", path=path)
        if system.fields is not None:
            for check in (_check_missing_fields, _check_field_types, _check_values):
                yield from check(path, system.fields, ruleset)
            found = system.fields.get("system_name")
            if isinstance(found, str) and found != system.name:
                named = (
                    f"the file is named {system.name}.json; field, file and folder of results must have the same name"
                )
                yield Finding.warning(path, "system_name", f"system_name is {short_repr(found)}, but {named}")


def _check_missing_fields(path: str, fields: Mapping[str, Any], ruleset: Ruleset) -> Findings:
    missing = [name for name in FIELDS if name not in fields]
    if missing:
        message = f"{', '.join(missing)} missing; MLPerf requires {len(FIELDS)} fields"
        yield Finding.error(path, "system_field_missing", message)


def _check_field_types(path: str, fields: Mapping[str, Any], ruleset: Ruleset) -> Findings:
    for name in FIELDS:
        value = fields.get(name, "")
        if not isinstance(value, str) and not (name == STACK and _is_stack(value)):
            message = f"{name} is {short_repr(value)}; every value must be text: write it in quotes"
            yield Finding(
                "system_not_text", "error" if name in FIELDS_READ_BY_CHECKER else "warning", message, path=path
            )


def _is_stack(value: Any) -> bool:
    """Whether a value is an object of texts, or a list of texts and such objects, as in most accepted descriptions."""
    parts = [value] if isinstance(value, Mapping) else value if isinstance(value, list) else [None]
    items = [item for part in parts for item in (part.values() if isinstance(part, Mapping) else [part])]
    return all(isinstance(item, str) for item in items)


def _check_values(path: str, fields: Mapping[str, Any], ruleset: Ruleset) -> Findings:
    division, status = fields.get("division"), fields.get("status")
    if isinstance(division, str) and division not in DIVISIONS:
        message = (
            f"division is {short_repr(division)}; allowed are closed and open in lower case: otherwise the reference "
        )
        yield Finding.error(path, "system_division", message + "and seed checks are skipped")
    if isinstance(status, str) and status not in STATUSES:
        known = status.casefold() in OLD_STATUSES
        if ruleset.status_checked or not known:
            severity: Severity = "error" if ruleset.status_checked else "warning"
            allowed = ", ".join(f'"{one}"' for one in STATUSES)
            yield Finding(
                "system_status", severity, f"status is {short_repr(status)}; allowed are {allowed}", path=path
            )
    for name in ("submitter", "system_name", "framework", "operating_system", "host_processor_model_name"):
        if isinstance(fields.get(name), str) and not fields[name].strip():
            yield Finding.warning(path, "system_empty", f"{name} is empty; fill it in")
    for name in COUNT_FIELDS:
        value = fields.get(name)
        if isinstance(value, str) and not WHOLE_NUMBER.fullmatch(value.strip()):
            yield Finding.warning(path, "system_number", f"{name} is {short_repr(value)}; it must be a whole number")


def _check_described(checked: CheckedPackage, ruleset: Ruleset) -> Findings:
    """Check that each system with results has a description, unless results alone are checked."""
    known = {system.name for system in checked.package.systems}
    if not known and not (checked.package.root / "results").is_dir():
        return
    for name in sorted({folder.system for folder in checked.package.results} - known):
        message = f"there is no systems/{name}.json; each system with results needs a description"
        yield Finding.error(f"results/{name}", "system_missing", message)


def _check_submitters(checked: CheckedPackage, ruleset: Ruleset) -> Findings:
    names = {str(system.fields.get("submitter")) for system in checked.package.systems if system.fields}
    if len({name.casefold() for name in names}) > 1:
        listed = ", ".join(sorted(names)[:4])
        yield Finding.warning("systems", "submitters", f"the systems have different submitters: {listed}")
    folder = checked.package.name
    if names and (checked.package.root / "results").is_dir() and folder.casefold() not in map(str.casefold, names):
        differing = f"the package's folder is {short_repr(folder)}, but the submitter is {short_repr(min(names))}"
        yield Finding.warning(".", "folder_name", f"{differing}; they must have the same name")


SYSTEM_CHECKS = (_check_descriptions, _check_described, _check_submitters)
