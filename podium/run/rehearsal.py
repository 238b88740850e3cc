"""`podium rehearse`: the data of a rehearsal, and the process of one rank."""

import re
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.bert.rehearsal_store import WIKIPEDIA_SAMPLES, rehearsal_store, rehearsal_vocabulary
from benchmarks.bert.sizes import SEQUENCE_LENGTH
from podium.config.load import write_resolved
from podium.config.schema import DataSettings, RunConfig
from podium.core.errors import UsageError
from podium.planning.costs import with_measured_costs
from podium.run.data import DATA
from podium.run.implementation import ask

FOLDER = DATA / "rehearsal"
UNITS = {"G": 1e9, "T": 1e12}


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
    with tempfile.TemporaryDirectory(prefix="podium_") as folder:
        path = Path(folder) / "config.yaml"
        write_resolved(config, path)
        found = ask(config.implementation, "rehearse", [str(path), "--rank", str(rank), "--steps", str(steps)])
    about = {"system": config.system, "recipe": config.recipe, "global_batch_size": config.global_batch_size}
    return about | {"samples": count} | found


def with_synthetic_data(config: RunConfig, folder: Path, samples: int, note: Callable[[str], None]) -> RunConfig:
    """The configuration with stores of so many synthetic samples in place of its data, one for each sequence length of
    its phases, and of its evaluation samples. They are written into `folder` where they are not there yet."""
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
    needed, stated = found["memory"]["node_bytes"], config.description.host_memory_capacity
    capacity = memory_of(stated)
    if capacity is None or needed <= capacity:
        return ""
    return (
        f"launch.processes_per_node: {config.launch.processes_per_node} processes take {needed / 1e9:,.1f} GB of a "
        f"node's memory, and description.host_memory_capacity is {stated!r}; use fewer processes, or nodes with more"
    )


def memory_of(text: str) -> float | None:
    """Bytes of a capacity such as `1 TB` or `192 GB`; None where none is stated."""
    found = re.search(r"(\d+(?:\.\d+)?)\s*([GT])i?B", text[:200], re.IGNORECASE)
    return float(found[1]) * UNITS[found[2].upper()] if found else None
