"""Search the output of torchrun and the ranks for the rank that failed first and for its error message."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from podium.core.text import one_line

TAIL_BYTES = 1 << 20  # only the end of the output is read
MAX_LENGTH = 200  # characters of the line that is reported
ROOT_CAUSE_HEADING = "Root Cause"
RANK_EXIT = re.compile(r"^\s*rank\s*:\s*(\d+).*?^\s*exitcode\s*:\s*(-?\d+)", re.DOTALL | re.MULTILINE)
# A line of torchrun's log, such as `E1120 23:39:28.439000 8454 torch/distributed/…`.
TORCHRUN_LOG = re.compile(r"^[A-Z]\d{4} \d\d:\d\d:\d\d\.\d+ .*?torch[/.]distributed[/.](elastic|run)")
RANK_FAILED = re.compile(r"^E\d{4} .*failed \(exitcode: ")
ATTEMPT_START = re.compile(r"^(={10,}$|[A-Z]\d{4} .*(failed \(exitcode: |[Rr]estarting worker group))")
TRACEBACK = "Traceback (most recent call last):"
EXCEPTION = re.compile(r"^[A-Za-z_][\w.]*(: .*)?$")
CHAIN_MARKERS = ("During handling of the above exception", "The above exception was the direct cause")
CRASH = re.compile(r"^(Fatal Python error: |\s*what\(\): )")
# Errors that ranks raise because another one has ended.
SECONDARY_ERROR = re.compile(
    r"Connection (closed|reset|refused)|Broken pipe|[Tt]imed? ?out|remote process (exited|has)|"
    r"NCCL communicator was aborted"
)


@dataclass(frozen=True)
class RootCause:
    """First failure of a run: rank (None if torchrun names none), exit code, and error line (empty if unknown)."""

    rank: int | None
    exit_code: int
    line: str


def find_root_cause(output: Path) -> RootCause:
    """Find the first failure in an output file. Its line is printable and has at most 200 characters."""
    try:
        with output.open("rb") as file:
            file.seek(max(0, output.stat().st_size - TAIL_BYTES))
            text = file.read().decode("utf-8", errors="replace")
    except OSError:
        text = ""
    head, _, report = text.rpartition(ROOT_CAUSE_HEADING)
    failed_rank = RANK_EXIT.search(report)
    if failed_rank is None:
        return RootCause(None, 0, _printable(_cause_line(_rank_lines(text.splitlines()))))
    rank, code = int(failed_rank[1]), int(failed_rank[2])
    return RootCause(rank, code, _printable(_cause_line(_last_attempt(head.splitlines()))))


def _last_attempt(lines: Sequence[str]) -> list[str]:
    """Lines that the ranks printed in the last attempt: from the one before to torchrun's report of the failure."""
    ends = [number for number, line in enumerate(lines) if RANK_FAILED.match(line)]
    end = ends[-1] if ends else len(lines)
    starts = [number for number, line in enumerate(lines[:end]) if ATTEMPT_START.match(line)]
    return _rank_lines(lines[starts[-1] + 1 if starts else 0 : end])


def _rank_lines(lines: Iterable[str]) -> list[str]:
    return [line for line in lines if line.strip() and not TORCHRUN_LOG.match(line)]


def _cause_line(lines: Sequence[str]) -> str:
    """The exception that ended a rank, else the message of a crash, else the last line, marked as such."""
    return raised_line(lines) or (f"the last line that was printed: {lines[-1]}" if lines else "")


def raised_line(lines: Sequence[str]) -> str:
    """The exception that ended a process, else the message of a crash; empty if the lines have neither."""
    raised = list(_exception_lines(lines))
    # Ranks whose peer has died raise connection errors, before or after the failed rank prints its own.
    primary = [line for line in raised if not SECONDARY_ERROR.search(line)]
    crashes = [line for line in lines if CRASH.match(line)]
    return next((found[-1] for found in (primary, crashes, raised) if found), "")


def _exception_lines(lines: Sequence[str]) -> Iterable[str]:
    """Yield the exception line of each traceback; of chained ones only the last, which was not handled."""
    found, inside = "", False
    for line in lines:
        if line.startswith(CHAIN_MARKERS):
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


def _printable(line: str) -> str:
    return one_line(line)[:MAX_LENGTH]
