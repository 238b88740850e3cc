"""Convergence of a closed result compared with MLPerf's reference convergence points (RCPs), and its score's scaling.

A result that needs fewer samples than the reference, but not significantly fewer, has its score scaled up by
reference mean / own mean, from ruleset 2.1.0 on. All of it is computed by the official checker, on a copy.
"""

import shutil
import tempfile
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from podium.core.errors import WorkError
from podium.mllog.results_tree import SCALING
from podium.mllog.rulesets import Ruleset
from podium.submission.official.runner import FOLDER_SECONDS, ToolProcess


@dataclass(frozen=True)
class Convergence:
    """What the official RCP checker finds in ten logs."""

    passed: bool
    words: str  # the checker's own, such as RCP Interpolation
    factor: float
    samples: float | None  # until the target: the mean without the least and the greatest
    reference_samples: float | None  # the reference's mean at this batch size, interpolated where it is between two
    least_samples: float | None  # that are accepted
    reference_batch_size: int | None
    scaling: bytes | None  # scaling.json as the official package checker writes it; None where the score is not scaled


def convergence(logs: Sequence[Path], ruleset: Ruleset) -> Convergence:
    """Ask the official checker. WorkError where it fails."""
    with tempfile.TemporaryDirectory() as temporary, closing(ToolProcess()) as process:
        folder = Path(temporary) / "bert"
        folder.mkdir()
        for number, log in enumerate(logs):
            shutil.copyfile(log, folder / f"result_{number}.txt")
        answer = process.ask("rcp_checker", folder, ruleset.name, FOLDER_SECONDS)
        if answer["crash"]:
            raise WorkError(
                f"{logs[0].parent}: the official RCP checker broke off ({answer['crash']}); are these whole logs?"
            )
        found, scaling = answer["convergence"], folder / SCALING
        content = scaling.read_bytes() if ruleset.scaled and found["passed"] and scaling.is_file() else None
    return Convergence(**found, scaling=content)
