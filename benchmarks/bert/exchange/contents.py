"""What a foreign file holds, and what its samples are said to be made from."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.bert.exchange.rows import AllowedTokens
from benchmarks.bert.preparation.settings import GenerationSettings
from benchmarks.bert.samples import SAMPLE_DTYPES, Samples
from benchmarks.bert.store import (
    ATTRIBUTES,
    EVALUATION,
    FORMAT,
    FORMAT_VERSION,
    GENERATION_ATTRIBUTES,
    ORIGIN_ATTRIBUTES,
    RANDOM,
    TEXT,
    WHOLE,
    Origin,
    content_sha256,
)
from benchmarks.errors import UsageError
from benchmarks.files import sha256_of


@dataclass(frozen=True, eq=False)
class Contents:
    """Checked samples of a foreign file."""

    samples: Samples
    max_sequence_length: int
    """The width of its rows, in tokens, or what it may be."""
    max_predictions: int
    noted: Mapping[str, Any] = field(default_factory=dict)
    """The attributes of the shard that it was exported from, if it says so, unchecked."""


def origin_of(contents: Contents, path: Path, format_name: str, allowed: AllowedTokens) -> Origin:
    """What the exported shard was made from if these are still its samples; else the foreign file itself.

    Raises UsageError if these are a shard's samples and it was made with another vocabulary than `allowed`.
    """
    restored = _restored(contents)
    if restored is None:
        return Origin(
            source=path.name,
            source_sha256=sha256_of(path),
            vocabulary_sha256=allowed.sha256,
            max_sequence_length=contents.max_sequence_length,
            max_predictions=contents.max_predictions,
            made_by=format_name,
        )
    if restored.vocabulary_sha256 != allowed.sha256:
        raise UsageError(
            f"{path}: was exported from samples that were made with another vocabulary than {allowed.vocabulary}; "
            f"name the one with the SHA-256 {restored.vocabulary_sha256}"
        )
    return restored


def _restored(contents: Contents) -> Origin | None:
    """The origin that was noted, or None unless every attribute of a shard was, and is that of these samples."""
    noted, samples = contents.noted, contents.samples
    kinds = dict(ATTRIBUTES)
    if noted.get("made_by") == TEXT:
        kinds |= GENERATION_ATTRIBUTES
    if any(type(noted.get(name)) is not kind for name, kind in kinds.items()):
        return None
    if (noted["format"], noted["format_version"]) != (FORMAT, FORMAT_VERSION):
        return None
    if noted["selection"] not in (WHOLE, EVALUATION, RANDOM):
        return None
    longest, most = (int(np.diff(offsets).max()) for offsets in (samples.sample_offsets, samples.masked_offsets))
    if longest > noted["max_sequence_length"] or most > noted["max_predictions"]:
        return None
    arrays = {name: np.ascontiguousarray(getattr(samples, name), dtype) for name, dtype in SAMPLE_DTYPES.items()}
    if content_sha256(arrays) != noted["content_sha256"]:
        return None
    own = {name: noted[name] for name in ORIGIN_ATTRIBUTES}
    if noted["made_by"] != TEXT:
        return Origin(**own)
    try:
        return Origin(**own, generation=GenerationSettings(**{name: noted[name] for name in GENERATION_ATTRIBUTES}))
    except UsageError:
        return None
