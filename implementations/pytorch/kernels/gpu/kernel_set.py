"""The kernel set for GPUs.

Attention weights use the eager kernel: on a GPU they are computed only if flash attention is not used.
"""

from implementations.pytorch.kernels.eager import attention_weights
from implementations.pytorch.kernels.gpu.cross_entropy import cross_entropy
from implementations.pytorch.kernels.gpu.gelu import bias_gelu
from implementations.pytorch.kernels.gpu.norm import embedding_norm, residual_norm
from implementations.pytorch.kernels.interface import Kernels

TRITON = Kernels(embedding_norm, residual_norm, bias_gelu, cross_entropy, attention_weights)
