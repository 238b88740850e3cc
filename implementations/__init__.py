"""How benchmarks are trained: one package an implementation."""
