"""Findings: results of checks on a system, a sample store or a submission package."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self

Severity = Literal["ok", "note", "warning", "error"]


@dataclass(frozen=True)
class Finding:
    """Result of one check.

    `error`: a run or a submission would fail, or data are wrong. `warning`: it may cost time or draw a reviewer's
    question. `note`: worth knowing, but nothing is wrong.
    """

    rule: str  # stable short name of the check
    severity: Severity
    message: str  # what was found; the first line must make sense without the others
    expected: str = ""
    advice: str = ""  # what to do; empty if nothing
    path: str = ""  # relative to the checked folder, with forward slashes; the folder itself is "."
    line: int | None = None  # of that file, from 1
    source: str = "podium"  # or the official tool that found it, such as `compliance_checker`

    @classmethod
    def error(cls, path: str, rule: str, message: str, line: int | None = None, source: str = "podium") -> Self:
        """An error in one file of a checked folder."""
        return cls(rule, "error", message, path=path, line=line, source=source)

    @classmethod
    def warning(cls, path: str, rule: str, message: str, line: int | None = None, source: str = "podium") -> Self:
        """A warning about one file of a checked folder."""
        return cls(rule, "warning", message, path=path, line=line, source=source)

    def as_json(self, fields: Mapping[str, str]) -> dict[str, Any]:
        """Return {key: value of the field}; `fields` maps JSON keys to field names."""
        return {key: getattr(self, field) for key, field in fields.items()}


def check_result(
    rule: str, passed: bool, message: str, expected: str, advice: str, otherwise: Severity = "error"
) -> Finding:
    """Return a finding with severity `ok` if the check passed, else one with severity `otherwise` and the advice."""
    return Finding(rule, "ok", message, expected) if passed else Finding(rule, otherwise, message, expected, advice)


def has_errors(findings: Iterable[Finding]) -> bool:
    """Whether any finding is an error."""
    return any(finding.severity == "error" for finding in findings)


def severity_counts(findings: Iterable[Finding]) -> str:
    """Format the counts of errors and warnings, such as `2 errors, 1 warning`; empty if there are neither."""
    severities = [finding.severity for finding in findings]
    counts = [(severities.count(severity), severity) for severity in ("error", "warning")]
    return ", ".join(f"{count:,} {severity}{'s' * (count > 1)}" for count, severity in counts if count)
