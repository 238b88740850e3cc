"""Attention without padding by PyTorch's own operators: variable-length flash attention, and nested tensors.

Flash attention (Dao, arXiv 2307.08691, as included in PyTorch) takes float16 and bfloat16, on GPUs from Ampere on. The
public `varlen_attn` has no dropout; the operator used here does, and is private to PyTorch: this is the only place
that calls it. scaled_dot_product_attention on jagged nested tensors is the public way; on a CPU it is slow, but
correct.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from implementations.pytorch.data.batch import RaggedBatch
from implementations.pytorch.kernels.interface import Kernels
from implementations.pytorch.model.attention.padded import with_spare_slots
from podium.planning.batch_plan import round_up
from podium.planning.hardware import FLASH_CAPABILITY

HALVES = (torch.float16, torch.bfloat16)
LENGTH_STEP = 512  # the longest length is rounded up to this: the same for all batches that a graph is replayed on


def is_had(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether a device has flash attention for activations of this type."""
    return device.type == "cuda" and dtype in HALVES and torch.cuda.get_device_capability(device) >= FLASH_CAPABILITY


def flash(qkv_T3HK: Tensor, batch: RaggedBatch, kernels: Kernels, probability: float) -> Tensor:
    """All sequences in one launch. Slots of no sequence are one sequence more, so that nothing is left unset."""
    longest = round_up(max(batch.lengths[0], batch.spare_slots), LENGTH_STEP)
    return varlen(qkv_T3HK, batch.sequence_starts_i32, longest, probability).flatten(1)


def varlen(qkv_T3HK: Tensor, starts: Tensor, longest: int, probability: float) -> Tensor:
    """Context [T, heads, head size] of sequences that begin at `starts` (int32, the end of the last one included)."""
    q_THK, k_THK, v_THK = qkv_T3HK.unbind(1)
    context: Tensor = torch.ops.aten._flash_attention_forward(
        q_THK, k_THK, v_THK, starts, starts, longest, longest, probability, False, False
    )[0]
    return context


def nested(qkv_T3HK: Tensor, batch: RaggedBatch, kernels: Kernels, probability: float) -> Tensor:
    used = batch.slots - batch.spare_slots
    q, k, v = (
        torch.nested.nested_tensor_from_jagged(
            part_THK[:used].contiguous(),
            offsets=batch.sequence_starts,
            min_seqlen=batch.lengths[-1],
            max_seqlen=batch.lengths[0],
        ).transpose(1, 2)
        for part_THK in qkv_T3HK.unbind(1)
    )
    context_THK = F.scaled_dot_product_attention(q, k, v, dropout_p=probability).transpose(1, 2).values()
    return with_spare_slots([context_THK.flatten(1)], batch.slots)
