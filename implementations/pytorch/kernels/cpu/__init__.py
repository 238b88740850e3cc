"""Kernels for a CPU, compiled by numba: bfloat16 or float32; other types go to the eager twins."""
