"""The folder of one run: what the harness puts into it and what the implementation leaves there."""

import json
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.errors import PodiumError, UsageError, WorkError
from benchmarks.files import write_whole


@dataclass(frozen=True)
class RunFolder:
    """Names of a run's files. None of them is a result: results/ gets its log when the run has ended."""

    path: Path

    @property
    def config(self) -> Path:
        """The resolved configuration, as YAML."""
        return self.path / "config.yaml"

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
    def _failure(self) -> Path:
        return self.path / "failure.json"

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

    def tell_failure(self, error: PodiumError) -> None:
        """Leave the sentence for whoever started the run."""
        failure = {"exit_code": error.exit_code, "message": str(error)}
        write_whole(self._failure, json.dumps(failure))

    def told_failure(self) -> PodiumError | None:
        """The failure that a process has told of."""
        try:
            failure = json.loads(self._failure.read_text(encoding="utf-8"))
            exit_code, message = failure["exit_code"], str(failure["message"])
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return UsageError(message) if exit_code == UsageError.exit_code else WorkError(message)
