"""One rank of test_process_group: trains one step with every configuration and saves loss and gradients.

Arguments: shard, file of the process group, rank, ranks, configurations (pickled), file to save to.
"""

import pickle
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.bert.sizes import Size
from benchmarks.bert.store import SampleStore
from implementations.pytorch.build_run import build_order
from implementations.pytorch.distributed.gradient_sync import wrap_ddp
from implementations.pytorch.distributed.process_group import Processes
from implementations.pytorch.metrics import Metrics
from implementations.pytorch.model.bert import BertForPreTraining, ModelOptions
from implementations.pytorch.optim.build import build_optimizer
from implementations.pytorch.optim.schedule import rate_table
from implementations.pytorch.phase_clock import PhaseClock
from implementations.pytorch.step import Stepper
from podium.config.schema import RunConfig
from tests.implementations.pytorch.data.plain_reader import read_step


def take(config: RunConfig, size: Size, vocabulary: int, store: SampleStore, here: Processes) -> dict[str, Any]:
    torch.manual_seed(0)
    model = BertForPreTraining(
        size, vocabulary, dropout_probability=0.0, model_options=ModelOptions(attention=config.attention)
    )
    ddp, sync = wrap_ddp(model, here.device, config.clipping, config.wire, config.gradient_bucket_mib)
    rates = rate_table(config.optimizer, 10, here.device)
    stepper = Stepper(config, here, ddp, sync, build_optimizer(model, config.optimizer), rates, "fp32")
    order = build_order(config, store, vocabulary, here.device, seed=7)
    step = read_step(order, 0, here.rank)
    result = stepper.take(step, PhaseClock())
    return {
        "sums": here.all_reduce_sum([float(result.masked_lm), float(result.next_sentence)]),
        "most": here.all_reduce_max(3 * here.rank),
        "norm": float(result.gradient_norm),
        "gradients": {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None},
        "parameters": {name: p.detach().clone() for name, p in model.named_parameters()},
        "step": step,
        "result": result,
    }


def main() -> None:
    shard, rendezvous, rank, ranks, configurations, out = sys.argv[1:]
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=int(rank), world_size=int(ranks))
    here = Processes(int(rank), int(ranks), torch.device("cpu"))
    configs, size, vocabulary = pickle.loads(Path(configurations).read_bytes())
    store = SampleStore([Path(shard)])
    ends = [take(config, size, vocabulary, store, here) for config in configs]
    with Metrics(Path(out).with_name("metrics.jsonl"), here) as metrics:
        for number, end in enumerate(ends, start=1):
            metrics.flush()
            metrics.step(number, 0, end.pop("step"), end.pop("result"))
        metrics.flush()
    here.barrier()
    torch.save(ends, out)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
