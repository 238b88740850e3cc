"""Benchmarks of training steps, the data loader and gradient synchronisation."""
