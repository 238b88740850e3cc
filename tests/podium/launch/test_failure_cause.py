"""Search for the first failure and its error line in a run's output."""

from pathlib import Path

import pytest

from podium.launch.failure_cause import MAX_LENGTH, TAIL_BYTES, find_root_cause

LOG = "E1120 23:39:28.439000 8454 torch/distributed/elastic/multiprocessing/api.py:1002] "
REPORT = (
    LOG + "failed (exitcode: {code}) local_rank: 1 (pid: 8459) of binary: /usr/bin/python\n"
    "Traceback (most recent call last):\n"
    '  File "/torch/distributed/launcher/api.py", line 383, in launch_agent\n'
    "    raise ChildFailedError(\n"
    "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:\n"
    "============================================================\n"
    "implementations.pytorch.train FAILED\n"
    "Root Cause (first observed failure):\n[0]:\n"
    "  rank      : 1 (local_rank: 1)\n  exitcode  : {code} (pid: 8459)\n"
    "============================================================\n"
)


def traceback(line: str) -> str:
    return f'Traceback (most recent call last):\n  File "x.py", line 3, in f\n    g()\n{line}\n'


CLOSED = traceback("RuntimeError: [gloo/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:30173")


@pytest.mark.parametrize(
    ("printed", "code", "line"),
    [
        (traceback("ValueError: batch 7 is odd"), 1, "ValueError: batch 7 is odd"),
        (traceback("KeyError"), 1, "KeyError"),
        (traceback("h5py.Errors.Bad: x"), 1, "h5py.Errors.Bad: x"),
        # the failed rank's error, before or after those of its peers
        (traceback("ValueError: odd") + CLOSED, 1, "ValueError: odd"),
        (CLOSED + traceback("ValueError: odd"), 1, "ValueError: odd"),
        (CLOSED, 1, CLOSED.splitlines()[-1]),
        # the unhandled one of chained exceptions
        (
            traceback("KeyError: 'x'")
            + "\nDuring handling of the above exception, another exception occurred:\n\n"
            + traceback("OSError: it is closed"),
            1,
            "OSError: it is closed",
        ),
        (traceback("ValueError: first\nsecond") + "step 3\n", 1, "ValueError: first"),
        ("Fatal Python error: Segmentation fault\n\nThread 0x1 (most recent call first):\n", -11, "Fatal Python error"),
        ("terminate called after throwing an instance\n  what():  no memory\n#0 f\n", -6, "what(): no memory"),
        ("step 1\nfree(): invalid pointer\n", -6, "the last line that was printed: free(): invalid pointer"),
        ("step 1\nKilled\n\n", -9, "the last line that was printed: Killed"),
        ("", -9, ""),
        (LOG + "Sending process 8458 closing signal SIGTERM\n", -9, ""),
        # an error of an earlier attempt, which torchrun has restarted
        (
            traceback("ValueError: old") + REPORT.format(code=3) + "step 1\n",
            1,
            "the last line that was printed: step 1",
        ),
    ],
)
def test_cause_is_the_failed_ranks_error_line(tmp_path: Path, printed: str, code: int, line: str) -> None:
    output = tmp_path / "output.txt"
    output.write_text(printed + REPORT.format(code=code), encoding="utf-8")
    cause = find_root_cause(output)
    assert (cause.rank, cause.exit_code) == (1, code)
    assert cause.line.startswith(line) if line else cause.line == ""


def test_failure_of_torchrun_before_any_rank_starts(tmp_path: Path) -> None:
    output = tmp_path / "output.txt"
    output.write_text(traceback("ImportError: no torch"), encoding="utf-8")
    assert (find_root_cause(output).rank, find_root_cause(output).line) == (None, "ImportError: no torch")
    assert find_root_cause(tmp_path / "nothing").line == ""


def test_line_is_printable_and_short(tmp_path: Path) -> None:
    output = tmp_path / "output.txt"
    hostile = "ValueError: \x1b[31m\x07\u202e" + "x" * 5000
    output.write_bytes(b"\xff\n" * TAIL_BYTES + (traceback(hostile) + REPORT.format(code=1)).encode())
    line = find_root_cause(output).line
    assert line.isprintable() and line.startswith("ValueError: [31m") and len(line) == MAX_LENGTH
