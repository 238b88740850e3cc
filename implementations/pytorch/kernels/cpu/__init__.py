"""Kernels for CPUs, compiled by numba, for bfloat16 and float32; other dtypes use the eager kernels."""
