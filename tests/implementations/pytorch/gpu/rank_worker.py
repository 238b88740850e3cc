"""A rank of test_ranks.py: `CONFIG KIND FILE`. Steps of a small model, with graphs on a GPU; then it raises, or ends.

FILE receives the time at which it does, of which the longest time that the end may take is counted.
"""

import faulthandler
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.bert.sizes import LARGE
from implementations.pytorch.bench.variants import SEED, Lengths, PodiumRunner
from implementations.pytorch.build_run import build_order
from implementations.pytorch.distributed.process_group import Processes, init_distributed
from podium.config.load import load_resolved
from podium.config.schema import RunConfig
from podium.core.errors import WorkError

STEPS = 6
LONGEST_SECONDS = 30
VOCABULARY = 1_024
SMALL = replace(LARGE, name="small", layers=2, hidden=128, heads=2, feed_forward=512)


def unequal_lengths(config: RunConfig, processes: Processes) -> np.ndarray:
    """Lengths of which ranks 0 and 1 get different numbers of shapes; every rank finds the same ones."""
    for seed in range(1000):
        lengths = np.random.default_rng(seed).integers(16, 512, STEPS * config.global_batch_size)
        order = build_order(config, Lengths(lengths), VOCABULARY, processes.device, SEED)
        slots = np.array([order.global_batch(step).micro_batch_slots[:2, 0] for step in range(STEPS)])
        if len(set(slots[:, 0])) != len(set(slots[:, 1])):
            return lengths
    raise AssertionError("no lengths give the ranks different numbers of shapes")


def train(config: RunConfig, processes: Processes, kind: str) -> None:
    runner = PodiumRunner(config, processes, unequal_lengths(config, processes), VOCABULARY, SMALL)
    for number in range(STEPS):
        runner.take(number)
    total = sum(float(p.detach().double().sum()) for p in runner.stepper.model.parameters())
    assert len(set(processes.gather(total))) == 1, "weights of the ranks differ"
    print("graphs:", len(runner.stepper.graphs or ()), flush=True)
    if processes.first:
        Path(sys.argv[3]).write_text(str(time.monotonic()), encoding="ascii")
    faulthandler.dump_traceback_later(LONGEST_SECONDS, exit=True)
    if kind == "raise":
        raise WorkError("raised after the graphs were captured")


if __name__ == "__main__":
    config = load_resolved(Path(sys.argv[1]))
    try:
        with init_distributed(config) as processes:
            train(config, processes, sys.argv[2])
    except WorkError as error:
        print(error, flush=True)
        sys.exit(error.exit_code)
