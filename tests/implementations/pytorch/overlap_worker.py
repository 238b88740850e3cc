"""One rank of test_evaluation: evaluates asynchronously, rank 1 more slowly, and saves the results of its polls.

Arguments: shard, file of the process group, rank, ranks, file to save to.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.bert.sizes import SIZES
from benchmarks.bert.store import SampleStore
from implementations.pytorch import evaluation
from implementations.pytorch.data.evaluation import evaluation_batches
from implementations.pytorch.distributed.process_group import Processes
from implementations.pytorch.evaluation import OverlappedEvaluation, evaluate
from implementations.pytorch.model.bert import BertForPreTraining
from podium.core.errors import WorkError
from podium.planning.balancing.interface import AssignmentSpec

SLOW = 0.3


def main() -> None:
    shard, rendezvous, rank, ranks, out = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5]
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=ranks)
    here = Processes(rank, ranks, torch.device("cpu"))
    torch.manual_seed(0)
    model = BertForPreTraining(SIZES["tiny"], 101, dropout_probability=0.0)
    batches = evaluation_batches(
        SampleStore([Path(shard)]), rank, AssignmentSpec(ranks, ranks), samples=12, local_batch_size=4, slot_width=None
    )
    expected = evaluate(model, batches, here, "fp32")
    sums = evaluation.evaluation_sums

    def slow_sums(*arguments: Any) -> torch.Tensor:
        time.sleep(SLOW * rank)
        return sums(*arguments)

    overlapped = OverlappedEvaluation(model, here, "fp32")
    evaluation.evaluation_sums = slow_sums
    results: dict[str, Any] = {"expected": vars(expected)}
    overlapped.begin(batches)
    polls = 0
    while (accuracy := overlapped.poll()) is None:
        dist.barrier()  # as a step's gradients are waited for
        time.sleep(0.01)
        polls += 1
    results["polled"], results["polls"] = vars(accuracy), polls
    overlapped.begin(batches)
    overlapped.poll()  # its all-reduce is still unread when all ranks wait for the end
    results["finished"] = vars(overlapped.finish())

    def failing_sums(*arguments: Any) -> torch.Tensor:
        if rank == 1:
            raise WorkError("out of memory")
        return sums(*arguments)

    evaluation.evaluation_sums = failing_sums
    overlapped.begin(batches)
    try:
        while overlapped.poll() is None:
            dist.barrier()
    except WorkError as error:
        results["message"] = str(error)
    Path(out).write_text(json.dumps(results), encoding="utf-8")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
