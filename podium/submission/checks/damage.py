"""Oddities of reading that touch what a log says become findings; those that harm nobody do not."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from benchmarks.finding import Severity
from podium.submission.checks.subjects import CheckedRun, Findings
from podium.submission.rulesets import Ruleset

SEVERITIES: Mapping[str, Severity] = MappingProxyType(
    {
        "empty": "error",
        "json": "error",
        "fields": "error",
        "odd_json": "warning",
        "event": "warning",
        "cut_off": "warning",
        "long_line": "error",
        "too_long": "error",
        "token": "warning",
        "two_events": "warning",
        "not_utf8": "warning",
        "lone_cr": "warning",
        "keyboard": "warning",
        "number": "warning",
        "point_in_time": "warning",
        "after_block": "warning",
    }
)
"""By kind of oddity. A line that no parser reads fails the official checker; one cut off is the end of a broken run; a
number that JSON does not have is an error where a check needs it."""


def _damage(run: CheckedRun, ruleset: Ruleset) -> Findings:
    for oddity in run.log.oddities:
        severity = SEVERITIES.get(oddity.kind)
        if severity is not None:
            make = run.error if severity == "error" else run.warning
            message = f"{'this line ' if oddity.line and oddity.what[0].islower() else ''}{oddity.what}"
            yield make(f"log_{oddity.kind}", message, oddity.line or None)


DAMAGE: Mapping[str, Callable[[CheckedRun, Ruleset], Findings]] = MappingProxyType({"damage": _damage})
