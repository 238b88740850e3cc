"""Timings of the data loader: `python -m implementations.pytorch.bench.loader --store DIR --local-batch 16 --help`.

Every repetition opens the store anew and reads other samples of it, warm (the shards were read through before) or
cold (the page cache was dropped). With --step-milliseconds one step is consumed at that interval, as in training,
and what is measured is the waiting time for each step. Prints one JSON object.
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
from podium.planning.balancing.interface import Deal
from podium.planning.balancing.strategies import STRATEGIES
from podium.planning.batch_plan import TrainingOrder


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="implementations.pytorch.bench.loader", description=__doc__)
    parser.add_argument("--store", type=Path, required=True, help="folder of prepared shards")
    parser.add_argument("--local-batch", type=_positive, required=True, help="samples of this rank in a step")
    parser.add_argument("--ranks", type=_positive, default=1, help="ranks that the samples are dealt to; one is timed")
    parser.add_argument("--strategy", choices=STRATEGIES, default="indexed")
    parser.add_argument("--loader", choices=LOADERS, default="own")
    parser.add_argument("--cold", action="store_true", help="have the system forget the shards before every turn")
    parser.add_argument("--steps", type=_positive, default=400)
    parser.add_argument("--repeat", type=_positive, default=3, help="turns, each with other samples")
    parser.add_argument("--depth", type=_positive, default=4, help="steps that are ready at most")
    parser.add_argument(
        "--window", type=_not_negative, default=WINDOW, help="steps known ahead; 0 asks the disk for nothing"
    )
    parser.add_argument("--step-milliseconds", type=float, default=0.0, help="what each step is trained on")
    arguments = parser.parse_args(given)
    try:
        shards = shard_paths(arguments.store)
        turns = []
        for seed in range(arguments.repeat):
            (forget if arguments.cold else read_through)(shards)
            turns.append(_turn(arguments, seed))
            gc.collect()  # pages that are still mapped would not be forgotten
    except PodiumError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    rate = median(turn["sequences_per_second"] for turn in turns)
    found = {"settings": vars(arguments), "turns": turns, "sequences_per_second": rate}
    print(json.dumps(found, indent=2, default=str))
    return 0


def _turn(arguments: argparse.Namespace, seed: int) -> dict[str, float]:
    """Seconds to make the loader and, from its entering on, how long which step was waited for."""
    store = SampleStore(arguments.store)
    order = TrainingOrder(
        store,
        seed=seed,
        strategy=arguments.strategy,
        global_batch_size=arguments.local_batch * arguments.ranks,
        deal=Deal(arguments.ranks, arguments.ranks),
        accumulation_steps=1,
    )
    if arguments.cold:
        forget(store.paths)  # once more: opening has read the offsets
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


def forget(paths: Sequence[Path]) -> None:
    """Ask the system to drop these files from its page cache."""
    for path in paths:
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def read_through(paths: Sequence[Path]) -> None:
    """Have these files in the page cache."""
    for path in paths:
        with path.open("rb") as file:
            while file.read(2**24):
                pass


def _positive(text: str, least: int = 1) -> int:
    number = int(text)
    if number < least:
        raise argparse.ArgumentTypeError(f"found {number}, allowed is {least} or more")
    return number


def _not_negative(text: str) -> int:
    return _positive(text, 0)


if __name__ == "__main__":
    sys.exit(main())
