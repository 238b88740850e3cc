"""Stores of samples that do not exist: as many as all of Wikipedia has, of the lengths that were published.

What a rank does before and beside training depends on the lengths of all samples, and on nothing else of them. Such a
store has the manifest and the length index of a real one, which are all that is read before samples are; its shards are
empty files. It has the same content on every machine, and is written once.
"""

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np

from benchmarks.bert.length_index import FILE, StoredLengths
from benchmarks.bert.lengths import usual_masked_counts, wikipedia_histogram
from benchmarks.bert.manifest import MANIFEST, Manifest, ShardEntry, mark_unfinished, write_manifest
from benchmarks.bert.preparation.settings import GenerationSettings
from benchmarks.bert.preparation.tokenization import Vocabulary
from benchmarks.bert.shard import SUFFIX, WHOLE
from benchmarks.bert.sizes import SEQUENCE_LENGTH
from podium.core.files import make_folder, whole_file, write_whole

WIKIPEDIA_SAMPLES = 156_725_653  # of MLPerf's text, each document gone through ten times
SHARDS = 500  # as many files as MLPerf's text has
DRAWN_TOGETHER = 1 << 22
VERSION = 2  # of how samples are drawn
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def rehearsal_vocabulary(folder: Path, words: int) -> Path:
    """A vocabulary of so many words that mean nothing, written if it is not there."""
    path = folder / f"vocabulary-{words}.txt"
    if not path.is_file():
        make_folder(folder)
        others = (f"w{number}" for number in range(len(SPECIAL), words))
        write_whole(path, "\n".join([*SPECIAL, *others]) + "\n")
    return path


def rehearsal_store(
    folder: Path,
    samples: int,
    vocabulary: Path,
    longest: int = SEQUENCE_LENGTH,
    on_write: Callable[[], None] = lambda: None,
) -> Path:
    """A store of so many samples of Wikipedia's lengths, longer ones cut to `longest` tokens: its folder, in `folder`.

    It is written if it is not there, after a call of `on_write`: a few seconds for all of Wikipedia. Raises WorkError
    where it cannot be written.
    """
    store = folder / f"wikipedia-{samples}-{longest}-{vocabulary.stem}-v{VERSION}"
    if (store / MANIFEST).is_file():
        return store
    on_write()
    make_folder(store)
    mark_unfinished(store)
    index = _write_index(store / FILE, samples, longest)
    digits, entries = len(str(SHARDS)), []
    bounds = np.unique(np.arange(SHARDS + 1) * samples // SHARDS).tolist()
    for number, (first, end) in enumerate(pairwise(bounds)):
        name = f"part-{number:0{digits}}{SUFFIX}"
        (store / name).touch()
        entries.append(ShardEntry(name, end - first, *index.sums(first, end), f"{number:064x}"))
    words = Vocabulary.read(vocabulary).sha256
    lengths = index.max_sequence_length, tuple(entries), index.max_predictions
    write_manifest(store, Manifest(words, *lengths, WHOLE, index.sha256))
    return store


def _write_index(path: Path, samples: int, longest: int) -> StoredLengths:
    predictions = GenerationSettings.of_lengths(longest, None).max_predictions
    lengths = np.clip(np.arange(SEQUENCE_LENGTH + 1), 1, longest)
    masked = np.minimum(usual_masked_counts(lengths), predictions)
    entries = StoredLengths.of(lengths, masked, longest, predictions).entries  # of each length
    published = wikipedia_histogram().cumsum()
    # of every published sample: it takes longer to make than a few million searches
    table = np.repeat(entries, np.diff(published, prepend=0)) if samples > DRAWN_TOGETHER else None
    drawn = np.random.default_rng(samples)
    with whole_file(path) as temporary, temporary.open("xb") as file:
        for first in range(0, samples, DRAWN_TOGETHER):
            count = min(DRAWN_TOGETHER, samples - first)
            places = drawn.integers(0, published[-1], count, dtype=np.uint32)  # among the published samples
            found = entries[np.searchsorted(published, places, side="right")] if table is None else table[places]
            file.write(found.data)
    mapped = np.memmap(path, dtype=entries.dtype, mode="r").view(np.ndarray)
    return StoredLengths(mapped, longest, predictions)
