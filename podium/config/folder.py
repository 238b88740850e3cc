"""The folder of one run: what the harness puts into it and what the implementation leaves there."""

import json
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from benchmarks.errors import PodiumError, Saved, UsageError, WorkError
from benchmarks.files import write_whole
from podium.config.checkpoints import Checkpoint, remove_unfinished_checkpoints


@dataclass(frozen=True)
class RunFolder:
    """Names of a run's files. None of them is a result: results/ gets its log when the run has ended."""

    path: Path

    @property
    def config(self) -> Path:
        """The resolved configuration, as YAML."""
        return self.path / "config.yaml"

    @property
    def source(self) -> Path:
        """Which code makes the run, as JSON."""
        return self.path / "source.json"

    @property
    def log(self) -> Path:
        """The result log while it is being written."""
        return self.path / "result.partial.txt"

    @property
    def metrics(self) -> Path:
        """One JSON object a line: every step and every evaluation."""
        return self.path / "metrics.jsonl"

    @property
    def summary(self) -> Path:
        """Totals of a run that came to its end, as JSON."""
        return self.path / "summary.json"

    @property
    def output(self) -> Path:
        """What the processes print."""
        return self.path / "output.txt"

    @property
    def checkpoints(self) -> Path:
        """A folder with a folder for each checkpoint."""
        return self.path / "checkpoints"

    @property
    def restarted_result(self) -> Path:
        """The log of a run that was restarted, when it has ended: it is no result and stays here."""
        return self.path / "result.restarted.txt"

    @property
    def not_finite(self) -> Path:
        """The samples of the batch whose loss was not finite, as JSON."""
        return self.path / "not_finite.json"

    @property
    def lock(self) -> Path:
        """Held by all processes of the run as long as they live (podium/config/holding.py)."""
        return self.path / ".lock"

    @property
    def _resumed(self) -> Path:
        return self.path / "resumed"

    @property
    def _failure(self) -> Path:
        return self.path / "failure.json"

    @property
    def _restarts(self) -> Path:
        return self.path / "restarts.jsonl"

    @property
    def begun(self) -> bool:
        """Whether processes have written here before: those that start now begin again."""
        return self.log.exists() or self.metrics.exists() or self.gone_on_with

    @property
    def gone_on_with(self) -> bool:
        """Whether the run was restarted, or `podium run --resume` has set out to: its log is no result."""
        return self._resumed.exists() or self.restarts > 0

    def mark_resumed(self) -> None:
        """Say that the run is gone on with, before any process of it starts: it may die before it can say so."""
        write_whole(self._resumed, "")

    @property
    def restarts(self) -> int:
        """How often the run was begun again, by torchrun or by `podium run --resume`."""
        return len(self._restarts.read_text(encoding="utf-8").splitlines()) if self._restarts.is_file() else 0

    def begin_again(self, checkpoint: Checkpoint | None) -> None:
        """Mark the run as restarted, and bring log and metrics to where they stood in the checkpoint, or to nothing.

        Unfinished checkpoints are removed, and a failure that the restart was made for is forgotten.
        """
        time, samples = datetime.now().isoformat(timespec="seconds"), checkpoint.samples if checkpoint else 0
        with self._restarts.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"time": time, "samples": samples}) + "\n")
        remove_unfinished_checkpoints(self.checkpoints)
        metrics = self.metrics.read_bytes() if self.metrics.is_file() else b""
        length = checkpoint.metrics_bytes if checkpoint else 0
        if len(metrics) < length:
            raise WorkError(
                f"{self.metrics}: has {len(metrics)} bytes, and the checkpoint {checkpoint and checkpoint.path} was "
                f"made when it had {length}; put the whole file back"
            )
        write_whole(self.metrics, metrics[:length])
        write_whole(self.log, checkpoint.log if checkpoint else "")
        self.forget_failure()

    def read_summary(self) -> dict[str, Any] | None:
        """The totals, or None where the run did not come to its end."""
        if not self.summary.is_file():
            return None
        summary: dict[str, Any] = json.loads(self.summary.read_text(encoding="utf-8"))
        return summary

    def samples_trained(self) -> int:
        """Samples that the run was trained on, as far as its metrics tell."""
        samples = 0
        if self.metrics.is_file():
            with self.metrics.open(encoding="utf-8", errors="replace") as lines:
                for line in lines:
                    with suppress(ValueError, KeyError, TypeError):
                        samples = max(samples, int(json.loads(line)["samples"]))
        return samples

    def tell_failure(self, error: PodiumError, final: bool = True) -> None:
        """Leave the sentence for whoever started the run. After a `final` one a restart would come to the same end."""
        failure = {"exit_code": error.exit_code, "message": str(error), "final": final}
        write_whole(self._failure, json.dumps(failure))

    def told_failure(self, final_only: bool = False) -> PodiumError | None:
        """The failure that a process has told of."""
        try:
            failure = json.loads(self._failure.read_text(encoding="utf-8"))
            exit_code, message = failure["exit_code"], str(failure["message"])
        except (OSError, ValueError, KeyError, TypeError):
            return None
        if final_only and not failure.get("final", True):
            return None
        kinds: dict[int, type[PodiumError]] = {kind.exit_code: kind for kind in (UsageError, Saved)}
        return kinds.get(exit_code, WorkError)(message)

    def forget_failure(self) -> None:
        self._failure.unlink(missing_ok=True)
