"""Samples in the formats that others keep them in, to and from shards."""
