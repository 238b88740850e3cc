"""Which rank died first, and the line that says why, in what torchrun and the ranks have printed."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from podium.core.text import one_line

LARGEST = 1 << 20  # bytes at the end of the output that are looked at
LONGEST = 200
ROOT_CAUSE = "Root Cause"
DIED = re.compile(r"^\s*rank\s*:\s*(\d+).*?^\s*exitcode\s*:\s*(-?\d+)", re.DOTALL | re.MULTILINE)
# A line of torchrun's log, such as `E1120 23:39:28.439000 8454 torch/distributed/…`.
LOGGED = re.compile(r"^[A-Z]\d{4} \d\d:\d\d:\d\d\.\d+ .*?torch[/.]distributed[/.](elastic|run)")
FAILED = re.compile(r"^E\d{4} .*failed \(exitcode: ")
ATTEMPT = re.compile(r"^(={10,}$|[A-Z]\d{4} .*(failed \(exitcode: |[Rr]estarting worker group))")
TRACEBACK = "Traceback (most recent call last):"
EXCEPTION = re.compile(r"^[A-Za-z_][\w.]*(: .*)?$")
NEXT_OF_CHAIN = ("During handling of the above exception", "The above exception was the direct cause")
FATAL = re.compile(r"^(Fatal Python error: |\s*what\(\): )")
# What ranks raise because another one has ended.
CONSEQUENCE = re.compile(
    r"Connection (closed|reset|refused)|Broken pipe|[Tt]imed? ?out|remote process (exited|has)|"
    r"NCCL communicator was aborted"
)


@dataclass(frozen=True)
class Death:
    """The rank that died first, if torchrun names one, its exit code, and the line that says why, if one does."""

    rank: int | None
    exit_code: int
    line: str


def cause_of(output: Path) -> Death:
    """What the end of the output says. The line is printable, on one line and of at most LONGEST characters."""
    try:
        with output.open("rb") as file:
            file.seek(max(0, output.stat().st_size - LARGEST))
            text = file.read().decode("utf-8", errors="replace")
    except OSError:
        text = ""
    head, _, report = text.rpartition(ROOT_CAUSE)
    died = DIED.search(report)
    if died is None:
        return Death(None, 0, _shown(_line(_of_ranks(text.splitlines()))))
    rank, code = int(died[1]), int(died[2])
    return Death(rank, code, _shown(_line(_last_attempt(head.splitlines()))))


def _last_attempt(lines: Sequence[str]) -> list[str]:
    """What the ranks printed, from the end of the attempt before to torchrun's report that one had died."""
    ends = [number for number, line in enumerate(lines) if FAILED.match(line)]
    end = ends[-1] if ends else len(lines)
    starts = [number for number, line in enumerate(lines[:end]) if ATTEMPT.match(line)]
    return _of_ranks(lines[starts[-1] + 1 if starts else 0 : end])


def _of_ranks(lines: Iterable[str]) -> list[str]:
    return [line for line in lines if line.strip() and not LOGGED.match(line)]


def _line(lines: Sequence[str]) -> str:
    """The exception that ended a rank, or a crash's own message, or else the last line, which is called that."""
    raised = list(_raised(lines))
    first_hand = [line for line in raised if not CONSEQUENCE.search(line)]
    crashes = [line for line in lines if FATAL.match(line)]
    for found in (first_hand, crashes, raised):
        if found:
            return found[-1]
    return f"the last line that was printed: {lines[-1]}" if lines else ""


def _raised(lines: Sequence[str]) -> Iterable[str]:
    """The last line of each traceback, and of chained ones that of the exception that was not handled."""
    found, inside = "", False
    for line in lines:
        if line.startswith(NEXT_OF_CHAIN):
            found = ""
        elif found:
            yield found
            found = ""
        if line.startswith(TRACEBACK):
            inside = True
        elif inside and EXCEPTION.match(line):
            found, inside = line, False
    if found:
        yield found


def _shown(line: str) -> str:
    return one_line(line)[:LONGEST]
