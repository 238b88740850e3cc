"""What a check of a submission finds: in which file, against which rule, who says so, and what to do."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Severity = Literal["error", "warning"]
"""`error`: the submission would be rejected or its score is worth nothing; `warning`: a reviewer would ask about it."""


@dataclass(frozen=True, order=True)
class Finding:
    """One thing wrong with one file of a package."""

    path: str
    """Relative to the checked package's folder, with forward slashes; the folder itself is "."."""
    rule: str
    """A short name that never changes, such as `run_stop_status`."""
    severity: Severity
    message: str
    """A sentence: what was found, what is allowed, what to do."""
    source: str = "podium"
    """Who found it: podium, or an official tool's name such as `compliance_checker`."""
    line: int | None = None
    """Of the file, from 1."""


def is_accepted(findings: Iterable[Finding]) -> bool:
    """Whether no finding is an error."""
    return all(finding.severity != "error" for finding in findings)
