"""PyTorch's scaled_dot_product_attention on jagged nested tensors: the public way to attention without padding.

On a GPU it picks its fused kernels; on a CPU it goes through plain products and is slow, but right.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from implementations.pytorch.data.batch import RaggedBatch
from implementations.pytorch.kernels.interface import Kernels
from implementations.pytorch.model.attention.padded import with_spare_slots


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
