"""Conversion of stores of older versions: the same samples, in records, and with a length index.

Shards of version 2 have a dataset for each array of `Samples`, so that one sample lies in five places. A converted
shard has the same attributes, content hash included, and replaces the old one when it is whole: an interrupted
conversion is taken up again by the next one.
"""

from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.bert.manifest import Manifest, require_listed
from benchmarks.bert.samples import SAMPLE_DTYPES, Samples, value_fault
from benchmarks.bert.shard import (
    OLDER_VERSION,
    Origin,
    Shard,
    dataset_place,
    mapped_file,
    opened_shard,
    require_content,
    unusable,
    write_shard,
)
from benchmarks.bert.store import renew_manifest, require_alike, require_named, shard_paths
from podium.core.errors import PodiumError
from podium.core.files import remove_unfinished
from podium.core.locks import folder_lock
from podium.core.processes import results_of


def upgrade(
    folder: Path, processes: int = 1, on_shard: Callable[[], None] = lambda: None
) -> tuple[Sequence[Path], Sequence[Path]]:
    """Convert the shards of a store that are of version 2, verify all, and write length index and manifest anew.

    Returns the shards that were converted, and the others. Raises UsageError where there is no shard, ManifestError
    where the shards are not those that the manifest lists, and WorkError for a damaged shard or a disk that is full.
    """
    paths = shard_paths(folder)
    with folder_lock(folder, "podium data upgrade"):
        attributes = {path: _attributes(path) for path in paths}
        require_listed(folder, Manifest.of_attributes(attributes))
        require_named(attributes)
        require_alike(attributes)
        older = [path for path in paths if attributes[path]["format_version"] == OLDER_VERSION]
        with closing(results_of(_convert, {path: (path, path in older) for path in paths}, processes)) as results:
            for _ in results:
                on_shard()
        renew_manifest(folder)
    return older, [path for path in paths if path not in older]


def _attributes(path: Path) -> dict[str, Any]:
    """Of a shard of either version."""
    with opened_shard(path, None) as (_, attributes):
        return attributes


def _convert(path: Path, older: bool) -> None:
    """Convert one shard where it is of the older version; read what is there then, and verify it."""
    if older:
        convert_shard(path)
    shard = Shard(path)
    samples = shard.samples
    shard.verify(samples)
    shard.require_values(None, samples)


def convert_shard(path: Path) -> None:
    """Replace a shard of version 2 by one of the same samples. Raises WorkError for a damaged one, which stays."""
    samples, origin = read_older(path)
    remove_unfinished(path)
    write_shard(path, samples, origin)


def read_older(path: Path) -> tuple[Samples, Origin]:
    """The samples of a shard of version 2, views of the mapped file, verified. Raises WorkError for a damaged one."""
    with opened_shard(path, OLDER_VERSION) as (file, attributes):
        places = {name: dataset_place(path, file, name, dtype) for name, dtype in SAMPLE_DTYPES.items()}
    content = mapped_file(path, in_order=True)
    arrays: dict[str, Any] = {name: content[place].view(SAMPLE_DTYPES[name]) for name, place in places.items()}
    count, tokens, masked = (attributes[name] for name in ("samples", "tokens", "masked_tokens"))
    expected = (tokens, count + 1, count, masked, masked, count + 1, count)
    for (name, array), elements in zip(arrays.items(), expected, strict=True):
        if len(array) != elements:
            raise unusable(path, f"{name} has {len(array)} elements, not {elements}")
    for name, total, most in (
        ("sample_offsets", tokens, attributes["max_sequence_length"]),
        ("masked_offsets", masked, attributes["max_predictions"]),
    ):
        steps = np.diff(arrays[name])
        if arrays[name][0] != 0 or arrays[name][-1] != total or steps.min() < 1 or steps.max() > most:
            raise unusable(path, f"{name} do not ascend from 0 to {total} in steps of 1 to {most}")
    samples = Samples(**arrays)
    require_content(path, attributes, samples)
    if fault := value_fault(samples, None):
        raise unusable(path, "sample {}: {}".format(*fault))
    return samples, Origin.of_attributes(attributes)


def is_older(folder: Path) -> bool:
    """Whether a store has shards of an older version; not where they cannot be read at all."""
    try:
        return any(_attributes(path)["format_version"] == OLDER_VERSION for path in shard_paths(folder))
    except PodiumError:
        return False
