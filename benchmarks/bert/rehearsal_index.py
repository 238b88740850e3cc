"""Length indices of samples that do not exist: as many as all of Wikipedia has, of the lengths that were published.

What a rank does before and beside training depends on the lengths of all samples, and on nothing else of them. An index
is written once, as that of a store is, and has the same entries on every machine.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.bert.length_index import StoredLengths, entry_dtype
from benchmarks.bert.lengths import usual_masked_counts, wikipedia_histogram
from benchmarks.bert.preparation.settings import GenerationSettings
from benchmarks.bert.sizes import SEQUENCE_LENGTH
from podium.core.errors import WorkError
from podium.core.files import make_folder, sha256_of, whole_file, write_whole

WIKIPEDIA_SAMPLES = 156_725_653  # of MLPerf's Wikipedia, each text gone through ten times
DRAWN_TOGETHER = 1 << 22
VERSION = 1  # of how samples are drawn


@dataclass(frozen=True)
class IndexFile:
    """A length index in a file, and what identifies it."""

    path: Path
    samples: int
    sha256: str
    max_sequence_length: int
    max_predictions: int

    def mapped(self) -> StoredLengths:
        """Map it and compare it with its hash, as a rank does with that of a store."""
        return StoredLengths.mapped(
            self.path, self.samples, self.sha256, self.max_sequence_length, self.max_predictions
        )

    @property
    def nbytes(self) -> int:
        return self.samples * entry_dtype(self.max_sequence_length, self.max_predictions).itemsize


def has_index(folder: Path, samples: int, longest: int = SEQUENCE_LENGTH) -> bool:
    """Whether `rehearsal_index` would find its file written."""
    return _record(folder, samples, longest).is_file()


def rehearsal_index(folder: Path, samples: int, longest: int = SEQUENCE_LENGTH) -> IndexFile:
    """The index of so many samples of Wikipedia's lengths, longer ones cut to `longest` tokens: written if it is not
    there, which takes a few seconds for all of Wikipedia. Raises WorkError where it cannot be written."""
    record = _record(folder, samples, longest)
    predictions = GenerationSettings.of_lengths(longest, None).max_predictions
    if record.is_file():
        return _read(record)
    make_folder(folder)
    path = record.with_suffix(".bin")
    lengths = np.minimum(np.arange(SEQUENCE_LENGTH + 1), longest)
    masked = np.minimum(usual_masked_counts(lengths), predictions)
    entries = StoredLengths.of(np.maximum(lengths, 1), masked, longest, predictions).entries  # of each length
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
    index = IndexFile(path, samples, sha256_of(path), longest, predictions)
    write_whole(record, json.dumps(asdict(index) | {"path": path.name}, indent=2) + "\n")
    return index


def _record(folder: Path, samples: int, longest: int) -> Path:
    return folder / f"wikipedia-{samples}-{longest}-v{VERSION}.json"


def _read(record: Path) -> IndexFile:
    try:
        document: dict[str, Any] = json.loads(record.read_text(encoding="utf-8"))
        return IndexFile(**document | {"path": record.with_name(str(document["path"]))})
    except (OSError, ValueError, KeyError, TypeError):
        raise WorkError(f"{record}: is not what a rehearsal has written; remove it, and it is written again") from None
