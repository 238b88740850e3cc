"""Attention without padding with PyTorch's operators: variable-length flash attention, and nested tensors.

Flash attention (FlashAttention-2, Dao, arXiv 2307.08691, as included in PyTorch) supports float16 and bfloat16 on GPUs
from Ampere on. PyTorch's public `varlen_attn` has no dropout; the operator used here has, but is private to PyTorch, so
only this module calls it. scaled_dot_product_attention on jagged nested tensors is the public alternative; it is slow
on a CPU, but correct. Variable-length attention by cuDNN is in cudnn_varlen.py.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from implementations.pytorch.data.batch import RaggedBatch
from implementations.pytorch.kernels.interface import Kernels
from implementations.pytorch.model.attention.padded import concat_and_zero_pad
from podium.planning.batch_plan import round_up
from podium.planning.hardware import FLASH_CAPABILITY

# Queries, keys and values: one tensor [T, 3, H, K], or three [T, H, K].
QKV = Tensor | tuple[Tensor, Tensor, Tensor]

HALF_DTYPES = (torch.float16, torch.bfloat16)
# The maximum length passed to the kernel is rounded up to a multiple of this. It is a host number, which a captured
# CUDA graph fixes, so it must be the same for all batches that the graph is replayed with.
LENGTH_STEP = 512


def is_flash_available(device: torch.device, dtype: torch.dtype) -> bool:
    """Return whether a device supports variable-length attention for activations of this dtype."""
    return (
        device.type == "cuda" and dtype in HALF_DTYPES and torch.cuda.get_device_capability(device) >= FLASH_CAPABILITY
    )


def longest_sequence(batch: RaggedBatch) -> int:
    """Return the maximum length that kernels are launched for, of sequences and of the spare slots after the last."""
    return round_up(max(batch.lengths[0], batch.spare_slots), LENGTH_STEP)


def flash(qkv: QKV, batch: RaggedBatch, kernels: Kernels, probability: float) -> Tensor:
    """Return the context [T, H · K] of qkv, [T, 3, H, K] or three tensors [T, H, K], all sequences in one launch.

    The slots after the last sequence are passed as one more sequence, so that no output is left uninitialised. The
    gradient of one tensor is stacked from three, so three are faster.
    """
    return varlen(qkv, batch.sequence_starts_i32, longest_sequence(batch), probability).flatten(1)


def varlen(qkv: QKV, starts: Tensor, longest: int, probability: float) -> Tensor:
    """Return the context [T, H, K] of qkv, [T, 3, H, K] or three tensors [T, H, K], by variable-length flash attention.

    `starts` are the sequences' offsets, int32 [S + 1] on the device, the last one being T. `longest` is an upper bound
    on the sequence lengths. float16 or bfloat16 only.
    """
    q_THK, k_THK, v_THK = qkv.unbind(1) if isinstance(qkv, Tensor) else qkv
    context: Tensor = torch.ops.aten._flash_attention_forward(
        q_THK, k_THK, v_THK, starts, starts, longest, longest, probability, False, False
    )[0]
    return context


def nested(qkv_T3HK: Tensor, batch: RaggedBatch, kernels: Kernels, probability: float) -> Tensor:
    """Return the context [T, H · K] of qkv [T, 3, H, K] by scaled_dot_product_attention on jagged nested tensors."""
    # Minimum and maximum length are given from the host, since PyTorch would otherwise compute them on the device and
    # wait for the result.
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
    return concat_and_zero_pad([context_THK.flatten(1)], batch.slots)
