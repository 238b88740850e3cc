"""Preparation of a sample store: one shard per text file, in several processes, resumable after an interruption.

A selection decides which samples of a text are kept: all samples, the evaluation set picked from the samples of
eval.txt, or a uniformly random subset of the samples of all texts together. For the subset every sample has a random
key, and the samples with the smallest keys are kept, so that not all samples are in memory at once. Each text's samples
are generated once. The samples whose keys are small enough to be likely in the subset, slightly more than are needed,
are written to a temporary folder of candidates, from which the subset is chosen.
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


def pick_evaluation_indices(number_of_samples: int, count: int) -> NDArray[np.int64]:
    """Return the indices [count] of the samples to evaluate: int(i · ratio) for i in 0..count−1.

    The ratio number_of_samples / count is rounded to a double, so that an index may be one less than the exact floor.
    The indices are spread evenly and ascend; if count exceeds number_of_samples, some occur more than once. Raises
    ValueError if a number is below 1. Source: MLPerf Training reference, pick_eval_samples, with count 10,000.
    """
    if number_of_samples < 1 or count < 1:
        raise ValueError(f"cannot pick {count} of {number_of_samples} samples; both must be 1 or more")
    return (np.arange(count) * (number_of_samples / count)).astype(np.int64)


class Selection:
    """Selection of the samples to keep of each text; this base class keeps all samples."""

    kind: ClassVar[str] = WHOLE

    def select(self, samples: Samples, text: Path) -> Samples:
        """Return the samples to keep, given all samples of a text. Raises UsageError if there are too few."""
        return samples

    def mark_origin(self, origin: Origin) -> Origin:
        """Return the origin with this selection recorded, but not `selected_from`, which is known only later."""
        return (
            origin
            if self.kind == WHOLE
            else replace(origin, selection=self.kind, selection_sha256=_selection_digest(self))
        )


WHOLE_TEXT = Selection()


@dataclass(frozen=True)
class EvaluationPick(Selection):
    """Selection of `count` evaluation samples, as the reference picks them from the samples of eval.txt."""

    kind = EVALUATION
    count: int

    def select(self, samples: Samples, text: Path) -> Samples:
        if len(samples) < self.count:
            raise UsageError(
                f"{text}: has {len(samples)} samples, fewer than the {self.count} evaluation samples requested"
            )
        return gather(samples, pick_evaluation_indices(len(samples), self.count))


@dataclass(frozen=True)
class SmallestKeys(Selection):
    """Selection of the samples whose random key is at most `largest`, and always of the sample with the smallest key.

    A key is a function of the seed, the text's name and the sample's index in the text.
    """

    kind = RANDOM
    seed: int
    largest: int

    def keys(self, text: Path, count: int) -> NDArray[np.uint64]:
        """Return the keys [count] of all samples of a text."""
        # The raw stream of a bit generator is the same in all versions of NumPy; Generator's methods may change.
        name = np.frombuffer(hashlib.sha256(text.name.encode()).digest(), "<u4")
        keys: NDArray[np.uint64] = np.random.PCG64([self.seed, *name.tolist()]).random_raw(count)
        return keys

    def indices(self, text: Path, count: int) -> NDArray[np.int64]:
        """Return the indices of the selected samples of a text, ascending."""
        keys = self.keys(text, count)
        return np.flatnonzero(keys <= max(np.uint64(self.largest), keys.min()))

    def select(self, samples: Samples, text: Path) -> Samples:
        return gather(samples, self.indices(text, len(samples)))


@dataclass(frozen=True)
class PreparedShard:
    """Result of preparing one text: a finished shard."""

    text: Path
    shard: Path
    kept: bool  # whether a valid shard with the same origin existed and was kept
    note: str | None = None  # a warning about the text


def prepare(
    texts: Sequence[Path],
    vocabulary: Path,
    out: Path,
    settings: GenerationSettings | None = None,
    processes: int = 1,
    selection: Selection = WHOLE_TEXT,
    on_finished: Callable[[PreparedShard], None] = lambda _: None,
) -> list[Path]:
    """Write the shard out/NAME.h5 of each text file NAME and return the shards in the order of the texts.

    A valid shard from the same text, vocabulary, settings and selection is kept, and converted if its format is an
    older version. Any other shard of that name is replaced. A folder with shards of another vocabulary or length is an
    error. At most `processes` worker processes share the texts; the shards do not depend on their number.
    `on_finished` is called with each finished shard, in the order of finishing. The manifest of all shards in the
    folder is written at the end.

    Raises UsageError, before anything is written, for unusable inputs, and WorkError for a text that is not UTF-8 or
    has no document, for a full disk, and for a shard in the folder that cannot be in one store with the new ones. After
    a failure the finished shards are complete and no partial file remains.
    """
    vocab, settings = check_inputs(texts, vocabulary), settings or GenerationSettings()
    with folder_lock(make_folder(out), "podium data prepare"):
        require_replaceable(
            out.glob(f"*{SUFFIX}"), selection.mark_origin(Origin.of_text("", "", vocab.sha256, settings))
        )
        shards = prepare_shards(texts, vocabulary, vocab.sha256, out, settings, processes, selection, on_finished)
        update_manifest(out)
    return shards


def check_inputs(texts: Sequence[Path], vocabulary: Path) -> Vocabulary:
    """Return the vocabulary. Raises UsageError unless it is valid and the texts are readable and differ in name."""
    if not texts:
        raise UsageError("no text files were given; give the parts of the text, one sentence per line")
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
    on_finished: Callable[[PreparedShard], None],
) -> list[Path]:
    """Write the shards of texts that are checked already, into a folder that exists and is locked by the caller."""
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
) -> PreparedShard:
    """Write the shard of one text file, unless a valid one exists. Raises WorkError for a bad text or a full disk."""
    try:
        with open_regular(text) as file:
            content = file.read()
    except OSError as error:
        raise WorkError(f"{text}: the text cannot be read ({error.strerror})") from error
    except MemoryError:
        raise WorkError(f"{text}: does not fit into memory; split it into several files") from None
    note = None if content.endswith(b"\n") else "does not end with a line feed; was it cut off?"
    digest = hashlib.sha256(content).hexdigest()
    origin = selection.mark_origin(Origin.of_text(text.name, digest, vocabulary_sha256, settings))
    if keep_shard(shard, origin):
        return PreparedShard(text, shard, kept=True, note=note)
    vocab, reader = _load_reader(vocabulary, vocabulary_sha256)
    documents = reader.read(content, str(text))
    del content  # a text may take gigabytes, and sample generation needs the memory
    if not len(documents):
        raise WorkError(f"{text}: there is no document in it; give a text with one sentence per line")
    samples = generate_samples(documents, vocab, settings)
    chosen = selection.select(samples, text)
    mark_unfinished(shard.parent)
    write_shard(shard, chosen, replace(origin, selected_from=0 if chosen is samples else len(samples)))
    return PreparedShard(text, shard, kept=False, note=note)


def keep_shard(path: Path, origin: Origin) -> bool:
    """Return whether there is a valid shard of this origin; convert it if its format is an older version.

    Valid means that its content matches its hash. `selected_from` may differ.
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
def _load_reader(vocabulary: Path, sha256: str) -> tuple[Vocabulary, Reader]:
    """Return the vocabulary and its reader; cached, since a worker process reads many texts."""
    vocab = Vocabulary.read(vocabulary)
    if vocab.sha256 != sha256:
        raise WorkError(f"{vocabulary}: the vocabulary file changed during the preparation; start again")
    return vocab, Reader(vocab)


