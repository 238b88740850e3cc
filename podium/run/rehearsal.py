"""`podium rehearse`: writes synthetic stores, and runs one rank of a system as a process."""

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from benchmarks.bert.rehearsal_store import (
    MAX_SAMPLES,
    WIKIPEDIA_SAMPLES,
    rehearsal_store,
    rehearsal_vocabulary,
    remove_unfinished_stores,
)
from benchmarks.bert.sizes import SEQUENCE_LENGTH
from podium.config.load import write_resolved
from podium.config.schema import DataSettings, RunConfig
from podium.core.errors import UsageError
from podium.core.files import make_folder
from podium.core.locks import folder_lock, is_locked, waiting_folder_lock
from podium.mllog.system import parse_memory_size
from podium.planning.costs import with_measured_costs
from podium.run.data import DATA
from podium.run.implementation import call_entry_point

FOLDER = DATA / "rehearsal"
RANK_PREFIX = "rank-"  # of the name of the folder of one rehearsal


def rehearse(
    config: RunConfig, rank: int, steps: int, samples: int | None, note: Callable[[str], None]
) -> dict[str, Any]:
    """Rehearse one rank on synthetic samples, and return the JSON object of `podium rehearse --json`.

    Raises UsageError for a rank that the system does not have, and for a configuration that `podium run` would refuse.
    """
    ranks = config.launch.ranks
    if rank >= ranks:
        raise UsageError(f"--rank: found {rank}, allowed is 0 to {ranks - 1:,}, the ranks of {config.system}")
    count = WIKIPEDIA_SAMPLES if samples is None else samples
    config = with_measured_costs(with_synthetic_data(config, FOLDER, count, note))
    if config.seed is None:
        config = config.model_copy(update={"seed": 1})
    note(f"Rehearsing rank {rank:,} of {ranks:,}")
    with _rank_folder(FOLDER) as folder:
        path = folder / "config.yaml"
        write_resolved(config, path)
        result = call_entry_point(
            config.implementation, "rehearse", [str(path), "--rank", str(rank), "--steps", str(steps)]
        )
    about = {"system": config.system, "recipe": config.recipe, "global_batch_size": config.global_batch_size}
    memory_bytes = parse_memory_size(config.description.host_memory_capacity)
    return about | {"samples": count, "stated_memory_bytes": memory_bytes} | result


@contextmanager
def _rank_folder(folder: Path) -> Iterator[Path]:
    """Make a temporary folder for the files of one rehearsal, and remove those that killed rehearsals left behind.

    It is in `folder`, or in the system's temporary folder if `folder` is not writable.
    """
    parent = folder if os.access(folder, os.W_OK) else None
    with ExitStack() as stack:
        # The outer lock covers the time between making the new folder and locking it, in which another rehearsal
        # would take it for one that was left behind. A lock ends with its process, however that ends.
        with waiting_folder_lock(folder):
            for leftover in folder.glob(f"{RANK_PREFIX}*"):
                if is_locked(leftover) is False:  # None: a file system without locks, where nothing is removed
                    shutil.rmtree(leftover, ignore_errors=True)
            temporary = tempfile.TemporaryDirectory(prefix=RANK_PREFIX, dir=parent, ignore_cleanup_errors=True)
            path = Path(stack.enter_context(temporary))
            stack.enter_context(folder_lock(path, "podium rehearse"))
        yield path


def with_synthetic_data(config: RunConfig, folder: Path, samples: int, note: Callable[[str], None]) -> RunConfig:
    """Return the configuration with stores of `samples` synthetic samples as its data, one for each sequence length of
    its phases, and a store of its evaluation samples.

    They are written to `folder` unless they exist there undamaged. UsageError for more than MAX_SAMPLES samples.
    """
    for key, count in (("--samples", samples), ("evaluation.samples", config.evaluation_samples)):
        if count > MAX_SAMPLES:
            raise UsageError(
                f"{key}: found {count:,}, allowed is 1 to {MAX_SAMPLES:,}, {MAX_SAMPLES // WIKIPEDIA_SAMPLES} times "
                "Wikipedia's"
            )
    if is_locked(make_folder(folder)):
        note("Waiting for another rehearsal to write or check its samples")
    with waiting_folder_lock(folder):
        remove_unfinished_stores(folder)
        return _with_stores(config, folder, samples, note)


def _with_stores(config: RunConfig, folder: Path, samples: int, note: Callable[[str], None]) -> RunConfig:
    vocabulary = rehearsal_vocabulary(folder, config.model_size.vocabulary_size)

    def store(count: int, longest: int = SEQUENCE_LENGTH) -> Path:
        message = f"Writing a length index of {count:,} samples of up to {longest} tokens"
        return rehearsal_store(folder, count, vocabulary, longest, lambda: note(message))

    phases = []
    for phase in config.phases:
        longest = phase.max_sequence_length or SEQUENCE_LENGTH
        own = store(samples, longest) if longest != SEQUENCE_LENGTH else None
        phases.append(phase.model_copy(update={"store": own, "max_sequence_length": longest}))
    data = DataSettings(store=store(samples), evaluation_store=store(config.evaluation_samples), vocabulary=vocabulary)
    return config.model_copy(update={"data": data, "phases": tuple(phases)})


def memory_shortage(config: RunConfig, result: Mapping[str, Any]) -> str:
    """Return an error message if a node's stated memory is less than its processes need, else an empty string."""
    needed, capacity = result["memory"]["node_bytes"], result["stated_memory_bytes"]
    if capacity is None or needed <= capacity:
        return ""
    return (
        f"launch.processes_per_node: {config.launch.processes_per_node} processes need at least {needed / 1e9:,.1f} GB "
        f"of a node's memory, but description.host_memory_capacity is {config.description.host_memory_capacity!r}; use "
        "fewer processes, or nodes with more memory"
    )
