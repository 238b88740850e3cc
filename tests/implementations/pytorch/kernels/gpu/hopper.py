"""Compile every kernel for a Hopper GPU, which needs none: Triton brings NVIDIA's assembler. Run by test_gpu.py."""

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from implementations.pytorch.data.batch import IGNORED
from implementations.pytorch.kernels.gpu import cross_entropy, gelu, norm

B, F, L = "*bf16", "*fp32", "*i64"
"""Pointers to activations, parameters and ids; then i32 and fp32 numbers."""
NORM = {"threshold": 6554, "BLOCK": 1024}
KERNELS = (
    (norm._residual_forward, [B, B, F, F, F, L, B, B, F, "i32", "fp32", "fp32"], NORM, 4),
    (norm._residual_backward, [B, B, F, F, L, B, B, F, "i32", "i32", "fp32"], NORM, 4),
    (norm._embedding_forward, [L, L, L, F, F, F, F, F, L, B, F, "i32", "fp32", "fp32"], NORM, 4),
    (norm._embedding_backward, [B, L, L, L, F, F, F, F, L, F, F, F, "i32", "i32", "fp32"], NORM, 4),
    (gelu._forward, [B, F, B, "i32"], {"BLOCK": gelu.BLOCK}, 4),
    (gelu._backward, [B, F, B, B, F, "i32", "i32"], {"BLOCK": gelu.BLOCK}, 4),
    (cross_entropy._forward, [B, L, F, F, "i32"], {"ignored": IGNORED, "BLOCK": cross_entropy.BLOCK}, 8),
    (cross_entropy._backward, [B, L, F, F, B, "i32"], {"ignored": IGNORED, "BLOCK": cross_entropy.BLOCK}, 8),
)

for kernel, types, constants, warps in KERNELS:
    names = kernel.arg_names
    signature = dict(zip(names, types, strict=False)) | dict.fromkeys(constants, "constexpr")
    assert list(signature) == names
    source = ASTSource(kernel, signature, {(names.index(name),): value for name, value in constants.items()})
    compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": warps})
    print(kernel.__name__, len(compiled.asm["cubin"]))
