"""Construction of the configured optimizer, and the hyper-parameters in use for the MLPerf log."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from implementations.pytorch.optim.apex_lamb import ApexLamb
from implementations.pytorch.optim.fused import FusedAdamW, FusedLamb, FusedShardedLamb
from implementations.pytorch.optim.lamb import Lamb
from implementations.pytorch.optim.sharded_lamb import ShardedLamb
from podium.config.schema import OptimizerSettings
from podium.mllog.write import OptimizerHyperparameters


def build_optimizer(model: nn.Module, settings: OptimizerSettings, fused: bool = False) -> Optimizer:
    """Build LAMB or AdamW; biases and LayerNorm parameters get neither weight decay nor LAMB's trust ratio.

    All parameter groups share one learning rate, a 0-d float32 tensor on the model's device that `set_rate` changes, so
    that a step can be captured in a CUDA graph. LAMB is sharded if the process group has at least
    `settings.sharded_from` ranks. With `fused` the update is done by Triton kernels, which also unscale, clip and clear
    gradients (fused.py); it has no effect on the backend apex. Raises UsageError for a backend that is not installed.
    """
    # Queries, keys and values are one [3D, D] matrix here and three in the reference: LAMB needs a ratio per third.
    stacked = [p for name, p in model.named_parameters() if name.endswith("qkv.weight")]
    matrices = [p for name, p in model.named_parameters() if p.dim() > 1 and not name.endswith("qkv.weight")]
    vectors = [p for p in model.parameters() if p.dim() <= 1]
    groups: list[dict[str, Any]] = [
        {"params": matrices, "weight_decay": settings.weight_decay},
        {"params": stacked, "weight_decay": settings.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    device = vectors[0].device
    rate = torch.tensor(settings.learning_rate, dtype=torch.float32, device=device)
    betas, eps = (settings.beta1, settings.beta2), settings.epsilon
    if settings.algorithm == "adamw":
        adamw = FusedAdamW if fused else AdamW
        return adamw(groups, lr=rate, betas=betas, eps=eps, fused=True, capturable=device.type == "cuda")
    groups[1]["parts"] = 3
    groups[2]["adapt"] = False
    ranks = dist.get_world_size() if dist.is_initialized() else 0
    shards = settings.sharded_from is not None and ranks >= settings.sharded_from
    if settings.backend == "apex":
        return ApexLamb(groups, lr=rate, betas=betas, eps=eps)
    lamb, sharded = (FusedLamb, FusedShardedLamb) if fused else (Lamb, ShardedLamb)
    return (sharded if shards else lamb)(groups, lr=rate, betas=betas, eps=eps)


def set_rate(optimizer: Optimizer, rate: Tensor) -> None:
    """Set the learning rate of all groups to `rate` (0-d, on the same device) without reading it on the host."""
    for group in optimizer.param_groups:
        group["lr"].copy_(rate)


def describe_optimizer(optimizer: Optimizer, settings: OptimizerSettings) -> OptimizerHyperparameters:
    """Return the hyper-parameters in use for the log; betas, epsilon and weight decay are read from the optimizer.

    The first parameter group is the source: it holds the weight matrices, which have weight decay.
    """
    group = optimizer.param_groups[0]
    return OptimizerHyperparameters(
        algorithm="adamw" if isinstance(optimizer, AdamW) else "lamb",
        learning_rate=settings.learning_rate,
        beta1=group["betas"][0],
        beta2=group["betas"][1],
        epsilon=group["eps"],
        weight_decay=group["weight_decay"],
        warmup_steps=settings.warmup_steps,
        start_warmup_step=settings.start_warmup_step,
        decay_from=settings.decay_from,
        decay_steps=settings.decay_steps,
        decay_power=settings.decay_power,
        end_learning_rate=settings.end_learning_rate,
    )
