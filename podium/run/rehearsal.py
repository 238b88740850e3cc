"""`podium rehearse`: the data of a rehearsal, and the process of one rank."""

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from benchmarks.bert.rehearsal_store import (
    MOST_SAMPLES,
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
from podium.mllog.system import amount_of_memory
from podium.planning.costs import with_measured_costs
from podium.run.data import DATA
from podium.run.implementation import ask

FOLDER = DATA / "rehearsal"
RANK = "rank-"  # begins the name of the folder of one rehearsal


def rehearse(
    config: RunConfig, rank: int, steps: int, samples: int | None, note: Callable[[str], None]
) -> dict[str, Any]:
    """What the implementation's rehearsal of one rank found.

    UsageError for a rank that the system does not have, and for whatever has the run itself refused.
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
        found = ask(config.implementation, "rehearse", [str(path), "--rank", str(rank), "--steps", str(steps)])
    about = {"system": config.system, "recipe": config.recipe, "global_batch_size": config.global_batch_size}
    stated = amount_of_memory(config.description.host_memory_capacity)
    return about | {"samples": count, "stated_memory_bytes": stated} | found


@contextmanager
def _rank_folder(folder: Path) -> Iterator[Path]:
    """A folder for the files of one rehearsal, removed at its end, as are those of rehearsals that were killed.

    It is in `folder`, or among the machine's temporary files where that may not be written.
    """
    place = folder if os.access(folder, os.W_OK) else None
    with ExitStack() as stack:
        with waiting_folder_lock(folder):
            for left in folder.glob(f"{RANK}*"):
                if is_locked(left) is False:
                    shutil.rmtree(left, ignore_errors=True)
            kept = tempfile.TemporaryDirectory(prefix=RANK, dir=place, ignore_cleanup_errors=True)
            path = Path(stack.enter_context(kept))
            stack.enter_context(folder_lock(path, "podium rehearse"))
        yield path


def with_synthetic_data(config: RunConfig, folder: Path, samples: int, note: Callable[[str], None]) -> RunConfig:
    """The configuration with stores of so many synthetic samples in place of its data, one for each sequence length of
    its phases, and of its evaluation samples. They are written into `folder` where they are not there yet, and anew
    where they are damaged. UsageError for more samples than any run has."""
    for key, count in (("--samples", samples), ("evaluation.samples", config.evaluation_samples)):
        if count > MOST_SAMPLES:
            raise UsageError(
                f"{key}: found {count:,}, allowed is 1 to {MOST_SAMPLES:,}, {MOST_SAMPLES // WIKIPEDIA_SAMPLES} times "
                "Wikipedia's"
            )
    if is_locked(make_folder(folder)):
        note("Waiting for another rehearsal, which writes or checks its samples")
    with waiting_folder_lock(folder):
        remove_unfinished_stores(folder)
        return _with_stores(config, folder, samples, note)


def _with_stores(config: RunConfig, folder: Path, samples: int, note: Callable[[str], None]) -> RunConfig:
    vocabulary = rehearsal_vocabulary(folder, config.model_size.vocabulary_size)

    def store(count: int, longest: int = SEQUENCE_LENGTH) -> Path:
        said = f"Writing a length index of {count:,} samples of up to {longest} tokens"
        return rehearsal_store(folder, count, vocabulary, longest, lambda: note(said))

    phases = []
    for phase in config.phases:
        longest = phase.max_sequence_length or SEQUENCE_LENGTH
        own = store(samples, longest) if longest != SEQUENCE_LENGTH else None
        phases.append(phase.model_copy(update={"store": own, "max_sequence_length": longest}))
    data = DataSettings(store=store(samples), evaluation_store=store(config.evaluation_samples), vocabulary=vocabulary)
    return config.model_copy(update={"data": data, "phases": tuple(phases)})


def memory_shortage(config: RunConfig, found: Mapping[str, Any]) -> str:
    """A sentence if a node has less memory than its processes take, as far as its description states it."""
    needed, capacity = found["memory"]["node_bytes"], found["stated_memory_bytes"]
    if capacity is None or needed <= capacity:
        return ""
    return (
        f"launch.processes_per_node: {config.launch.processes_per_node} processes take at least {needed / 1e9:,.1f} GB "
        f"of a node's memory, and description.host_memory_capacity is {config.description.host_memory_capacity!r}; use "
        "fewer processes, or nodes with more"
    )
