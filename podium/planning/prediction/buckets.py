"""Gradient buckets of PyTorch DDP, and the time by which sending them outlasts backward. Pure functions, no torch.

DDP puts whole tensors into buckets in the order in which backward completes their gradients, which is the reverse of
the model's parameters. A bucket is closed once it has reached its cap, and is sent when all of its gradients are
complete. BERT's word embedding comes last and is never split: its bucket (BERT-large: 62.5 MB in half precision) is
complete only when backward has ended, so that no size of bucket hides it.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod

from benchmarks.bert.sizes import MASKED_SHARE, Size

MIB = 2**20
GRADIENT_BYTES = 4  # of the fp32 gradients that DDP's caps count
# PyTorch's own caps, in bytes of gradients: of the first bucket, and of the others.
DEFAULT_CAPS = (1 * MIB, 25 * MIB)


@dataclass(frozen=True)
class Gradient:
    """A parameter's gradient: its elements, and the share of backward's time after which it is complete."""

    elements: int
    ready: float


@dataclass(frozen=True)
class Bucket:
    """Bytes on the wire, and the share of backward's time after which all of them are complete."""

    size: int
    ready: float


@lru_cache(maxsize=64)
def gradients_of(size: Size, mean_length: float) -> tuple[Gradient, ...]:
    """The gradients of a model in the order in which backward completes them.

    Backward's time is shared by matrix products on sequences of `mean_length` tokens: the masked-LM head comes first,
    then each layer from the last to the first, the attention's own products before its query, key and value weights.
    """
    elements: dict[str, int] = {}
    for name, shape in size.tensors(size.vocabulary_size).items():
        fused = re.sub(r"/self/(query|key|value)/", "/self/qkv/", name)  # one tensor in the model
        elements[fused] = elements.get(fused, 0) + prod(shape)
    names = sorted(elements, key=lambda name: ("bert/e" not in name, "cls/predictions" not in name, "cls" in name))
    work = [_work(name, elements[name], size, mean_length) for name in reversed(names)]
    done, found = 0.0, []
    for name, share in zip(reversed(names), work, strict=True):
        done += share / sum(work)
        found.append(Gradient(elements[name], 1.0 if name.startswith("bert/embeddings") else min(1.0, done)))
    return tuple(found)


def _work(name: str, elements: int, size: Size, mean_length: float) -> float:
    """Multiplications for each token that come with a tensor's gradient."""
    if name.startswith("bert/encoder"):
        return elements + (2 * size.hidden * mean_length if "/qkv/kernel" in name else 0)
    # The decoder, whose weights are the word embedding's, comes before it.
    if name == "cls/predictions/transform/dense/kernel":
        return MASKED_SHARE * (elements + size.hidden * size.vocabulary_size)
    return 0.0


def fill_buckets(gradients: Iterable[Gradient], wire_bytes: int, bucket_mib: float | None = None) -> list[Bucket]:
    """The buckets of gradients in this order, sent in a type of `wire_bytes` bytes.

    `bucket_mib` counts MiB on the wire; None: PyTorch's caps, which count fp32.
    """
    caps = DEFAULT_CAPS if bucket_mib is None else (int(bucket_mib * GRADIENT_BYTES / wire_bytes * MIB),)
    found: list[Bucket] = []
    elements, ready = 0, 0.0
    for gradient in gradients:
        elements, ready = elements + gradient.elements, max(ready, gradient.ready)
        if GRADIENT_BYTES * elements >= caps[min(len(found), len(caps) - 1)]:
            found.append(Bucket(wire_bytes * elements, ready))
            elements, ready = 0, 0.0
    return [*found, Bucket(wire_bytes * elements, ready)] if elements else found


def exposed_seconds(ready: Sequence[float], sending: Sequence[float], backward: float) -> float:
    """Seconds from backward's end until the last bucket is sent.

    A bucket is sent once it is complete, `ready` being the share of `backward` seconds after which it is, and the one
    before it has been sent, which takes the seconds of `sending`.
    """
    free = 0.0
    for share, seconds in zip(ready, sending, strict=True):
        free = max(free, share * backward) + seconds
    return max(0.0, free - backward)
