"""Runs entry points of an implementation that need no ranks, each as a process that prints a JSON object."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.bert.verification.evidence import SIGMAS, tolerance
from podium.core.console import print_command
from podium.core.errors import PodiumError, UsageError, WorkError
from podium.core.finding import Finding
from podium.core.paths import WORKING_FOLDER, child_environment
from podium.core.processes import end_with_parent
from podium.launch.failure_cause import raised_line
from podium.launch.launch import SPIN_COUNT, require_torch


def call_entry_point(implementation: str, entry: str, options: Sequence[str]) -> dict[str, Any]:
    """Run an entry point of an implementation, and return the JSON object that it prints.

    UsageError or WorkError, by the exit code of the process, with the cause in what it printed to standard error.
    """
    require_torch()
    argv = [sys.executable, "-m", f"implementations.{implementation}.{entry}", *options]
    print_command(argv)
    process = subprocess.run(
        argv,
        cwd=WORKING_FOLDER,
        capture_output=True,
        text=True,
        env={"GOMP_SPINCOUNT": SPIN_COUNT} | os.environ | child_environment(),
        preexec_fn=end_with_parent,
    )
    if process.returncode:
        default = f"{entry} ended without an error message"
        if process.returncode < 0:
            name = signal.strsignal(-process.returncode) or "unknown"
            default += f", by signal {-process.returncode} ({name}); check that the machine has enough memory"
        raise process_error(process.returncode, process.stderr, default)
    document: dict[str, Any] = json.loads(process.stdout)
    return document


ERROR_MARK = "podium error: "


def format_process_error(error: BaseException) -> str:
    """Format the error of a child process as one line that `process_error` finds among the output of libraries."""
    return ERROR_MARK + json.dumps(str(error))


def process_error(exit_code: int, output: str, default: str) -> PodiumError:
    """Return the error of a failed process of Podium: UsageError or WorkError by its exit code.

    The message is that of `format_process_error`, else the exception of a traceback or the message of a crash, else
    the last line of the output, else `default`: libraries print warnings after an error, when the process ends.
    """
    error = UsageError if exit_code == UsageError.exit_code else WorkError
    lines = output.strip().splitlines()
    for line in reversed(lines):
        if line.startswith(ERROR_MARK):
            with suppress(ValueError):
                return error(str(json.loads(line.removeprefix(ERROR_MARK))))
    return error(raised_line(lines) or (lines or [default])[-1])


EVALUATE = "implementations.pytorch.evaluate"
REFERENCE_ACCURACY = 0.34085  # Masked-LM accuracy of MLPerf's checkpoint on its 10,000 evaluation samples
CHECK = "initial accuracy"


@dataclass(frozen=True)
class Evaluation:
    """A checkpoint and the samples to evaluate it on; `samples` None means the model size's number of them."""

    checkpoint: Path
    store: Path
    vocabulary: Path
    size: str
    samples: int | None = None

    @property
    def command(self) -> list[str]:
        """The argv of the evaluating process. Paths are absolute, since it runs in the working folder."""
        argv = [sys.executable, "-m", EVALUATE, "--checkpoint", str(self.checkpoint.resolve())]
        argv += ["--store", str(self.store.resolve()), "--vocabulary", str(self.vocabulary.resolve())]
        argv += ["--size", self.size, *(["--samples", str(self.samples)] if self.samples is not None else [])]
        return [*argv, "--json"]


def check_initial_accuracy(
    evaluation: Evaluation, masked_per_sample: float, comparable: bool, official: bool
) -> Finding:
    """Evaluate the checkpoint, and compare its masked-LM accuracy with the reference's if the data are `comparable`.

    The tolerance is SIGMAS standard deviations of a binomial share over the evaluated masked tokens, of which a sample
    has `masked_per_sample` on average. A larger difference is an error for `official` data, else a note. A process that
    fails is a finding too; its standard error is passed through.
    """
    expected = f"{REFERENCE_ACCURACY}" if comparable else "any; the data are not MLPerf's"
    environment = os.environ | child_environment()
    print_command(evaluation.command)
    process = subprocess.run(
        evaluation.command, cwd=WORKING_FOLDER, env=environment, stdout=subprocess.PIPE, text=True, check=False
    )
    if process.returncode != 0:
        found = f"{evaluation.checkpoint} was not evaluated: the process ended with exit code {process.returncode}"
        return Finding(CHECK, "error", found, expected, "fix the error that is printed above")
    try:
        result = json.loads(process.stdout)
        accuracy, samples = float(result["masked_lm_accuracy"]), int(result["samples"])
    except (ValueError, KeyError, TypeError):
        found = f"the evaluation of {evaluation.checkpoint} printed no result: {process.stdout.strip()[:80]!r}"
        return Finding(CHECK, "error", found, "one JSON object", f"run it by hand: {' '.join(evaluation.command)}")
    found = f"{accuracy:.5f} of {samples:,} samples"
    if not comparable:
        return Finding(CHECK, "note", found, expected)
    allowed = tolerance(REFERENCE_ACCURACY, max(1, round(samples * masked_per_sample)))
    expected = f"{REFERENCE_ACCURACY} ± {allowed:.5f} ({SIGMAS:g} sd)"
    if abs(accuracy - REFERENCE_ACCURACY) <= allowed:
        return Finding(CHECK, "ok", found, expected)
    advice = "the checkpoint or the evaluation samples are not MLPerf's; convert and prepare them again"
    return Finding(CHECK, "error" if official else "note", found, expected, advice)