SAMPLES_PER_BYTE = 0.0074  # of Wikipedia's text with MLPerf's vocabulary and settings; a wrong estimate costs time only
CANDIDATES_PER_SAMPLE = 1.5  # of the subset, so that one pass over the texts nearly always suffices
MAX_KEY = 2**64 - 1
CANDIDATES_FOLDER = ".candidates"


def prepare_subset(
    texts: Sequence[Path],
    vocabulary: Path,
    out: Path,
    samples: int,
    settings: GenerationSettings | None = None,
    processes: int = 1,
    seed: int = 0,
    on_finished: Callable[[PreparedShard], None] = lambda _: None,
) -> list[Path]:
    """Write shards of `samples` samples, drawn at random from all samples of the texts, and return them.

    A text of which no sample is drawn has no shard. The shards are marked as a random subset. They are a function of
    the texts, their names, the vocabulary, the settings, `samples` and `seed`. An interrupted preparation is resumed as
    by `prepare`, and the same errors are raised; UsageError also if the texts have fewer samples.
    """
    settings = settings or GenerationSettings()
    vocab = check_inputs(texts, vocabulary)
    if samples < 1:
        raise UsageError(f"a subset of {samples} samples was requested; request 1 or more")
    origins = {text: Origin.of_text(text.name, sha256_of(text), vocab.sha256, settings) for text in texts}
    digest = _selection_digest((samples, seed, *sorted(map(repr, origins.values()))))
    marked = {text: replace(origin, selection=RANDOM, selection_sha256=digest) for text, origin in origins.items()}
    with folder_lock(make_folder(out), "podium data prepare"):
        shards = {out / f"{text.name}{SUFFIX}": origin for text, origin in marked.items()}
        require_replaceable(out.glob(f"*{SUFFIX}"), next(iter(marked.values())))
        finished = [shard for shard, origin in shards.items() if keep_shard(shard, origin)]
        if sum(len(Shard(shard)) for shard in finished) == samples:
            update_manifest(out)
            return finished
        candidates_folder = make_folder(out / CANDIDATES_FOLDER)
        size = sum(text.stat().st_size for text in texts)
        shorter = SEQUENCE_LENGTH / settings.max_sequence_length  # a text gives more samples if they are shorter
        selection = _candidate_selection(samples, size * SAMPLES_PER_BYTE * shorter, seed)
        while True:
            prepare_shards(
                texts, vocabulary, vocab.sha256, candidates_folder, settings, processes, selection, on_finished
            )
            candidates = {text: Shard(candidates_folder / f"{text.name}{SUFFIX}") for text in texts}
            total = sum(shard.attributes["selected_from"] for shard in candidates.values())
            if total < samples:
                _remove_candidates(candidates, candidates_folder)
                raise UsageError(f"a subset of {samples} samples was requested; the texts have {total} in all")
            if sum(map(len, candidates.values())) >= samples or selection.largest == MAX_KEY:
                break
            # The estimate was too low; now the number of samples is known, so the next pass has enough candidates.
            selection = _candidate_selection(samples, total, seed)
        origins = {text: replace(origin, selected_from=total) for text, origin in marked.items()}
        mark_unfinished(out)
        chosen = _write_subset(candidates, samples, selection, origins, out)
        _remove_candidates(candidates, candidates_folder)
        update_manifest(out)
    return chosen


