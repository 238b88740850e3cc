"""Opening the stores of a run on all ranks together: a run starts only if every rank has the same data.

The order of the samples is a function of the store, so a node that lacks a shard, or has another, would train on
other samples than the rest without any failure. Only metadata is read.
"""

import socket
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from benchmarks.bert.length_index import FILE
from benchmarks.bert.manifest import WHOLE_STORE, Manifest, NodePart
from benchmarks.bert.preparation.tokenization import Vocabulary
from benchmarks.bert.store import SampleStore
from implementations.pytorch.distributed.process_group import Processes
from podium.config.run_data import RunData, read_run_data
from podium.core.errors import WorkError, attempt
from podium.core.text import cut, listed

MAX_MESSAGE_CHARACTERS = 1000  # characters that a rank sends of what is wrong with its data
MAX_NAMED_GROUPS = 4  # groups of ranks that are named


def open_stores(
    folders: Mapping[str, Path],
    vocabulary: Path,
    processes: Processes,
    listed: Path | None = None,
    parts: Mapping[str, NodePart] | None = None,
) -> tuple[list[SampleStore], Vocabulary]:
    """Open the stores in these folders, given by their keys in the configuration, and the vocabulary they are made of.

    `parts` are those of the stores that this node reads, all of each unless they are given.

    All ranks call it with the same keys. The first rank reads the file in which `podium run` has `listed` what it
    verified, if it is there, and every rank compares what it opens with that. Unless all can open theirs and have the
    same manifests, the same WorkError is raised on all of them; where all fail in the same way, each raises its own
    error.
    """
    verified = processes.broadcast(_listed(listed, processes), 0)
    opened, failure = attempt(_open, folders, vocabulary, verified, parts or {})
    stores, words = opened or ([], None)
    digests = [store.manifest.digest for store in stores]
    indices = [store.index.sha256 for store in stores]
    message = "" if failure is None else cut(str(failure), MAX_MESSAGE_CHARACTERS)
    answer = {"host": socket.gethostname(), "digests": digests, "indices": indices, "failure": message}
    ranks = processes.gather(answer)
    hosts, messages = ([str(rank[key]) for rank in ranks] for key in ("host", "failure"))
    if failure is not None and len(set(messages)) == 1:
        raise failure
    if any(messages):
        raise WorkError(f"not every rank can open the data: {_group_by_ranks(sentences, hosts)}")
    for number, (key, store) in enumerate(zip(folders, stores, strict=True)):
        everyone = [rank["digests"][number] for rank in ranks]
        if len(set(everyone)) > 1:
            raise _difference_error(key, store, everyone, hosts, processes)
        indices = [rank["indices"][number] for rank in ranks]
        if (other := next((rank for rank, index in enumerate(indices) if index != indices[0]), None)) is not None:
            raise WorkError(
                f"{key}: {_group_by_ranks([f'{FILE} has the SHA-256 {index[:20]}…' for index in indices], hosts)}, and ranks "
                f"{other} and 0 would draw samples in another order; write it again with `podium data upgrade FOLDER`"
            )
    assert words is not None
    return stores, words


def _listed(path: Path | None, processes: Processes) -> dict[str, Any]:
    """On the first rank the document of what was verified, or why it cannot be read; nothing where there is no file."""
    if path is None or not processes.first:
        return {}
    data, failure = attempt(read_run_data, path)
    return {"failure": str(failure)} if failure else {"data": data.document()} if data else {}


def _open(
    folders: Mapping[str, Path], vocabulary: Path, verified: Mapping[str, Any], parts: Mapping[str, NodePart]
) -> tuple[list[SampleStore], Vocabulary]:
    if "failure" in verified:
        raise WorkError(verified["failure"])
    words = Vocabulary.read(vocabulary)
    stores = {key: SampleStore(folder, parts.get(key, WHOLE_STORE)) for key, folder in folders.items()}
    for store in stores.values():
        store.require(words, vocabulary)
    if "data" in verified:
        found = RunData({key: store.manifest for key, store in stores.items()})
        if difference := found.difference(RunData.of_document(verified["data"]), folders, "what was verified"):
            raise WorkError(f"{difference}; the data was changed after it was verified: put it back, and start again")
    return [*stores.values()], words


def _difference_error(
    key: str, store: SampleStore, digests: Sequence[str], hosts: Sequence[str], processes: Processes
) -> WorkError:
    """The same error on all ranks: which of them have other data than the majority, or than the first, and what."""
    usual, count = Counter(digests).most_common(1)[0]
    reference = digests.index(usual) if 2 * count > len(digests) else 0
    expected = Manifest.of_document(processes.broadcast(store.manifest.document(), reference))
    message = ""
    if store.manifest != expected:
        folder = store.paths[0].parent
        first, *rest = store.manifest.differences(expected)
        more = f" (and {len(rest):,} more)" if rest else ""
        message = cut(first.message(folder, f"rank {reference} on {hosts[reference]}") + more, MAX_MESSAGE_CHARACTERS)
    found = _group_by_ranks(processes.gather(message), hosts)
    return WorkError(
        f"{key} is not the same on all ranks: {found}; have the same shards on every node, and find a wrong one "
        "with `podium data verify`"
    )


def _group_by_ranks(messages: Sequence[str], hosts: Sequence[str]) -> str:
    """`ranks 2 to 3 on HOST: SENTENCE` for every group of ranks with a sentence; for the first few of them."""
    groups: dict[tuple[str, str], list[int]] = {}
    for rank, (host, message) in enumerate(zip(hosts, messages, strict=True)):
        if message:
            groups.setdefault((host, message), []).append(rank)
    named = [f"{_ranks(ranks)} on {host}: {sentence}" for (host, message), ranks in groups.items()]
    rest = len(named) - MAX_NAMED_GROUPS
    return "; ".join(named[:MAX_NAMED_GROUPS]) + (f"; and {rest:,} more nodes" if rest > 0 else "")


def _format_ranks(ranks: Sequence[int]) -> str:
    """Such as `rank 1` or `ranks 0, 2 to 5`."""
    runs: list[list[int]] = []
    for _, run in groupby(enumerate(ranks), key=lambda place: place[1] - place[0]):
        runs.append([rank for _, rank in run])
    named = [str(run[0]) if len(run) == 1 else f"{run[0]} to {run[-1]}" for run in runs]
    return f"rank{'s' if len(ranks) > 1 else ''} {listed(named)}"
