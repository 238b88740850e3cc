"""Synthetic stores for rehearsals: manifest and length index of Wikipedia's size, and no samples.

The work of a rank before and beside training depends only on the lengths of the samples. A synthetic store has the
manifest and the length index of a real one, which are all that is read before samples; its shards are empty files.
Lengths follow the published histogram. The content is the same on every machine. A store is written once, and a damaged
one is replaced.
"""

import errno
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import numpy as np

from benchmarks.bert.length_index import FILE, StoredLengths, entry_dtype
from benchmarks.bert.lengths import reference_masked_counts, wikipedia_histogram
from benchmarks.bert.manifest import Manifest, ShardEntry, has_manifest, mark_unfinished, write_manifest
from benchmarks.bert.preparation.settings import GenerationSettings
from benchmarks.bert.preparation.tokenization import Vocabulary
from benchmarks.bert.shard import SUFFIX, WHOLE
from benchmarks.bert.sizes import SEQUENCE_LENGTH
from benchmarks.bert.store import SampleStore
from podium.core.errors import PodiumError, WorkError
from podium.core.files import PARTIAL_SUFFIX, atomic_file, make_folder, write_error, write_if_changed

WIKIPEDIA_SAMPLES = 156_725_653  # of MLPerf's text with a duplication factor of 10
MAX_SAMPLES = 4 * WIKIPEDIA_SAMPLES
SHARDS = 500  # the number of files of MLPerf's text
CHUNK_SAMPLES = 1 << 22  # lengths drawn at a time
VERSION = 2  # of the drawing of lengths; part of the folder's name
SPECIAL_TOKENS_PER_SAMPLE = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def rehearsal_vocabulary(folder: Path, vocabulary_size: int) -> Path:
    """Write a vocabulary of this size with meaningless words, unless it is there already. Returns its path."""
    path = make_folder(folder) / f"vocabulary-{vocabulary_size}.txt"
    others = (f"w{number}" for number in range(len(SPECIAL_TOKENS_PER_SAMPLE), vocabulary_size))
    write_if_changed(path, "\n".join([*SPECIAL_TOKENS_PER_SAMPLE, *others]) + "\n")
    return path


def rehearsal_store(
    folder: Path,
    samples: int,
    vocabulary: Path,
    longest: int = SEQUENCE_LENGTH,
    on_write: Callable[[], None] = lambda: None,
) -> Path:
    """A synthetic store of `samples` samples of Wikipedia's lengths, truncated to `longest` tokens; its folder.

    A missing or damaged store is written into `folder` after a call of `on_write`, in a few seconds for all of
    Wikipedia. The caller must hold the folder's lock. Raises WorkError where the store cannot be written.
    """
    store = folder / f"wikipedia-{samples}-{longest}-{vocabulary.stem}-v{VERSION}"
    vocabulary_sha256 = Vocabulary.read(vocabulary).sha256
    if _is_intact(store, samples, longest, vocabulary_sha256):
        return store
    on_write()
    _remove(store)
    make_folder(store)
    try:
        _require_space(store, samples, longest)
        _write(store, samples, longest, vocabulary_sha256)
    except BaseException as error:
        shutil.rmtree(store, ignore_errors=True)
        if isinstance(error, OSError):
            raise write_error(store, error) from error
        raise
    return store


def remove_unfinished_stores(folder: Path) -> None:
    """Remove partial stores and files of rehearsals that were killed. The caller must hold the folder's lock."""
    for store in folder.glob("wikipedia-*-*-vocabulary-*-v*"):
        if not has_manifest(store):
            shutil.rmtree(store, ignore_errors=True)
    for partial in folder.glob(f".vocabulary-*{PARTIAL_SUFFIX}"):
        with suppress(OSError):
            partial.unlink()


def _is_intact(store: Path, samples: int, longest: int, vocabulary_sha256: str) -> bool:
    try:
        found = SampleStore(store).manifest
    except (PodiumError, OSError):
        return False
    return (found.samples, found.max_sequence_length, found.vocabulary_sha256) == (samples, longest, vocabulary_sha256)


def _remove(store: Path) -> None:
    if not os.path.lexists(store):
        return
    try:
        if not store.is_dir():  # shutil.rmtree would block on a FIFO without a writer
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        shutil.rmtree(store)
    except OSError as error:
        raise WorkError(
            f"{store}: is damaged, and cannot be removed to be written anew ({error.strerror or error}); remove it"
        ) from error


def _require_space(store: Path, samples: int, longest: int) -> None:
    needed, free = samples * entry_dtype(longest, _predictions(longest)).itemsize, shutil.disk_usage(store).free
    if needed > free:
        raise WorkError(
            f"{store}: the disk is full: a length index of {samples:,} samples needs {needed / 1e6:,.1f} MB, and it "
            f"has {free / 1e6:,.1f} MB free; make room, or give fewer --samples"
        )


def _write(store: Path, samples: int, longest: int, vocabulary_sha256: str) -> None:
    mark_unfinished(store)
    index = _write_index(store / FILE, samples, longest)
    digits, entries = len(str(SHARDS)), []
    bounds = np.unique(np.arange(SHARDS + 1) * samples // SHARDS).tolist()
    for number, (first, end) in enumerate(pairwise(bounds)):
        name = f"part-{number:0{digits}}{SUFFIX}"
        (store / name).touch()
        entries.append(ShardEntry(name, end - first, *index.sum_range(first, end), f"{number:064x}"))
    lengths = index.max_sequence_length, tuple(entries), index.max_predictions
    write_manifest(store, Manifest(vocabulary_sha256, *lengths, WHOLE, index.sha256))


def _predictions(longest: int) -> int:
    return GenerationSettings.from_lengths(longest, None).max_predictions


def _write_index(path: Path, samples: int, longest: int) -> StoredLengths:
    predictions = _predictions(longest)
    lengths = np.clip(np.arange(SEQUENCE_LENGTH + 1), 1, longest)
    masked = np.minimum(reference_masked_counts(lengths), predictions)
    entries = StoredLengths.of(
        lengths, masked, longest, predictions
    ).entries  # [longest published length + 1] of each length
    published = wikipedia_histogram().cumsum()
    # The entry of every published sample, for a lookup instead of a search. Making the table takes longer than a few
    # million searches.
    table = np.repeat(entries, np.diff(published, prepend=0)) if samples > CHUNK_SAMPLES else None
    generator = np.random.default_rng(samples)
    with atomic_file(path) as temporary, temporary.open("xb") as file:
        for first in range(0, samples, CHUNK_SAMPLES):
            count = min(CHUNK_SAMPLES, samples - first)
            drawn = generator.integers(0, published[-1], count, dtype=np.uint32)  # indices of published samples
            found = entries[np.searchsorted(published, drawn, side="right")] if table is None else table[drawn]
            file.write(found.data)
    mapped = np.memmap(path, dtype=entries.dtype, mode="r").view(np.ndarray)
    return StoredLengths(mapped, longest, predictions)
