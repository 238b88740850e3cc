"""Timings of a training step and its parts: `python -m implementations.pytorch.bench`."""
