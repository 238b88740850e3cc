"""Compile every kernel for a Hopper GPU, for which no GPU is needed: Triton includes NVIDIA's assembler.

Run by test_gpu.py. Sizes are those of BERT-large, and arguments are declared as a launch would: pointers and columns
as multiples of 16.
"""

import re

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from implementations.pytorch.data.batch import IGNORED
from implementations.pytorch.kernels.gpu import cross_entropy, gelu, norm, optimizer

B, F, L = "*bf16", "*fp32", "*i64"  # pointers to activations, parameters and ids
NORM = {"threshold": 6554, "BLOCK": 1024}
_, GROUP = cross_entropy.split_row(30522)
OPTIMIZER = {"BLOCK": optimizer.BLOCK}
ENTROPY = {"GROUP": GROUP, "ignored": IGNORED, "BLOCK": cross_entropy.BLOCK}
KERNELS = (
    (norm._residual_forward, [B, B, F, F, F, L, B, B, F, "i32", "fp32", "fp32"], NORM, 4),
    (norm._residual_backward, [B, B, F, F, L, B, B, F, "i32", "i32", "fp32"], NORM, 4),
    (norm._embedding_forward, [L, L, L, F, F, F, F, F, L, B, F, "i32", "fp32", "fp32"], NORM, 4),
    (norm._embedding_backward, [B, L, L, L, F, F, F, F, L, F, F, F, "i32", "i32", "fp32"], NORM, 4),
    (gelu._forward, [B, F, B, "i32"], {"BLOCK": gelu.BLOCK}, 4),
    (gelu._backward, [B, F, B, B, F, "i32", "i32"], {"BLOCK": gelu.BLOCK}, 4),
    (cross_entropy._forward, [B, L, F, F, "i32"], ENTROPY, 8),
    (cross_entropy._backward, [B, L, F, F, B, "i32"], ENTROPY, 8),
    (optimizer._measure, [L, F, F, "i32"], {"BLOCK": 2 * optimizer.BLOCK}, optimizer.WARPS),
    (optimizer._lamb_moments, [L, F, F, F, F], OPTIMIZER, optimizer.WARPS),
    (optimizer._lamb_parameters, [L, F, F, F, F], OPTIMIZER | {"SUM_BLOCK": optimizer.SUM_BLOCK}, optimizer.WARPS),
    (optimizer._adamw, [L, F, F, F], OPTIMIZER, optimizer.WARPS),
)

# Kernels whose rows begin at multiples of 16 bytes; bfloat16 rows of a vocabulary of 30522 begin at multiples of 4.
WIDE = {norm._residual_forward, norm._residual_backward, norm._embedding_forward, norm._embedding_backward}
WIDE |= {gelu._forward, gelu._backward}
WIDE |= {optimizer._measure, optimizer._lamb_moments, optimizer._lamb_parameters, optimizer._adamw}

for kernel, types, constants, warps in KERNELS:
    names = kernel.arg_names
    signature = dict(zip(names, types, strict=False)) | dict.fromkeys(constants, "constexpr")
    assert list(signature) == names
    multiples = {
        (place,): [["tt.divisibility", 16]]
        for place, (name, kind) in enumerate(signature.items())
        if kind.startswith("*") or name == "columns"
    }
    source = ASTSource(kernel, signature, {(names.index(name),): value for name, value in constants.items()}, multiples)
    compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": warps})
    accesses = re.findall(r"\b(?:ld|st)\.global\S*?((?:\.v\d)?\.b\d+)\b", compiled.asm["ptx"])
    assert accesses.count(".v4.b32") >= 2 if kernel in WIDE else ".b32" in accesses, (kernel.__name__, accesses)
    assert accesses.count(".b16") <= (kernel is cross_entropy._forward), (
        kernel.__name__,
        "only the label may be a 16-bit access",
    )
    print(kernel.__name__, len(compiled.asm["cubin"]))
