"""Estimates of the peak memory of training steps, made before a model is built.

Counted are weights, gradients, optimizer state and what is saved for the backward pass. They decide whether a side of a
benchmark is tried at all, so they need to be right within some 15%, which tests compare with what autograd saves.
"""

from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks.bert.sizes import SEQUENCE_LENGTH, Size
from implementations.pytorch.data.batch import RaggedBatch
from implementations.pytorch.model.attention.varlen import is_flash_available
from implementations.pytorch.precision import COMPUTE_TYPES

# Bytes of each parameter: float32 weight, gradient and two moments; its copy in the compute type is extra.
PARAMETER_BYTES = 16
SNAPSHOT_BYTES = 4  # of each parameter: Podium's copy of the weights during the warm-up
OPTIMIZER_BYTES = 12  # of each parameter: temporaries of the optimizer, when nothing is saved for backward any more
LOGIT_BYTES = 18  # of each logit: compute type and float32, softmax, gradients
SCORE_BYTES = 12  # of each attention score of a single layer, for temporaries
EXTRA_LAYERS = 2  # for the embeddings, and for temporaries and gradients of the layer that backward is in
ALLOCATOR_SHARE = 1.1  # of what is needed, with what the caching allocator cannot use


@dataclass(frozen=True)
class Saved:
    """What a layer saves for backward, besides the input and output of GELU: values of width D per token slot."""

    compute: int  # in the compute type
    float32: int
    masks: int  # of dropout
    score_compute: int  # of each attention score that is computed as a matrix, likewise
    score_float32: int
    score_masks: int


# Plain PyTorch: input, queries, keys and values, context, the first norm's output; the inputs of both norms. On a GPU
# autocast computes softmax in float32.
EAGER_ON_CPU = Saved(compute=6, float32=2, masks=2, score_compute=3, score_float32=0, score_masks=0)
EAGER_ON_GPU = Saved(compute=6, float32=2, masks=2, score_compute=1, score_float32=1, score_masks=1)
# Fused kernels save sums in the compute type, and no masks. Attention weights are the eager kernel's on a GPU.
FUSED_ON_GPU = Saved(compute=8, float32=0, masks=0, score_compute=1, score_float32=1, score_masks=1)
FUSED_ON_CPU = Saved(compute=8, float32=0, masks=0, score_compute=2, score_float32=0, score_masks=0)
# transformers: each of the three products for queries, keys and values casts its input.
HUGGING_FACE = Saved(compute=9, float32=2, masks=2, score_compute=1, score_float32=1, score_masks=1)


@dataclass(frozen=True)
class Extent:
    """What the memory of a micro-batch is proportional to."""

    slots: int
    logits: int  # rows of masked-LM logits
    scores: int  # of one attention head that are computed as a matrix, over all sequences; none with flash attention

    def union(self, other: "Extent") -> "Extent":
        """Return the larger of each."""
        return Extent(max(self.slots, other.slots), max(self.logits, other.logits), max(self.scores, other.scores))


def podium_extent(batch: RaggedBatch, attention: str, precision: str, device: torch.device) -> Extent:
    """Return the extent of a micro-batch with a resolved attention backend and precision."""
    flash = is_flash_available(device, COMPUTE_TYPES[precision])
    if attention == "padded" and batch.slot_width is None:
        scores = batch.sequences * max(batch.lengths) ** 2
    elif attention == "padded" or (attention == "grouped" and not (flash and batch.slot_width is None)):
        scores = sum(len(group.key_counts) * group.width**2 for group in batch.groups)
    else:
        scores = 0
    return Extent(batch.slots, len(batch.masked_labels), scores)


def hugging_face_extent(sequences: int, attention: str) -> Extent:
    """Return the extent of sequences padded to the full length: logits of every slot."""
    slots = sequences * SEQUENCE_LENGTH
    return Extent(slots, slots, slots * SEQUENCE_LENGTH if attention == "eager" else 0)


def podium_bytes(
    size: Size, vocabulary_size: int, extent: Extent, precision: str, kernels: str, device: torch.device, ranks: int
) -> int:
    """Estimate the peak bytes of Podium's steps, with their warm-up; `kernels` and `precision` are resolved."""
    eager, fused = (EAGER_ON_CPU, FUSED_ON_CPU) if device.type == "cpu" else (EAGER_ON_GPU, FUSED_ON_GPU)
    sent = COMPUTE_TYPES[precision].itemsize if ranks > 1 else 0
    saved = eager if kernels == "eager" else fused
    return _peak(size, vocabulary_size, extent, precision, saved, device, SNAPSHOT_BYTES + sent)


def hugging_face_bytes(size: Size, vocabulary_size: int, extent: Extent, precision: str, device: torch.device) -> int:
    """Estimate the peak bytes of Hugging Face's steps."""
    return _peak(size, vocabulary_size, extent, precision, HUGGING_FACE, device, 0)


def saved_bytes(size: Size, layers: int, extent: Extent, precision: str, saved: Saved, device: torch.device) -> int:
    """Return the bytes that `layers` layers save for backward."""
    compute = COMPUTE_TYPES[precision].itemsize
    mask, score_mask = (1, 1) if device.type == "cuda" else (compute, 4)  # a CPU's dropout saves factors
    per_slot = saved.compute * compute + saved.float32 * 4 + saved.masks * mask
    per_slot = per_slot * size.hidden + 2 * compute * size.feed_forward
    per_score = saved.score_compute * compute + saved.score_float32 * 4 + saved.score_masks * score_mask
    return layers * (extent.slots * per_slot + extent.scores * size.heads * per_score)


def _peak(
    size: Size,
    vocabulary_size: int,
    extent: Extent,
    precision: str,
    saved: Saved,
    device: torch.device,
    further_parameter_bytes: int,
) -> int:
    compute = COMPUTE_TYPES[precision].itemsize
    copies = compute if compute < torch.float32.itemsize else 0  # autocast's, of the weights
    activations = (
        saved_bytes(size, size.layers, extent, precision, saved, device)
        + saved_bytes(size, EXTRA_LAYERS, Extent(extent.slots, 0, 0), precision, saved, device)
        + extent.scores * size.heads * SCORE_BYTES
        + extent.logits * vocabulary_size * LOGIT_BYTES
    )
    parameters = size.parameters(vocabulary_size)
    lasting = parameters * (PARAMETER_BYTES + further_parameter_bytes + copies)
    return round(ALLOCATOR_SHARE * (lasting + max(activations, parameters * OPTIMIZER_BYTES)))


def free_memory(device: torch.device) -> int:
    """Return the free bytes of a GPU, or on a CPU those that the kernel can give."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
        if line.startswith("MemAvailable:"):
            return 1024 * int(line.split()[1])
    raise AssertionError("Linux reports MemAvailable since 3.14")
