"""Runs MLPerf's official compliance checker on a result file, under every ruleset that includes BERT."""

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.bert.rules import RULESETS
from podium.core.console import print_command


def check_compliance(result: Path, rulesets: Sequence[str] = RULESETS) -> dict[str, str]:
    """Run the checker; return by ruleset "" where it reports SUCCESS, else its output."""
    with ThreadPoolExecutor(2) as pool:
        return dict(zip(rulesets, pool.map(lambda ruleset: _run_checker(result, ruleset), rulesets), strict=True))


def _run_checker(result: Path, ruleset: str) -> str:
    # A temporary working directory: the checker writes a log file into the current one.
    with tempfile.TemporaryDirectory() as folder:
        # A subprocess: the checker keeps state in module globals, so each check has its own.
        module = [sys.executable, "-m", "mlperf_logging.compliance_checker"]
        arguments = ["--usage", "training", "--ruleset", ruleset, str(result.resolve())]
        print_command([*module, *arguments])
        done = subprocess.run(module + arguments, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode == 0 and "SUCCESS" in done.stdout + done.stderr:
        return ""
    return (done.stderr + done.stdout).strip() or f"exit code {done.returncode}"
