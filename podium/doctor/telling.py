"""The diagnosis of `podium doctor` in one line, and as one JSON object."""

from collections.abc import Sequence
from typing import Any

from benchmarks.finding import Finding, has_errors, severity_counts

JSON_FIELDS = {"check": "rule", "verdict": "severity", "found": "message", "wanted": "expected", "advice": "advice"}


def as_json(system: str, findings: Sequence[Finding]) -> dict[str, Any]:
    return {
        "system": system,
        "ready": not has_errors(findings),
        "summary": summary(findings),
        "findings": [finding.as_json(JSON_FIELDS) for finding in findings],
    }


def summary(findings: Sequence[Finding]) -> str:
    """`ready` or `not ready`, with the numbers of errors and warnings."""
    return ": ".join(filter(None, ("not ready" if has_errors(findings) else "ready", severity_counts(findings))))
