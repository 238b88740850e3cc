"""Conversion of stores of older format versions: the same samples as records, and a length index.

Shards of version 2 have a dataset for each array of `Samples`, so that one sample lies in five places. A converted
shard has the same attributes, content hash included, and replaces the old one atomically, so an interrupted conversion
is resumed by the next call.
"""

from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.bert.manifest import Manifest, require_listed
from benchmarks.bert.samples import SAMPLE_DTYPES, Samples, find_invalid_value
from benchmarks.bert.shard import (
    OLDER_VERSION,
    Origin,
    Shard,
    dataset_range,
    map_file,
    open_shard,
    require_content,
    shard_error,
    write_shard,
)
from benchmarks.bert.store import require_compatible, require_matching_names, shard_paths, update_manifest
from podium.core.errors import PodiumError
from podium.core.files import remove_partial_files
from podium.core.locks import folder_lock
from podium.core.processes import run_jobs


def upgrade(
    folder: Path, processes: int = 1, on_shard: Callable[[], None] = lambda: None
) -> tuple[Sequence[Path], Sequence[Path]]:
    """Convert the shards of version 2 in a store, verify all shards, and write length index and manifest anew.

    Returns the converted shards and the others. Raises UsageError for a folder without shards, ManifestError where the
    shards differ from the manifest, and WorkError for a damaged shard or a full disk.
    """
    paths = shard_paths(folder)
    with folder_lock(folder, "podium data upgrade"):
        attributes = {path: _read_attributes(path) for path in paths}
        require_listed(folder, Manifest.of_attributes(attributes))
        require_matching_names(attributes)
        require_compatible(attributes)
        older = [path for path in paths if attributes[path]["format_version"] == OLDER_VERSION]
        with closing(
            run_jobs(_convert_and_verify, {path: (path, path in older) for path in paths}, processes)
        ) as results:
            for _ in results:
                on_shard()
        update_manifest(folder)
    return older, [path for path in paths if path not in older]


def _read_attributes(path: Path) -> dict[str, Any]:
    """Attributes of a shard of any version."""
    with open_shard(path, None) as (_, attributes):
        return attributes


def _convert_and_verify(path: Path, older: bool) -> None:
    """Convert one shard if it is of version 2, then verify the shard as it is on the disk."""
    if older:
        convert_shard(path)
    shard = Shard(path)
    samples = shard.samples
    shard.verify(samples)
    shard.require_values(None, samples)


def convert_shard(path: Path) -> None:
    """Convert a shard of version 2 in place. Raises WorkError for a damaged one, which is left as it is."""
    samples, origin = read_version_2(path)
    remove_partial_files(path)
    write_shard(path, samples, origin)


def read_version_2(path: Path) -> tuple[Samples, Origin]:
    """Verified samples of a shard of version 2, as views of the mapped file. Raises WorkError for a damaged one."""
    with open_shard(path, OLDER_VERSION) as (file, attributes):
        places = {name: dataset_range(path, file, name, dtype) for name, dtype in SAMPLE_DTYPES.items()}
    content = map_file(path, in_order=True)
    arrays: dict[str, Any] = {name: content[place].view(SAMPLE_DTYPES[name]) for name, place in places.items()}
    count, tokens, masked = (attributes[name] for name in ("samples", "tokens", "masked_tokens"))
    expected = (tokens, count + 1, count, masked, masked, count + 1, count)
    for (name, array), elements in zip(arrays.items(), expected, strict=True):
        if len(array) != elements:
            raise shard_error(path, f"{name} has {len(array)} elements, not {elements}")
    for name, total, most in (
        ("sample_offsets", tokens, attributes["max_sequence_length"]),
        ("masked_offsets", masked, attributes["max_predictions"]),
    ):
        steps = np.diff(arrays[name])
        if arrays[name][0] != 0 or arrays[name][-1] != total or steps.min() < 1 or steps.max() > most:
            raise shard_error(path, f"{name} do not ascend from 0 to {total} in steps of 1 to {most}")
    samples = Samples(**arrays)
    require_content(path, attributes, samples)
    if fault := find_invalid_value(samples, None):
        raise shard_error(path, "sample {}: {}".format(*fault))
    return samples, Origin.of_attributes(attributes)


def has_older_shards(folder: Path) -> bool:
    """Whether a store has shards of an older version; False where they cannot be read."""
    try:
        return any(_read_attributes(path)["format_version"] == OLDER_VERSION for path in shard_paths(folder))
    except PodiumError:
        return False
