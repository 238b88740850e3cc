"""Balancing strategies: numpy functions that assign the samples of a global batch to ranks."""
