"""One rank of test_sharded_lamb: trains the same weights with LAMB and with sharded LAMB.

Arguments: file of the process group, rank, ranks, file to save to. In Triton's interpreter both are fused.
"""

import os
import sys
from copy import deepcopy
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from implementations.pytorch.optim.fused import FusedLamb, FusedShardedLamb
from implementations.pytorch.optim.lamb import Lamb
from implementations.pytorch.optim.sharded_lamb import ShardedLamb

SHAPES = [(60, 40), (30, 20), (90, 10), (50,), (8, 4), (33, 30)]
LEAST_SHARED = 500
SETTINGS: dict[str, Any] = {"betas": (0.8, 0.95), "eps": 1e-6}


def parameters() -> list[Tensor]:
    random = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=random).requires_grad_() for shape in SHAPES]


def groups(p: list[Tensor]) -> list[dict[str, Any]]:
    return [
        {"params": [p[0], p[4], p[5]], "weight_decay": 0.1},
        {"params": [p[1], p[2]], "weight_decay": 0.1, "parts": 3},
        {"params": [p[3]], "weight_decay": 0.0, "adapt": False},
    ]


def train(weights: list[Tensor], optimizer: Lamb, steps: range, overflows: bool) -> None:
    """Take the steps, each with another learning rate; with `overflows`, gradients of step 1 are infinite."""
    for step in steps:
        random = torch.Generator().manual_seed(10 + step)
        for weight in weights:
            weight.grad = torch.randn(weight.shape, generator=random) * (float("inf") if overflows and step == 1 else 1)
        for group in optimizer.param_groups:
            group["lr"].fill_(0.01 * (step + 1))
        if overflows:
            optimizer.found_inf = torch.tensor(float(step == 1))  # type: ignore[attr-defined]
        optimizer.step()
        assert not isinstance(optimizer, FusedLamb) or not any(w.grad is not None and w.grad.any() for w in weights)


def ends(overflows: bool) -> dict[str, Any]:
    plain_weights, shared_weights = parameters(), parameters()
    lamb, sharded_lamb = (FusedLamb, FusedShardedLamb) if "TRITON_INTERPRET" in os.environ else (Lamb, ShardedLamb)
    plain = lamb(groups(plain_weights), lr=torch.tensor(0.1), **SETTINGS)
    shared = sharded_lamb(groups(shared_weights), min_sharded_numel=LEAST_SHARED, lr=torch.tensor(0.1), **SETTINGS)
    train(plain_weights, plain, range(4), overflows)
    train(shared_weights, shared, range(4), overflows)
    return {
        "plain": [w.detach().clone() for w in plain_weights],
        "shared": [w.detach().clone() for w in shared_weights],
        "plain state": deepcopy(plain.state_dict()),
        "own state": deepcopy(shared.state_dict()),
    }


def main() -> None:
    rendezvous, rank, ranks, out = sys.argv[1:]
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=int(rank), world_size=int(ranks))
    found = {overflows: ends(overflows) for overflows in (False, True)}
    dist.barrier()
    torch.save(found, out)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
