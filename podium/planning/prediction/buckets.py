"""Gradient buckets of PyTorch DDP, and the communication time that backward does not hide. Pure functions, no torch.

DDP puts whole tensors into buckets in the order in which backward completes their gradients, the reverse order of the
model's parameters. A bucket is closed when it reaches its cap, and is sent when all of its gradients are complete.
BERT's word embedding comes last and is never split: its bucket (BERT-large: 62.5 MB in half precision) is complete only
when backward has ended, so no bucket size hides it.

Source: Li et al., PyTorch Distributed, VLDB 2020, section 3.2.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod

from benchmarks.bert.sizes import MASKED_SHARE, Size

MIB = 2**20
# DDP's caps count a gradient in the type of the parameters (fp32), before a communication hook casts it.
GRADIENT_BYTES = 4
# PyTorch's default caps in bytes: the first bucket is small so that sending starts early in backward.
DEFAULT_CAPS = (1 * MIB, 25 * MIB)


@dataclass(frozen=True)
class Gradient:
    """One parameter's gradient: its number of elements, and the share of backward's time after which it is complete."""

    elements: int
    ready: float


@dataclass(frozen=True)
class Bucket:
    """A bucket's bytes on the wire, and the share of backward's time after which all its gradients are complete."""

    size: int
    ready: float


@lru_cache(maxsize=64)
def backward_gradients(size: Size, mean_length: float) -> tuple[Gradient, ...]:
    """Return the gradients of a model in the order in which backward completes them.

    Backward's time is divided among the matrix products on sequences of `mean_length` tokens: first the masked-LM head,
    then the layers from last to first; within a layer the products of attention precede its query, key and value
    weights.
    """
    elements: dict[str, int] = {}
    for name, shape in size.tensors(size.vocabulary_size).items():
        fused = re.sub(r"/self/(query|key|value)/", "/self/qkv/", name)  # the model has them as one tensor
        elements[fused] = elements.get(fused, 0) + prod(shape)
    names = sorted(elements, key=lambda name: ("bert/e" not in name, "cls/predictions" not in name, "cls" in name))
    work = [_multiplications_per_token(name, elements[name], size, mean_length) for name in reversed(names)]
    done, gradients = 0.0, []
    for name, share in zip(reversed(names), work, strict=True):
        done += share / sum(work)
        # The embeddings' gradients are complete last; min() removes the rounding error of the sum.
        gradients.append(Gradient(elements[name], 1.0 if name.startswith("bert/embeddings") else min(1.0, done)))
    return tuple(gradients)


def _multiplications_per_token(name: str, elements: int, size: Size, mean_length: float) -> float:
    """Return the multiplications per token that backward does for this tensor, after the previous one is complete."""
    if name.startswith("bert/encoder"):
        return elements + (2 * size.hidden * mean_length if "/qkv/kernel" in name else 0)
    # The decoder shares the word embedding's weights and has no tensor here; backward runs it before this tensor.
    if name == "cls/predictions/transform/dense/kernel":
        return MASKED_SHARE * (elements + size.hidden * size.vocabulary_size)
    return 0.0


def fill_buckets(gradients: Iterable[Gradient], wire_bytes: int, bucket_mib: float | None = None) -> list[Bucket]:
    """Return DDP's buckets for gradients in this order, with elements of `wire_bytes` bytes on the wire.

    `bucket_mib` is the cap in MiB on the wire; None: PyTorch's default caps, which count fp32 bytes.
    """
    # Podium hands DDP a cap in fp32 bytes; half-precision gradients need twice the cap for the same bytes on the wire.
    caps = DEFAULT_CAPS if bucket_mib is None else (int(bucket_mib * GRADIENT_BYTES / wire_bytes * MIB),)
    buckets: list[Bucket] = []
    elements, ready = 0, 0.0
    for gradient in gradients:
        elements, ready = elements + gradient.elements, max(ready, gradient.ready)
        # DDP closes a bucket when it reaches the cap, so a bucket may exceed it by most of its last tensor.
        if GRADIENT_BYTES * elements >= caps[min(len(buckets), len(caps) - 1)]:
            buckets.append(Bucket(wire_bytes * elements, ready))
            elements, ready = 0, 0.0
    return [*buckets, Bucket(wire_bytes * elements, ready)] if elements else buckets


def exposed_seconds(ready: Sequence[float], sending: Sequence[float], backward: float) -> float:
    """Return the seconds from the end of backward until the last bucket is sent.

    Bucket i takes `sending[i]` seconds. It starts when it is complete, after the share `ready[i]` of `backward`
    seconds, and the bucket before it has been sent.
    """
    free = 0.0  # when the network is idle again: buckets are sent one at a time, in order
    for share, seconds in zip(ready, sending, strict=True):
        free = max(free, share * backward) + seconds
    return max(0.0, free - backward)
