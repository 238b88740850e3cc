"""The element-wise work between matrix products, fused: plain twins, numba kernels for a CPU, Triton's for a GPU."""
