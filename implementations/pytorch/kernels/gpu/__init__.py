"""Triton kernels for GPUs, for float32, bfloat16 and float16. No other package imports Triton."""
