"""Triton kernels for a GPU: float32, bfloat16 and float16. Nothing else in Podium imports Triton."""
