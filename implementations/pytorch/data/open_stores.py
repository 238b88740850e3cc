"""Opening of a run's stores on all ranks: a run starts only if every rank has the same data.

The order of samples is a function of the store. A node with a missing or different shard would therefore train on other
samples than the rest, without any error. Only metadata is read.
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
from podium.core.text import format_list, truncate

MAX_MESSAGE_CHARACTERS = 1000  # longest error message that a rank sends to the others
MAX_NAMED_GROUPS = 4  # groups of ranks that an error message names


def open_stores(
    folders: Mapping[str, Path],
    vocabulary: Path,
    processes: Processes,
    verified_file: Path | None = None,
    parts: Mapping[str, NodePart] | None = None,
) -> tuple[list[SampleStore], Vocabulary]:
    """Open the stores in these folders, by their configuration keys, and the vocabulary that they were made with.

    A collective operation: all ranks call it with the same keys. `parts` are the parts of the stores that this node
    reads, by default all of them. Rank 0 reads `verified_file`, in which `podium run` has recorded the data that it
    verified, and every rank compares its stores with it. Raises the same WorkError on all ranks unless all can open
    their stores and have the same manifests; if all ranks fail in the same way, each raises its own error.
    """
    verified = processes.broadcast(_read_verified(verified_file, processes), 0)
    # No rank may raise before the gather: the others would block in it until the timeout.
    opened, failure = attempt(_open, folders, vocabulary, verified, parts or {})
    stores, loaded_vocabulary = opened or ([], None)
    digests = [store.manifest.digest for store in stores]
    indices = [store.index.sha256 for store in stores]
    message = "" if failure is None else truncate(str(failure), MAX_MESSAGE_CHARACTERS)
    report = {"host": socket.gethostname(), "digests": digests, "indices": indices, "failure": message}
    ranks = processes.gather(report)
    hosts, messages = ([str(rank[key]) for rank in ranks] for key in ("host", "failure"))
    if failure is not None and len(set(messages)) == 1:
        raise failure
    if any(messages):
        raise WorkError(f"not every rank can open the data: {_group_by_ranks(messages, hosts)}")
    for number, (key, store) in enumerate(zip(folders, stores, strict=True)):
        digests = [rank["digests"][number] for rank in ranks]
        if len(set(digests)) > 1:
            raise _difference_error(key, store, digests, hosts, processes)
        indices = [rank["indices"][number] for rank in ranks]
        if (other := next((rank for rank, index in enumerate(indices) if index != indices[0]), None)) is not None:
            found = _group_by_ranks([f"{FILE} has the SHA-256 {index[:20]}…" for index in indices], hosts)
            raise WorkError(
                f"{key}: {found}, and ranks {other} and 0 would draw samples in another order; write it again with "
                "`podium data upgrade FOLDER`"
            )
    assert loaded_vocabulary is not None
    return stores, loaded_vocabulary


def _read_verified(path: Path | None, processes: Processes) -> dict[str, Any]:
    """On rank 0 return the record of the verified data, or the reason why it cannot be read; else an empty dict."""
    if path is None or not processes.first:
        return {}
    data, failure = attempt(read_run_data, path)
    return {"failure": str(failure)} if failure else {"data": data.document()} if data else {}


def _open(
    folders: Mapping[str, Path], vocabulary: Path, verified: Mapping[str, Any], parts: Mapping[str, NodePart]
) -> tuple[list[SampleStore], Vocabulary]:
    if "failure" in verified:
        raise WorkError(verified["failure"])
    """Open the stores and compare them with the vocabulary and with the `verified` data. Raises PodiumError."""
    loaded_vocabulary = Vocabulary.read(vocabulary)
    stores = {key: SampleStore(folder, parts.get(key, WHOLE_STORE)) for key, folder in folders.items()}
    for store in stores.values():
        store.require_vocabulary(loaded_vocabulary, vocabulary)
    if "data" in verified:
        found = RunData({key: store.manifest for key, store in stores.items()})
        if difference := found.difference(RunData.of_document(verified["data"]), folders, "what was verified"):
            raise WorkError(f"{difference}; the data was changed after it was verified: restore it and start again")
    return [*stores.values()], loaded_vocabulary


def _difference_error(
    key: str, store: SampleStore, digests: Sequence[str], hosts: Sequence[str], processes: Processes
) -> WorkError:
    """Return the error, the same on all ranks, that names the ranks with other data and the first difference.

    A collective operation. Ranks are compared with the majority, or with rank 0 if there is none.
    """
    usual, count = Counter(digests).most_common(1)[0]
    reference = digests.index(usual) if 2 * count > len(digests) else 0
    expected = Manifest.of_document(processes.broadcast(store.manifest.document(), reference))
    message = ""
    if store.manifest != expected:
        folder = store.paths[0].parent
        difference, *rest = store.manifest.differences(expected)
        more = f" (and {len(rest):,} more)" if rest else ""
        expected_of = f"rank {reference} on {hosts[reference]}"
        message = truncate(difference.sentence(folder, expected_of) + more, MAX_MESSAGE_CHARACTERS)
    found = _group_by_ranks(processes.gather(message), hosts)
    return WorkError(
        f"{key} is not the same on all ranks: {found}; copy the same shards to every node, and find a damaged one "
        "with `podium data verify`"
    )


def _group_by_ranks(messages: Sequence[str], hosts: Sequence[str]) -> str:
    """Format `ranks 2 to 3 on HOST: MESSAGE` for the first few groups of ranks with the same host and message."""
    groups: dict[tuple[str, str], list[int]] = {}
    for rank, (host, message) in enumerate(zip(hosts, messages, strict=True)):
        if message:
            groups.setdefault((host, message), []).append(rank)
    named = [f"{_format_ranks(ranks)} on {host}: {message}" for (host, message), ranks in groups.items()]
    rest = len(named) - MAX_NAMED_GROUPS
    return "; ".join(named[:MAX_NAMED_GROUPS]) + (f"; and {rest:,} more nodes" if rest > 0 else "")


def _format_ranks(ranks: Sequence[int]) -> str:
    """Format sorted ranks, such as `rank 1` or `ranks 0, 2 to 5`."""
    # Consecutive ranks have a constant difference to their position in the list.
    runs: list[list[int]] = []
    for _, run in groupby(enumerate(ranks), key=lambda place: place[1] - place[0]):
        runs.append([rank for _, rank in run])
    named = [str(run[0]) if len(run) == 1 else f"{run[0]} to {run[-1]}" for run in runs]
    return f"rank{'s' if len(ranks) > 1 else ''} {format_list(named)}"
