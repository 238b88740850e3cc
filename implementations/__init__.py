"""Implementations of the benchmarks: one package for each, run as separate processes."""
