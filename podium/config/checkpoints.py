"""The checkpoints of a run as harness and implementation both know them: a folder each, under the run's own.

A checkpoint is whole when its facts and the file of every rank are there. Each of these files is written to a temporary
name and renamed, so that nobody has to wait for anybody: the last file that comes makes it whole.
"""

import hashlib
import json
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FORMAT, VERSION = "podium-run", 2
FACTS = "facts.json"
NAME = "batch_{:08d}"
KNOWN: Mapping[str, type] = {
    **dict.fromkeys(("batches", "samples", "ranks", "metrics_bytes"), int),
    **dict.fromkeys(("log", "digest"), str),
    "configuration": dict,
}
"""The facts that harness and implementation share, and their types."""


@dataclass(frozen=True)
class Checkpoint:
    """A whole checkpoint."""

    path: Path
    facts: Mapping[str, Any]
    """What is no tensor: where the run stood."""

    @property
    def batches(self) -> int:
        """Global batches that were taken, those of skipped steps included."""
        return int(self.facts["batches"])

    @property
    def samples(self) -> int:
        """Samples that were trained on."""
        return int(self.facts["samples"])

    @property
    def metrics_bytes(self) -> int:
        """Length of the run's metrics when it was made."""
        return int(self.facts["metrics_bytes"])

    @property
    def log(self) -> str:
        """The run's log when it was made."""
        return str(self.facts["log"])


def checkpoint_path(folder: Path, batches: int) -> Path:
    """Where the checkpoint after so many global batches lies, or would lie."""
    return folder / NAME.format(batches)


def rank_file(checkpoint: Path, rank: int) -> Path:
    """The tensors that a rank has written."""
    return checkpoint / f"rank_{rank}.safetensors"


def facts_of(
    batches: int,
    samples: int,
    ranks: int,
    metrics_bytes: int,
    log: str,
    configuration: Mapping[str, Any],
    rest: Mapping[str, Any],
) -> str:
    """The content of a checkpoint's facts. `configuration` is what the run was made with, as podium/config/kept.py
    gives it, and `rest` the implementation's own."""
    known = {"batches": batches, "samples": samples, "ranks": ranks, "metrics_bytes": metrics_bytes, "log": log}
    facts = {"format": FORMAT, "version": VERSION, **known, "configuration": configuration, **rest}
    return json.dumps({**facts, "digest": facts_digest(facts)}, indent=1) + "\n"


def facts_digest(facts: Mapping[str, Any]) -> str:
    """SHA-256 over all facts but the digest itself, in hexadecimal."""
    others = {key: value for key, value in facts.items() if key != "digest"}
    return hashlib.sha256(json.dumps(others, sort_keys=True).encode("utf-8")).hexdigest()


def read_checkpoint(path: Path) -> Checkpoint | None:
    """The checkpoint in this folder; None where it is not whole or of another version."""
    try:
        facts = json.loads((path / FACTS).read_text(encoding="utf-8"))
        known = (facts["format"], facts["version"]) == (FORMAT, VERSION)
        known = known and all(isinstance(facts[key], kind) for key, kind in KNOWN.items())
        whole = all(rank_file(path, rank).is_file() for rank in range(facts["ranks"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return Checkpoint(path, facts) if known and whole else None


def whole_checkpoints(folder: Path) -> list[Checkpoint]:
    """The whole checkpoints of a run, the oldest first."""
    found = [read_checkpoint(path) for path in folder.glob("batch_*")]
    return sorted((checkpoint for checkpoint in found if checkpoint), key=lambda checkpoint: checkpoint.batches)


def newest_checkpoint(folder: Path) -> Checkpoint | None:
    return next(reversed(whole_checkpoints(folder)), None)


def remove_old_checkpoints(folder: Path, keep: int) -> None:
    """Remove all whole checkpoints but the newest ones. What is removed is no longer whole from the first moment on."""
    for checkpoint in whole_checkpoints(folder)[:-keep]:
        with suppress(OSError):
            (checkpoint.path / FACTS).unlink()
        shutil.rmtree(checkpoint.path, ignore_errors=True)


def remove_unfinished_checkpoints(folder: Path) -> None:
    """Remove what processes that died have left half-written."""
    for path in folder.glob("batch_*"):
        if read_checkpoint(path) is None:
            shutil.rmtree(path, ignore_errors=True)
