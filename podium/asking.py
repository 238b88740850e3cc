"""Ask an implementation something that needs no ranks: run one of its entry points as a process and read its answer."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from benchmarks.errors import UsageError, WorkError
from benchmarks.processes import end_with_parent
from podium.config.loading import ROOT
from podium.launching import SPIN_COUNT


def ask(implementation: str, entry: str, options: Sequence[str]) -> dict[str, Any]:
    """The JSON object that `implementations.IMPLEMENTATION.ENTRY OPTIONS` prints.

    Raises UsageError (exit code 2) or WorkError with the sentence that it ends with.
    """
    done = subprocess.run(
        [sys.executable, "-m", f"implementations.{implementation}.{entry}", *options],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env={"GOMP_SPINCOUNT": SPIN_COUNT} | os.environ,
        preexec_fn=end_with_parent,
    )
    if done.returncode == UsageError.exit_code:
        raise UsageError(_sentence(done.stderr, entry))
    if done.returncode:
        raise WorkError(_sentence(done.stderr, entry))
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def _sentence(text: str, entry: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1] if lines else f"{entry} ended without a word"
