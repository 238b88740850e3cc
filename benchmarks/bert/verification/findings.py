"""What a check says: what it found, what was expected, whether that is sound, and what to do if not."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "note", "fail"]
"""`note` is something to know that does not make the data wrong."""


@dataclass(frozen=True)
class Finding:
    """One line of the verdict; `advice` is empty where nothing is to be done."""

    check: str
    level: Level
    found: str
    expected: str
    advice: str = ""


def is_sound(findings: Sequence[Finding]) -> bool:
    """Whether no check failed."""
    return all(finding.level != "fail" for finding in findings)


def verdict(findings: Sequence[Finding]) -> str:
    """`sound`, or `not sound: …` with the number of findings that failed."""
    failed = sum(finding.level == "fail" for finding in findings)
    return f"not sound: {failed} {'check' if failed == 1 else 'checks'} failed" if failed else "sound"
