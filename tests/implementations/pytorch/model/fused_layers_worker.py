"""A rank that compares the averaged gradients of fused and eager layers in DDP. Arguments: rank, file to meet at.

Gradients that the layers write themselves must reach DDP's buckets, and its hooks must run, in every backward pass:
the first one, which has no gradients to write into, the one after DDP has rebuilt its buckets, and with two
micro-batches, of which only the last one's gradients are sent.
"""

import sys

import numpy as np
import torch
import torch.distributed as dist

from benchmarks.bert.sizes import Size
from implementations.pytorch.data.batch import RaggedBatch, collate
from implementations.pytorch.data.synthetic import synthetic_sample
from implementations.pytorch.distributed.gradient_sync import wrap_ddp
from implementations.pytorch.kernels.eager import EAGER
from implementations.pytorch.kernels.gpu.kernel_set import TRITON
from implementations.pytorch.kernels.interface import Kernels
from implementations.pytorch.model.bert import BertForPreTraining, ModelOptions
from implementations.pytorch.model.loss import loss_sums

SIZE = Size("small", layers=2, hidden=16, heads=2, feed_forward=32, evaluation_samples=8, evaluation_interval=8)
VOCABULARY = 31


def make_batch(seed: int) -> RaggedBatch:
    random = np.random.default_rng(seed)
    return collate([synthetic_sample(n, 2, VOCABULARY, random) for n in (7, 4)], shape_step=16)


def train(rank: int, kernels: Kernels, fused: bool) -> list[dict[str, torch.Tensor]]:
    """Return the averaged gradients of three steps: two of one micro-batch, one of two."""
    torch.manual_seed(0)
    options = ModelOptions(attention="padded", kernels=kernels, fused_layers=fused)
    model = BertForPreTraining(SIZE, VOCABULARY, dropout_probability=0.0, model_options=options)
    # Buckets of 4 KiB, so that there are several; rebuilt after the first step.
    ddp, sync = wrap_ddp(model, torch.device("cpu"), bucket_mib=0.004)
    steps = []
    for step, micro_batches in enumerate((1, 1, 2)):
        ddp.zero_grad(set_to_none=False)
        for number in range(micro_batches):
            model.gradients.accumulate = number > 0
            batch = make_batch(100 * step + 10 * number + rank)
            if number < micro_batches - 1:
                with ddp.no_sync():
                    loss_sums(ddp(batch), batch, kernels).mean(batch.masked, batch.sequences).backward()
            else:
                sync.begin(ddp, None)
                loss_sums(ddp(batch), batch, kernels).mean(batch.masked, batch.sequences).backward()
        steps.append({name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None})
    return steps


def main() -> None:
    rank = int(sys.argv[1])
    dist.init_process_group("gloo", init_method=f"file://{sys.argv[2]}", rank=rank, world_size=2)
    for number, (found, expected) in enumerate(zip(train(rank, TRITON, True), train(rank, EAGER, False), strict=True)):
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            torch.testing.assert_close(
                found[name], value, rtol=1e-4, atol=1e-5, msg=lambda text, at=(number, name): f"{at}: {text}"
            )
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
