"""Comparison of a closed result with MLPerf's reference convergence points (RCPs), and the scaling of its score.

A result that needs fewer samples than the reference, but not significantly fewer, has its score scaled up by
(reference mean / mean of the result) from ruleset 2.1.0 on. The official checker computes all of it, on a copy;
podium.mllog.rcp computes the same without logs, for many results.
"""

import shutil
import tempfile
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from podium.core.errors import WorkError
from podium.mllog import rcp
from podium.mllog.results_tree import SCALING
from podium.mllog.rulesets import Ruleset
from podium.submission.official.runner import FOLDER_TIMEOUT_SECONDS, ToolProcess


@dataclass(frozen=True)
class Convergence(rcp.Convergence):
    """Result of the official RCP checker on the logs of a result."""

    scaling: bytes | None  # scaling.json as the official package checker writes it; None where the score is not scaled


def convergence(logs: Sequence[Path], ruleset: Ruleset) -> Convergence:
    """Run the official RCP checker on copies of a result's logs. Raises WorkError where it breaks off."""
    with tempfile.TemporaryDirectory() as temporary, closing(ToolProcess()) as process:
        folder = Path(temporary) / "result"
        folder.mkdir()
        for number, log in enumerate(logs):
            shutil.copyfile(log, folder / f"result_{number}.txt")
        answer = process.run_tool("rcp_checker", folder, ruleset.name, FOLDER_TIMEOUT_SECONDS)
        if answer["crash"]:
            raise WorkError(
                f"{logs[0].parent}: the official RCP checker broke off ({answer['crash']}); "
                "check that the logs are complete"
            )
        found, scaling = answer["convergence"], folder / SCALING
        content = scaling.read_bytes() if ruleset.scaled and found["passed"] and scaling.is_file() else None
    return Convergence(**found, scaling=content)
