"""Findings of checks: of a system before a run, of a sample store, or of a submission package."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self

Severity = Literal["ok", "note", "warning", "error"]


@dataclass(frozen=True)
class Finding:
    """Result of one check.

    `error` is what a run or a submission fails by, or what makes data wrong; `warning` is what may cost time or a
    reviewer's question; `note` is worth knowing and not wrong.
    """

    rule: str  # short name of the check, which never changes
    severity: Severity
    message: str  # what was found; its first line stands alone
    expected: str = ""
    advice: str = ""  # empty where there is nothing to do
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
        """The fields that `fields` names, under its keys."""
        return {key: getattr(self, field) for key, field in fields.items()}


def check_result(
    rule: str, passed: bool, message: str, expected: str, advice: str, otherwise: Severity = "error"
) -> Finding:
    """A finding that is ok and needs no advice, or else has the severity `otherwise`."""
    return Finding(rule, "ok", message, expected) if passed else Finding(rule, otherwise, message, expected, advice)


def has_errors(findings: Iterable[Finding]) -> bool:
    """Whether any finding is an error."""
    return any(finding.severity == "error" for finding in findings)


def severity_counts(findings: Iterable[Finding]) -> str:
    """Such as `2 errors, 1 warning`; empty where there are neither."""
    severities = [finding.severity for finding in findings]
    counts = [(severities.count(severity), severity) for severity in ("error", "warning")]
    return ", ".join(f"{count:,} {severity}{'s' * (count > 1)}" for count, severity in counts if count)