def _candidate_selection(samples: int, total: float, seed: int) -> SmallestKeys:
    """Return a selection of candidates: of `total` samples, very probably more than `samples` have such a key."""
    # The margin is relative and absolute: 100 more than expected suffice where `samples` is small.
    share = (CANDIDATES_PER_SAMPLE * samples + 100) / max(1, total)
    return SmallestKeys(seed, min(MAX_KEY, int(share * 2**64)))


def _selection_digest(selected: object) -> str:
    """Return the SHA-256 of everything that determines a selection, in hexadecimal."""
    return hashlib.sha256(repr(selected).encode()).hexdigest()


def _write_subset(
    candidates: dict[Path, Shard], samples: int, selection: SmallestKeys, origins: dict[Path, Origin], out: Path
) -> list[Path]:
    """Write the candidates with the smallest keys as shards; replace or remove shards of another selection."""
    keys: list[NDArray[np.uint64]] = []
    for text, shard in candidates.items():
        count = shard.attributes["selected_from"]
        keys.append(selection.keys(text, count)[selection.indices(text, count)])
    chosen = np.zeros(sum(map(len, keys)), np.bool_)
    # A stable sort, so that the choice among equal keys is deterministic.
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


def _remove_candidates(candidates: dict[Path, Shard], candidates_folder: Path) -> None:
    for shard in candidates.values():
        shard.path.unlink(missing_ok=True)
    with suppress(OSError):
        (candidates_folder / MARKER).unlink(missing_ok=True)
        candidates_folder.rmdir()
