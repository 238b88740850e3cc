"""One of two ranks of test_flight_recorder, of which rank 1 never calls the last collective."""

import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

from implementations.pytorch.distributed.process_group import init_distributed
from implementations.pytorch.distributed.watchdog import Watchdog, connect_status_store
from implementations.pytorch.phase_clock import PhaseClock
from podium.config.load import load_system
from podium.config.run_folder import RunFolder

config = load_system("laptop", settings=["launch.processes_per_node=2"])
clock = PhaseClock()
with (
    init_distributed(config) as here,
    Watchdog(here, clock, RunFolder(Path(sys.argv[1])), 1.0, connect_status_store(here)) as watch,
):
    for watch.batch in (1, 2):
        dist.all_reduce(torch.ones(4))
        clock.lap("synchronisation")
    if here.first:
        clock.lap("forward")
        dist.all_reduce(torch.ones(3, 5))
    time.sleep(30)
