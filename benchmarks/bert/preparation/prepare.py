"""Preparation of a sample store: one shard for each text file, in several processes, resumable when interrupted.

A selection decides which samples of a text are kept: all of them; the evaluation set, picked from those of eval.txt;
or a uniformly random subset of the samples of all texts together, which never needs all samples at once. For the
subset every sample has a random key, and the samples with the smallest keys of all are kept. Each text's samples are
generated once, and those whose key is small enough to be likely in the subset are set aside: slightly more than are
needed.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from benchmarks.bert.manifest import MARKER, mark_unfinished
from benchmarks.bert.preparation.documents import Reader
from benchmarks.bert.preparation.generation import generate_samples
from benchmarks.bert.preparation.settings import GenerationSettings
from benchmarks.bert.preparation.tokenization import Vocabulary
from benchmarks.bert.samples import Samples, gather
from benchmarks.bert.shard import (
    EVALUATION,
    OLDER_VERSION,
    RANDOM,
    SUFFIX,
    WHOLE,
    Origin,
    Shard,
    open_shard,
    write_shard,
)
from benchmarks.bert.sizes import SEQUENCE_LENGTH
from benchmarks.bert.store import require_replaceable, update_manifest
from benchmarks.bert.upgrade import convert_shard
from podium.core.errors import PodiumError, UsageError, WorkError
from podium.core.files import make_folder, open_regular, remove_partial_files, require_readable, sha256_of
from podium.core.locks import folder_lock
from podium.core.processes import run_jobs


def evaluation_pick(number_of_samples: int, count: int) -> NDArray[np.int64]:
    """Indices [count] of the samples to evaluate: int(i · ratio) for i in 0..count−1.

    The ratio number_of_samples / count is a double and rounds as one, so that an index may be one less than the
    fraction's floor. The indices are spread evenly and ascend; where count exceeds number_of_samples some occur more
    than once.
    Source: MLPerf Training reference, pick_eval_samples, the pick of 10,000 evaluation samples.
    """
    if number_of_samples < 1 or count < 1:
        raise ValueError(f"cannot pick {count} of {number_of_samples} samples; both must be 1 or more")
    return (np.arange(count) * (number_of_samples / count)).astype(np.int64)


class Selection:
    """All samples of a text."""

    kind: ClassVar[str] = WHOLE

    def of(self, samples: Samples, text: Path) -> Samples:
        """The samples to keep, of all samples of a text; UsageError if there are too few."""
        return samples

    def mark(self, origin: Origin) -> Origin:
        """The origin of the samples kept, but for the number that they were selected from."""
        return origin if self.kind == WHOLE else replace(origin, selection=self.kind, selection_sha256=_digest(self))


WHOLE_TEXT = Selection()


@dataclass(frozen=True)
class EvaluationPick(Selection):
    """`count` samples, as the reference picks them from eval.txt's."""

    kind = EVALUATION
    count: int

    def of(self, samples: Samples, text: Path) -> Samples:
        if len(samples) < self.count:
            raise UsageError(f"{text}: it has {len(samples)} samples, and {self.count} to evaluate were asked for")
        return gather(samples, evaluation_pick(len(samples), self.count))


@dataclass(frozen=True)
class SmallestKeys(Selection):
    """The samples whose random key is at most `largest`, and the one with the smallest key in any case.

    A key is a function of the seed, the text's name and the sample's index in the text.
    """

    kind = RANDOM
    seed: int
    largest: int

    def keys(self, text: Path, count: int) -> NDArray[np.uint64]:
        """Keys [count] of all samples of a text: the raw stream of PCG64, which numpy does not change."""
        name = np.frombuffer(hashlib.sha256(text.name.encode()).digest(), "<u4")
        keys: NDArray[np.uint64] = np.random.PCG64([self.seed, *name.tolist()]).random_raw(count)
        return keys

    def indices(self, text: Path, count: int) -> NDArray[np.int64]:
        """Which of a text's samples these are, ascending."""
        keys = self.keys(text, count)
        return np.flatnonzero(keys <= max(np.uint64(self.largest), keys.min()))

    def of(self, samples: Samples, text: Path) -> Samples:
        return gather(samples, self.indices(text, len(samples)))


@dataclass(frozen=True)
class Prepared:
    """A finished shard."""

    text: Path
    shard: Path
    kept: bool  # it was there already, made from the same text in the same way, and is whole
    note: str | None = None  # what may be wrong with the text, though it could be used


