"""Entry points of an implementation that need no ranks, run as a process whose answer is JSON."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.bert.verification.evidence import SIGMAS, tolerance
from podium.core.errors import PodiumError, UsageError, WorkError
from podium.core.finding import Finding
from podium.core.paths import WORKING_FOLDER, process_environment
from podium.core.processes import end_with_parent
from podium.launch.launch import SPIN_COUNT, require_torch


def ask(implementation: str, entry: str, options: Sequence[str]) -> dict[str, Any]:
    """The JSON object that an entry point prints; UsageError or WorkError, by its exit code, with its last line."""
    require_torch()
    done = subprocess.run(
        [sys.executable, "-m", f"implementations.{implementation}.{entry}", *options],
        cwd=WORKING_FOLDER,
        capture_output=True,
        text=True,
        env={"GOMP_SPINCOUNT": SPIN_COUNT} | os.environ | process_environment(),
        preexec_fn=end_with_parent,
    )
    if done.returncode:
        silent = f"{entry} ended without a word"
        if done.returncode < 0:
            name = signal.strsignal(-done.returncode) or "unknown"
            silent += f", by signal {-done.returncode} ({name}); see that the machine has enough memory"
        raise process_error(done.returncode, done.stderr, silent)
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def process_error(exit_code: int, output: str, otherwise: str) -> PodiumError:
    """The error of a process of ours, by its exit code and the last line that it printed."""
    error = UsageError if exit_code == UsageError.exit_code else WorkError
    return error((output.strip().splitlines() or [otherwise])[-1])


EVALUATE = "implementations.pytorch.evaluate"
REFERENCE_ACCURACY = 0.34085  # Masked-LM accuracy of MLPerf's checkpoint on its 10,000 evaluation samples
CHECK = "initial accuracy"


@dataclass(frozen=True)
class Evaluation:
    """What to evaluate; `samples` None means as many as the size has for its evaluation."""

    checkpoint: Path
    store: Path
    vocabulary: Path
    size: str
    samples: int | None = None

    @property
    def command(self) -> list[str]:
        """The process; it runs in the working folder, so paths are absolute."""
        words = [sys.executable, "-m", EVALUATE, "--checkpoint", str(self.checkpoint.resolve())]
        words += ["--store", str(self.store.resolve()), "--vocabulary", str(self.vocabulary.resolve())]
        words += ["--size", self.size, *(["--samples", str(self.samples)] if self.samples is not None else [])]
        return [*words, "--json"]


def check_initial_accuracy(evaluation: Evaluation, masked_a_sample: float, compared: bool, official: bool) -> Finding:
    """Evaluate the checkpoint; its accuracy is held against the reference's where the data are `compared`.

    The tolerance is that of chance over the masked tokens evaluated, of which a sample has `masked_a_sample`. Beyond it
    `official` data fail. A process that fails is a finding too: what it says goes to standard error as it comes.
    """
    expected = f"{REFERENCE_ACCURACY}" if compared else "any; the data are not MLPerf's"
    environment = os.environ | process_environment()
    done = subprocess.run(
        evaluation.command, cwd=WORKING_FOLDER, env=environment, stdout=subprocess.PIPE, text=True, check=False
    )
    if done.returncode != 0:
        found = f"{evaluation.checkpoint} was not evaluated: the process ended with exit code {done.returncode}"
        return Finding(CHECK, "error", found, expected, "see above what it said, and mend that")
    try:
        result = json.loads(done.stdout)
        accuracy, samples = float(result["masked_lm_accuracy"]), int(result["samples"])
    except (ValueError, KeyError, TypeError):
        found = f"the evaluation of {evaluation.checkpoint} printed no result: {done.stdout.strip()[:80]!r}"
        return Finding(CHECK, "error", found, "one JSON object", f"run it by hand: {' '.join(evaluation.command)}")
    found = f"{accuracy:.5f} of {samples:,} samples"
    if not compared:
        return Finding(CHECK, "note", found, expected)
    allowed = tolerance(REFERENCE_ACCURACY, max(1, round(samples * masked_a_sample)))
    expected = f"{REFERENCE_ACCURACY} ± {allowed:.5f} ({SIGMAS:g} sd)"
    if abs(accuracy - REFERENCE_ACCURACY) <= allowed:
        return Finding(CHECK, "ok", found, expected)
    advice = "the checkpoint or the evaluation samples are not MLPerf's; convert and prepare them again"
    return Finding(CHECK, "error" if official else "note", found, expected, advice)
