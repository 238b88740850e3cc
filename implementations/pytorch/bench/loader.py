"""Timings of the data loader: `python -m implementations.pytorch.bench.loader --store DIR --local-batch 16 --help`.

Every repetition opens the store again and reads other samples, warm (the shards are in the page cache) or cold (they
were dropped from it). With --step-milliseconds a step is consumed at that interval, as in training, and the time that
training would wait for each step is measured. Prints one JSON object.
"""

import argparse
import gc
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from benchmarks.bert.store import SampleStore, shard_paths
from implementations.pytorch.data.loader import LOADERS
from implementations.pytorch.data.reader import WINDOW
from podium.core.errors import PodiumError
from podium.planning.balancing.interface import AssignmentSpec
from podium.planning.balancing.strategies import STRATEGIES
from podium.planning.batch_plan import TrainingOrder


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="implementations.pytorch.bench.loader", description=__doc__)
    parser.add_argument("--store", type=Path, required=True, help="folder of prepared shards")
    parser.add_argument("--local-batch", type=_positive, required=True, help="samples per rank and step")
    parser.add_argument(
        "--ranks", type=_positive, default=1, help="number of ranks that samples are assigned to; one is timed"
    )
    parser.add_argument("--strategy", choices=STRATEGIES, default="indexed")
    parser.add_argument("--loader", choices=LOADERS, default="own")
    parser.add_argument(
        "--cold", action="store_true", help="drop the shards from the page cache before every repetition"
    )
    parser.add_argument("--steps", type=_positive, default=400)
    parser.add_argument("--repeat", type=_positive, default=3, help="number of repetitions, each with other samples")
    parser.add_argument("--depth", type=_positive, default=4, help="largest number of steps that are ready")
    parser.add_argument("--window", type=_not_negative, default=WINDOW, help="steps of read-ahead; 0: none")
    parser.add_argument("--step-milliseconds", type=float, default=0.0, help="simulated training time of a step")
    arguments = parser.parse_args(argv)
    try:
        shards = shard_paths(arguments.store)
        turns = []
        for seed in range(arguments.repeat):
            (drop_from_page_cache if arguments.cold else read_into_page_cache)(shards)
            turns.append(_run_repetition(arguments, seed))
            gc.collect()  # closes the mappings of the store: mapped pages would stay in the page cache
    except PodiumError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    rate = median(turn["sequences_per_second"] for turn in turns)
    result = {"settings": vars(arguments), "turns": turns, "sequences_per_second": rate}
    print(json.dumps(result, indent=2, default=str))
    return 0


def _run_repetition(arguments: argparse.Namespace, seed: int) -> dict[str, float]:
    """Run one repetition. Returns the time to construct the loader, and waiting times per step from its start on."""
    store = SampleStore(arguments.store)
    order = TrainingOrder(
        store,
        seed=seed,
        strategy=arguments.strategy,
        global_batch_size=arguments.local_batch * arguments.ranks,
        spec=AssignmentSpec(arguments.ranks, arguments.ranks),
        accumulation_steps=1,
    )
    if arguments.cold:
        drop_from_page_cache(store.paths)  # again: opening has read the offsets
    before = time.perf_counter()
    loader = LOADERS[arguments.loader](order, 0, range(arguments.steps), arguments.depth, window=arguments.window)
    start = last = time.perf_counter()
    waits, sequences = [], 0
    with loader as steps:
        for step in steps:
            waits.append(time.perf_counter() - last)
            sequences += sum(batch.sequences for batch in step.micro_batches)
            if arguments.step_milliseconds:
                time.sleep(arguments.step_milliseconds / 1000)
            last = time.perf_counter()
    return {
        "seconds_to_make": start - before,
        "seconds": last - start,
        "sequences_per_second": sequences / (last - start),
        "first_wait_ms": 1000 * waits[0],
        "mean_wait_ms": 1000 * sum(waits) / len(waits),
        "longest_later_wait_ms": 1000 * max(waits[1:], default=0.0),
    }


def drop_from_page_cache(paths: Sequence[Path]) -> None:
    """Drop files from the page cache of the system."""
    for path in paths:
        with path.open("rb") as file:
            # Dirty pages are not dropped, so they are written first.
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def read_into_page_cache(paths: Sequence[Path]) -> None:
    """Read files into the page cache of the system."""
    for path in paths:
        with path.open("rb") as file:
            while file.read(2**24):
                pass


def _positive(text: str, minimum: int = 1) -> int:
    number = int(text)
    if number < minimum:
        raise argparse.ArgumentTypeError(f"found {number}, allowed is {minimum} or more")
    return number


def _not_negative(text: str) -> int:
    return _positive(text, 0)


if __name__ == "__main__":
    sys.exit(main())
