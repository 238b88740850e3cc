"""Fused kernels for the operations between matrix products: eager reference, numba for CPUs, Triton for GPUs."""
