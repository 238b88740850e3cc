"""The kernel set for CPUs."""

from implementations.pytorch.kernels.cpu.attention_weights import attention_weights
from implementations.pytorch.kernels.cpu.cross_entropy import cross_entropy
from implementations.pytorch.kernels.cpu.embedding import embedding_norm
from implementations.pytorch.kernels.cpu.gelu import bias_gelu
from implementations.pytorch.kernels.cpu.norm import residual_norm
from implementations.pytorch.kernels.interface import Kernels

NUMBA = Kernels(embedding_norm, residual_norm, bias_gelu, cross_entropy, attention_weights)
