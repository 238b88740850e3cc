"""Rehearsal of one rank of a run, in one process: `python -m implementations.pytorch.rehearse CONFIG --help`.

CONFIG is a resolved configuration with synthetic stores; `podium rehearse SYSTEM` starts it. Prints one JSON object.
Exit codes: 0 done, 1 failed, 2 wrong usage; the error message is the last line of standard error.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import mean
from typing import Any

import torch

from benchmarks.bert.length_index import FILE
from implementations.pytorch.bench.loader import drop_from_page_cache
from implementations.pytorch.distributed.process_group import keep_freed_memory, rehearsal_process_group
from implementations.pytorch.rehearse.settings import left_out
from implementations.pytorch.rehearse.trainer import (
    DEVICE_PARTS,
    EXCHANGE,
    FLUSH,
    LAYOUT,
    METRICS,
    PLAN,
    TOTALS,
    RehearsalTrainer,
    StartPart,
)
from implementations.pytorch.rehearse.usage import bytes_read, resident_memory, seconds_since_start
from podium.config.load import load_resolved
from podium.config.run_folder import RunFolder
from podium.config.schema import RunConfig
from podium.core.errors import PodiumError, UsageError
from podium.core.files import require_readable
from podium.core.processes import end_with_parent


def main(argv: Sequence[str] | None = None) -> int:
    # First: what the process has used so far is the cost of interpreter and imports.
    imports = asdict(StartPart(seconds_since_start(), time.process_time(), resident_memory().anonymous))
    parser = argparse.ArgumentParser(prog="implementations.pytorch.rehearse", description=__doc__)
    parser.add_argument("config", type=Path, help="a resolved configuration, as `podium rehearse` writes it")
    parser.add_argument("--rank", type=int, default=0, help="rank to rehearse")
    parser.add_argument("--steps", type=int, default=20, help="number of steps")
    arguments = parser.parse_args(argv)
    end_with_parent()
    try:
        config = load_resolved(arguments.config)
        ranks = config.launch.ranks
        if not 0 <= arguments.rank < ranks:
            raise UsageError(
                f"--rank: found {arguments.rank}, allowed is 0 to {ranks - 1}: {config.system} has {ranks} ranks"
            )
        result = rehearse(config, arguments.rank, arguments.steps, imports, arguments.config.parent)
    except PodiumError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    print(json.dumps(result))
    return 0


def rehearse(
    config: RunConfig, rank: int, steps: int, imports: dict[str, Any], folder: Path | None = None
) -> dict[str, Any]:
    """Rehearse one rank in this process. Returns the report of `podium rehearse` for it, as JSON.

    `imports`: measured cost of interpreter and imports. Files of the run are written to a temporary folder in `folder`
    (default: the system's folder for temporary files) and removed.
    """
    launch = config.launch
    require_readable([path / FILE for path in config.all_stores.values()], "length index")
    indices = {path / FILE: (path / FILE).stat().st_size for path in config.all_stores.values()}
    drop_from_page_cache([*indices])  # so that opening the stores reads from the disk, as on a freshly started node
    torch.set_num_threads(launch.threads)
    keep_freed_memory()
    disk, requested = bytes_read()
    with (
        tempfile.TemporaryDirectory(prefix="podium_", dir=folder) as run_folder,
        rehearsal_process_group(rank, launch.ranks) as processes,
    ):
        trainer = RehearsalTrainer(config, processes, RunFolder(Path(run_folder)), steps)
        trainer.rehearse()
        after, (disk_after, requested_after) = resident_memory(frozenset(map(str, indices))), bytes_read()
        parts = {"interpreter and imports": imports} | {name: asdict(part) for name, part in trainer.start.items()}
        model_bytes = sum(parts[part]["own_bytes"] for part in DEVICE_PARTS)
        store_disk_bytes = trainer.store_disk_bytes
        evaluation, shapes, sample_bytes = trainer.evaluation_batches, trainer.shapes, trainer.sample_bytes
        host = _host_times(trainer, config)
        del trainer
    # Without the parts that stand for the device's: this CPU holds a tiny model, the system's host none.
    anonymous = after.anonymous - model_bytes
    return {
        "rank": rank,
        "ranks": launch.ranks,
        "steps": len(sample_bytes),
        "start": {
            "parts": parts,
            "not_the_systems": list(DEVICE_PARTS),
            **{
                kind: sum(part[kind] for name, part in parts.items() if name not in DEVICE_PARTS)
                for kind in ("seconds", "cpu_seconds")
            },
        },
        "host": host,
        "memory": {
            "own_bytes": anonymous,
            "file_bytes": after.files,
            "index_bytes": after.index,
            "model_bytes": model_bytes,
            "node_bytes": launch.processes_per_node * anonymous + after.files,
        },
        "read": {
            "disk_bytes": disk_after - disk,
            "store_disk_bytes": store_disk_bytes,
            "requested_bytes": requested_after - requested,
            "index_bytes": sum(indices.values()),
            "sample_bytes_a_step": mean(sample_bytes),
        },
        "not_rehearsed": left_out(config),
        "shapes": len(shapes.masked_slots) if shapes else None,
        "evaluation": {
            "samples": sum(batch.sequences for batch in evaluation),
            "batches": len(evaluation),
            "ranks_without": max(0, launch.ranks - config.evaluation_samples),
        },
    }


def _host_times(trainer: RehearsalTrainer, config: RunConfig) -> Mapping[str, Any]:
    """Return milliseconds of CPU time per step, by part, and the sum of their medians."""
    # One call of the exchange plans several steps.
    steps_per_call = {EXCHANGE: min(config.exchange_steps, config.steps)}
    timed = {
        part: trainer.stopwatch.milliseconds(part, steps_per_call.get(part, 1))
        for part in (PLAN, EXCHANGE, LAYOUT, TOTALS, METRICS, FLUSH)
    }
    parts = {part: times for part, times in timed.items() if times is not None}
    return {"parts": parts, "milliseconds": sum(times["median"] for times in parts.values())}


if __name__ == "__main__":
    sys.exit(main())
