"""The verdict of MLPerf's own compliance checker on a result file, under every ruleset that includes BERT."""

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.bert.rules import RULESETS


def check_compliance(result: Path, rulesets: Sequence[str] = RULESETS) -> dict[str, str]:
    """Ruleset → "" where the checker says SUCCESS, else what it says instead."""
    with ThreadPoolExecutor(2) as pool:
        return dict(zip(rulesets, pool.map(lambda ruleset: _check(result, ruleset), rulesets), strict=True))


def _check(result: Path, ruleset: str) -> str:
    """The checker runs in a folder of its own, since it writes a log where it runs."""
    with tempfile.TemporaryDirectory() as folder:
        module = [sys.executable, "-m", "mlperf_logging.compliance_checker"]
        arguments = ["--usage", "training", "--ruleset", ruleset, str(result.resolve())]
        done = subprocess.run(module + arguments, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode == 0 and "SUCCESS" in done.stdout + done.stderr:
        return ""
    return (done.stderr + done.stdout).strip() or f"exit code {done.returncode}"
