"""A uniformly random subset of the samples of all texts together, without keeping the whole of them anywhere.

Every sample has a random key, and the subset is those with the smallest keys of all. The texts' samples are made once,
and of each text those are kept aside whose key is small enough to be likely among them: a little more than are wanted.
"""

import hashlib
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.bert.preparation.gathering import gather
from benchmarks.bert.preparation.prepare import Prepared, check_inputs, is_whole, prepare_shards
from benchmarks.bert.preparation.selection import SmallestKeys
from benchmarks.bert.preparation.settings import GenerationSettings
from benchmarks.bert.store import RANDOM, SUFFIX, Origin, Shard, write_shard
from benchmarks.errors import UsageError
from benchmarks.files import make_folder, remove_unfinished, sha256_of
from benchmarks.locks import folder_lock

SAMPLES_A_BYTE = 0.0074
"""Of Wikipedia's text with MLPerf's vocabulary and settings; a wrong guess costs time only."""
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
    on_finished: Callable[[Prepared], None] | None = None,
) -> list[Path]:
    """Make shards of `samples` samples, drawn from all samples of the texts; where none is drawn there is no shard.

    The shards are marked as a random subset. They are a function of the texts, their names, the vocabulary, the
    settings, `samples` and `seed`. What is finished is kept and taken up again as `prepare` does, and the same errors
    are raised; UsageError too if the texts have fewer samples.
    """
    settings = settings or GenerationSettings()
    words = check_inputs(texts, vocabulary, processes)
    if samples < 1:
        raise UsageError(f"a subset of {samples} samples was asked for; give 1 or more")
    origins = {text: Origin.of_text(text.name, sha256_of(text), words.sha256, settings) for text in texts}
    digest = _digest(samples, seed, origins.values())
    marked = {text: replace(origin, selection=RANDOM, selection_sha256=digest) for text, origin in origins.items()}
    with folder_lock(make_folder(out), "podium data prepare"):
        finished = _finished(marked, out)
        if sum(len(Shard(shard)) for shard in finished.values()) == samples:
            return list(finished.values())
        aside = make_folder(out / CANDIDATES)
        size = sum(text.stat().st_size for text in texts)
        selection = _likely(samples, size * SAMPLES_A_BYTE, seed)
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
        shards = _choose(candidates, samples, selection, origins, out)
        _remove(candidates, aside)
    return shards


def _likely(samples: int, whole: float, seed: int) -> SmallestKeys:
    """The samples with a key so small that there are very probably more than `samples` of them among `whole`."""
    share = (MARGIN * samples + 100) / max(1, whole)
    return SmallestKeys(seed, min(LARGEST_KEY, int(share * 2**64)))


def _digest(samples: int, seed: int, origins: Iterable[Origin]) -> str:
    return hashlib.sha256(repr((samples, seed, *sorted(map(repr, origins)))).encode()).hexdigest()


def _finished(marked: dict[Path, Origin], out: Path) -> dict[Path, Path]:
    """The shards of this very subset that are there and whole."""
    shards = {text: out / f"{text.name}{SUFFIX}" for text in marked}
    return {text: shard for text, shard in shards.items() if is_whole(shard, marked[text])}


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
        remove_unfinished(path)
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
        aside.rmdir()
