"""What a checkpoint says of itself and of the configuration that it was made with, and whether that still holds."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.errors import UsageError, WorkError
from podium.config.checkpoints import FACTS, Checkpoint, facts_digest
from podium.config.launch import FREE, FREE_ON_GPU
from podium.config.model import RunConfig

FREE_BESIDE_LAUNCH = {"checkpoint"}
"""Keys that may be others when a run is gone on with: they change no number of it."""
MOST_NAMED = 3


def kept(config: RunConfig) -> dict[str, Any]:
    """All of a configuration that a run's numbers and its log depend on, as JSON holds it."""
    document = config.model_dump(mode="json", by_alias=True, exclude=FREE_BESIDE_LAUNCH | {"launch"})
    left_out = {*FREE, *(FREE_ON_GPU if config.launch.device == "cuda" else ())}
    return {**document, "launch": config.launch.model_dump(mode="json", by_alias=True, exclude=left_out)}


def digest_of(configuration: Mapping[str, Any]) -> str:
    """A name for what `kept` gives, of 64 hexadecimal digits (SHA-256)."""
    return hashlib.sha256(json.dumps(configuration, sort_keys=True).encode("utf-8")).hexdigest()


def require_kept(checkpoint: Checkpoint, config: RunConfig, file: Path) -> None:
    """Refuse to go on from a checkpoint whose facts were changed, or with another configuration than it was made with.

    `file` is where the configuration was read. Raises WorkError for the facts, UsageError for the configuration.
    """
    if facts_digest(checkpoint.facts) != checkpoint.facts["digest"]:
        raise WorkError(
            f"{checkpoint.path / FACTS}: is not as it was written; remove the folder {checkpoint.path}, and the run "
            "goes on from the checkpoint before it"
        )
    found = list(_differences(kept(config), checkpoint.facts["configuration"]))
    if found:
        more = f", and {len(found) - MOST_NAMED} more" if len(found) > MOST_NAMED else ""
        raise UsageError(
            f"{file}: {', '.join(found[:MOST_NAMED])}{more}, as {checkpoint.path} was made; a run goes on as it was "
            "configured: put that back, or start another run"
        )


def _differences(here: Any, there: Any, key: str = "") -> Iterator[str]:
    """`KEY is HERE and was THERE` for each key of two documents that differs."""
    if isinstance(here, Mapping) and isinstance(there, Mapping):
        for name in (*here, *(name for name in there if name not in here)):
            yield from _differences(here.get(name), there.get(name), f"{key}.{name}" if key else name)
    elif here != there:
        yield f"{key} is {json.dumps(here, ensure_ascii=False)} and was {json.dumps(there, ensure_ascii=False)}"
