"""One rank of test_process_group: initialises the process group from torchrun's environment and destroys it."""

import torch
import torch.distributed as dist

from implementations.pytorch.distributed.process_group import init_distributed
from podium.config.load import load_system

config = load_system("laptop")
launch = config.launch.model_copy(update={"threads_per_process": 3})
with init_distributed(config.model_copy(update={"launch": launch})) as here:
    assert (here.rank, here.ranks, str(here.device)) == (0, 1, "cpu")
    assert (torch.get_num_threads(), dist.get_backend()) == (3, "gloo")
assert not dist.is_initialized()