def prepare(
    texts: Sequence[Path],
    vocabulary: Path,
    out: Path,
    settings: GenerationSettings | None = None,
    processes: int = 1,
    selection: Selection = WHOLE_TEXT,
    on_finished: Callable[[Prepared], None] = lambda _: None,
) -> list[Path]:
    """Make the shard out/NAME.h5 of each text file NAME and return the shards in the order of the texts.

    A whole shard that was made from the same text, vocabulary, settings and selection is kept, or converted where it is
    of an older version. Any other of that name is replaced; a folder with shards of another vocabulary or length is
    refused. At most `processes` worker processes share the texts; the shards do not depend on their number.
    `on_finished` is called with each finished shard, in the order of finishing. At the end the folder's manifest is
    written, of all shards that are in it.

    Raises UsageError, before anything is written, for inputs that cannot serve, and WorkError for a text that is
    not UTF-8 or has no document, for a disk that is full, and for a shard in the folder that cannot be in one store
    with these. After a failure the finished shards are whole and nothing half-written remains.
    """
    words, settings = check_inputs(texts, vocabulary), settings or GenerationSettings()
    with folder_lock(make_folder(out), "podium data prepare"):
        require_replaceable(out.glob(f"*{SUFFIX}"), selection.mark(Origin.of_text("", "", words.sha256, settings)))
        shards = prepare_shards(texts, vocabulary, words.sha256, out, settings, processes, selection, on_finished)
        update_manifest(out)
    return shards


def check_inputs(texts: Sequence[Path], vocabulary: Path) -> Vocabulary:
    """Raise UsageError unless the texts can be opened and have names of their own, and the vocabulary can be used."""
    if not texts:
        raise UsageError("no text files were given; give the parts of the text, one sentence a line")
    require_readable(texts, "text file")
    name, occurrences = Counter(text.name for text in texts).most_common(1)[0]
    if occurrences > 1:
        raise UsageError(
            f"{occurrences} text files have the name {name}; a shard is named for its text, so rename them"
        )
    return Vocabulary.read(vocabulary)


def prepare_shards(
    texts: Sequence[Path],
    vocabulary: Path,
    vocabulary_sha256: str,
    out: Path,
    settings: GenerationSettings,
    processes: int,
    selection: Selection,
    on_finished: Callable[[Prepared], None],
) -> list[Path]:
    """`prepare` without its checks, in a folder that is there and held."""
    jobs = {}
    for text in texts:
        shard = out / f"{text.name}{SUFFIX}"
        jobs[shard] = (text, vocabulary, vocabulary_sha256, shard, settings, selection)
        remove_partial_files(shard)
    with closing(run_jobs(prepare_text, jobs, processes)) as results:
        for _, prepared in results:
            on_finished(prepared)
    return list(jobs)


def prepare_text(
    text: Path,
    vocabulary: Path,
    vocabulary_sha256: str,
    shard: Path,
    settings: GenerationSettings,
    selection: Selection,
) -> Prepared:
    """Make the shard of one text file, unless it is there; WorkError if the text or the disk does not allow it."""
    try:
        with open_regular(text) as file:
            content = file.read()
    except OSError as error:
        raise WorkError(f"{text}: the text cannot be read ({error.strerror})") from error
    except MemoryError:
        raise WorkError(f"{text}: is greater than the memory that is there; cut it into several files") from None
    note = None if content.endswith(b"\n") else "does not end with a line feed; was it cut off?"
    digest = hashlib.sha256(content).hexdigest()
    origin = selection.mark(Origin.of_text(text.name, digest, vocabulary_sha256, settings))
    if keep_shard(shard, origin):
        return Prepared(text, shard, kept=True, note=note)
    words, reader = _reader(vocabulary, vocabulary_sha256)
    documents = reader.read(content, str(text))
    del content
    if not len(documents):
        raise WorkError(f"{text}: there is no document in it; give a text with one sentence a line")
    samples = generate_samples(documents, words, settings)
    chosen = selection.of(samples, text)
    mark_unfinished(shard.parent)
    write_shard(shard, chosen, replace(origin, selected_from=0 if chosen is samples else len(samples)))
    return Prepared(text, shard, kept=False, note=note)


def keep_shard(path: Path, origin: Origin) -> bool:
    """Keep a shard of this origin whose content equals its hash, converted where it is of an older version.

    Returns False where there is no such shard, so that one is to be made. `selected_from` may differ.
    """
    if not path.is_file():
        return False
    try:
        with open_shard(path, None) as (_, attributes):
            found = Origin.of_attributes(attributes)
        if replace(found, selected_from=origin.selected_from) != origin:
            return False
        if attributes["format_version"] == OLDER_VERSION:
            convert_shard(path)
        Shard(path).verify()
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


