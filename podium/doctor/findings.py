"""What a check says: what it found, what is wanted, whether that will do, and what to do if not."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Verdict = Literal["ok", "warning", "error"]
"""`error` is what a run will fail by, or be worth nothing; `warning` is what may cost it time or a submission."""


@dataclass(frozen=True)
class Finding:
    """One line of the diagnosis; `advice` is empty where nothing is to be done."""

    check: str
    verdict: Verdict
    found: str
    wanted: str
    advice: str = ""


def judged(check: str, good: bool, found: str, wanted: str, advice: str, otherwise: Verdict = "error") -> Finding:
    """A finding that is ok and needs no advice, or else is `otherwise`."""
    return Finding(check, "ok", found, wanted) if good else Finding(check, otherwise, found, wanted, advice)


def is_ready(findings: Sequence[Finding]) -> bool:
    """Whether no check found an error."""
    return all(finding.verdict != "error" for finding in findings)


def summary(findings: Sequence[Finding]) -> str:
    """`ready` or `not ready`, with the numbers of errors and warnings."""
    counts = [(sum(f.verdict == verdict for f in findings), verdict) for verdict in ("error", "warning")]
    told = ", ".join(f"{count} {verdict}{'s' if count > 1 else ''}" for count, verdict in counts if count)
    return ("ready" if is_ready(findings) else "not ready") + (f": {told}" if told else "")
