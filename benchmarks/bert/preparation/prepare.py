"""Prepare a sample store: one shard for each text file, in several processes, to be broken off and taken up again."""

import hashlib
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from benchmarks.bert.parallel import results_in_processes
from benchmarks.bert.preparation.generation import generate_samples
from benchmarks.bert.preparation.reading import Reader
from benchmarks.bert.preparation.selection import WHOLE_TEXT, Selection
from benchmarks.bert.preparation.settings import GenerationSettings
from benchmarks.bert.preparation.tokenization import Vocabulary
from benchmarks.bert.store import SUFFIX, Origin, Shard, write_shard
from benchmarks.errors import PodiumError, UsageError, WorkError
from benchmarks.files import make_folder, remove_unfinished, require_readable
from benchmarks.locks import folder_lock


@dataclass(frozen=True)
class Prepared:
    """A finished shard."""

    text: Path
    shard: Path
    kept: bool
    """It was there already, made from the same text in the same way, and is whole."""
    note: str | None = None
    """What may be wrong with the text, though it could be used."""


def prepare(
    texts: Sequence[Path],
    vocabulary: Path,
    out: Path,
    settings: GenerationSettings | None = None,
    processes: int = 1,
    selection: Selection = WHOLE_TEXT,
    on_finished: Callable[[Prepared], None] | None = None,
) -> list[Path]:
    """Make the shard out/NAME.h5 of each text file NAME and return the shards in the order of the texts.

    A whole shard that was made from the same text, vocabulary, settings and selection is kept, any other of that name
    is replaced. At most `processes` worker processes share the texts; the shards do not depend on their number.
    `on_finished` is told of each finished shard, in the order of finishing.

    Raises UsageError, before anything is written, for inputs that cannot serve, and WorkError for a text that is
    not UTF-8 or has no document, and for a disk that is full. After a failure the finished shards are whole and
    nothing half-written remains.
    """
    words = check_inputs(texts, vocabulary, processes)
    with folder_lock(make_folder(out), "podium data prepare"):
        return prepare_shards(
            texts, vocabulary, words.sha256, out, settings or GenerationSettings(), processes, selection, on_finished
        )


def check_inputs(texts: Sequence[Path], vocabulary: Path, processes: int) -> Vocabulary:
    """Raise UsageError unless the texts can be opened and have names of their own, and the vocabulary can be used."""
    _check_texts(texts)
    if processes < 1:
        raise UsageError(f"{processes} processes were asked for; give 1 or more")
    return Vocabulary.read(vocabulary)


def prepare_shards(
    texts: Sequence[Path],
    vocabulary: Path,
    vocabulary_sha256: str,
    out: Path,
    settings: GenerationSettings,
    processes: int,
    selection: Selection,
    on_finished: Callable[[Prepared], None] | None,
) -> list[Path]:
    """`prepare` without its checks, in a folder that is there and held."""
    jobs = {
        out / f"{text.name}{SUFFIX}": (
            text,
            vocabulary,
            vocabulary_sha256,
            out / f"{text.name}{SUFFIX}",
            settings,
            selection,
        )
        for text in texts
    }
    for shard in jobs:
        remove_unfinished(shard)
    with closing(_results(jobs, processes)) as results:
        for _, prepared in results:
            if on_finished is not None:
                on_finished(prepared)
    return list(jobs)


def _results(jobs: dict[Path, tuple[Any, ...]], processes: int) -> Generator[tuple[Path, Prepared], None, None]:
    """Shards as they are finished; made in this process where there is nothing to share."""
    if min(processes, len(jobs)) > 1:
        yield from results_in_processes(prepare_text, jobs, processes)
    else:
        for shard, arguments in jobs.items():
            yield shard, prepare_text(*arguments)


def prepare_text(
    text: Path,
    vocabulary: Path,
    vocabulary_sha256: str,
    shard: Path,
    settings: GenerationSettings,
    selection: Selection,
) -> Prepared:
    """Make the shard of one text file, unless it is there; WorkError if the text or the disk does not allow it."""
    content = read_text(text)
    note = None if content.endswith(b"\n") else "does not end with a line feed; was it cut off?"
    digest = hashlib.sha256(content).hexdigest()
    origin = selection.mark(Origin.of_text(text.name, digest, vocabulary_sha256, settings))
    if is_whole(shard, origin):
        return Prepared(text, shard, kept=True, note=note)
    words, reader = _reader(vocabulary, vocabulary_sha256)
    documents = reader.read(content, str(text))
    del content
    if not len(documents):
        raise WorkError(f"{text}: there is no document in it; give a text with one sentence a line")
    samples = generate_samples(documents, words, settings)
    chosen = selection.of(samples, text)
    write_shard(shard, chosen, replace(origin, selected_from=0 if chosen is samples else len(samples)))
    return Prepared(text, shard, kept=False, note=note)


def read_text(text: Path) -> bytes:
    """The bytes of a text file; WorkError if it cannot be read."""
    try:
        return text.read_bytes()
    except OSError as error:
        raise WorkError(f"{text}: the text cannot be read ({error.strerror})") from error


def is_whole(path: Path, origin: Origin) -> bool:
    """Whether there is a shard of this origin whose content equals its hash; `selected_from` may differ."""
    if not path.is_file():
        return False
    try:
        shard = Shard(path)
        if replace(shard.origin, selected_from=origin.selected_from) != origin:
            return False
        shard.verify()
    except PodiumError:
        return False
    return True


@lru_cache(maxsize=1)
def _reader(vocabulary: Path, sha256: str) -> tuple[Vocabulary, Reader]:
    """One a process, since a worker reads many texts."""
    words = Vocabulary.read(vocabulary)
    if words.sha256 != sha256:
        raise WorkError(f"{vocabulary}: the vocabulary was changed while it was used; begin again")
    return words, Reader(words)


def _check_texts(texts: Sequence[Path]) -> None:
    """Raise UsageError unless there are texts, all can be opened, and each has a name of its own."""
    if not texts:
        raise UsageError("no text files were given; give the parts of the text, one sentence a line")
    require_readable(texts, "text file")
    name, occurrences = Counter(text.name for text in texts).most_common(1)[0]
    if occurrences > 1:
        raise UsageError(
            f"{occurrences} text files have the name {name}; a shard is named for its text, so rename them"
        )