SAMPLES_A_BYTE = 0.0074  # of Wikipedia's text with MLPerf's vocabulary and settings; a wrong guess costs time only
MARGIN = 1.5
LARGEST_KEY = 2**64 - 1
CANDIDATES = ".candidates"


def prepare_subset(
    texts: Sequence[Path],
    vocabulary: Path,
    out: Path,
    samples: int,
    settings: GenerationSettings | None = None,
    processes: int = 1,
    seed: int = 0,
    on_finished: Callable[[Prepared], None] = lambda _: None,
) -> list[Path]:
    """Make shards of `samples` samples, drawn from all samples of the texts; where none is drawn there is no shard.

    The shards are marked as a random subset. They are a function of the texts, their names, the vocabulary, the
    settings, `samples` and `seed`. What is finished is kept and taken up again as `prepare` does, and the same errors
    are raised; UsageError too if the texts have fewer samples.
    """
    settings = settings or GenerationSettings()
    words = check_inputs(texts, vocabulary)
    if samples < 1:
        raise UsageError(f"a subset of {samples} samples was asked for; give 1 or more")
    origins = {text: Origin.of_text(text.name, sha256_of(text), words.sha256, settings) for text in texts}
    digest = _digest((samples, seed, *sorted(map(repr, origins.values()))))
    marked = {text: replace(origin, selection=RANDOM, selection_sha256=digest) for text, origin in origins.items()}
    with folder_lock(make_folder(out), "podium data prepare"):
        shards = {out / f"{text.name}{SUFFIX}": origin for text, origin in marked.items()}
        require_replaceable(out.glob(f"*{SUFFIX}"), next(iter(marked.values())))
        finished = [shard for shard, origin in shards.items() if keep_shard(shard, origin)]
        if sum(len(Shard(shard)) for shard in finished) == samples:
            update_manifest(out)
            return finished
        aside = make_folder(out / CANDIDATES)
        size = sum(text.stat().st_size for text in texts)
        shorter = SEQUENCE_LENGTH / settings.max_sequence_length  # the same text makes more samples of fewer tokens
        selection = _likely(samples, size * SAMPLES_A_BYTE * shorter, seed)
        while True:
            prepare_shards(texts, vocabulary, words.sha256, aside, settings, processes, selection, on_finished)
            candidates = {text: Shard(aside / f"{text.name}{SUFFIX}") for text in texts}
            whole = sum(shard.attributes["selected_from"] for shard in candidates.values())
            if whole < samples:
                _remove(candidates, aside)
                raise UsageError(f"a subset of {samples} samples was asked for; the texts have {whole} in all")
            if sum(map(len, candidates.values())) >= samples or selection.largest == LARGEST_KEY:
                break
            selection = _likely(samples, whole, seed)
        origins = {text: replace(origin, selected_from=whole) for text, origin in marked.items()}
        mark_unfinished(out)
        chosen = _choose(candidates, samples, selection, origins, out)
        _remove(candidates, aside)
        update_manifest(out)
    return chosen


def _likely(samples: int, whole: float, seed: int) -> SmallestKeys:
    """The samples with a key so small that there are very probably more than `samples` of them among `whole`."""
    share = (MARGIN * samples + 100) / max(1, whole)
    return SmallestKeys(seed, min(LARGEST_KEY, int(share * 2**64)))


def _digest(selected: object) -> str:
    """SHA-256 of everything that decides what is selected, in hexadecimal."""
    return hashlib.sha256(repr(selected).encode()).hexdigest()


def _choose(
    candidates: dict[Path, Shard], samples: int, selection: SmallestKeys, origins: dict[Path, Origin], out: Path
) -> list[Path]:
    """Write the candidates with the smallest keys of all; a shard of another selection is replaced or removed."""
    keys: list[NDArray[np.uint64]] = []
    for text, shard in candidates.items():
        count = shard.attributes["selected_from"]
        keys.append(selection.keys(text, count)[selection.indices(text, count)])
    chosen = np.zeros(sum(map(len, keys)), np.bool_)
    chosen[np.argsort(np.concatenate(keys), kind="stable")[:samples]] = True
    written = []
    start = 0
    for text, shard in candidates.items():
        own = np.flatnonzero(chosen[start : start + len(shard)])
        start += len(shard)
        path = out / f"{text.name}{SUFFIX}"
        remove_partial_files(path)
        if not len(own):
            path.unlink(missing_ok=True)
            continue
        write_shard(path, gather(shard.samples, own), origins[text])
        written.append(path)
    return written


def _remove(candidates: dict[Path, Shard], aside: Path) -> None:
    for shard in candidates.values():
        shard.path.unlink(missing_ok=True)
    with suppress(OSError):
        (aside / MARKER).unlink(missing_ok=True)
        aside.rmdir()
