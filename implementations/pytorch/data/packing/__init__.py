"""Several sequences in one row of fixed length: ways to fill rows, offline from a histogram and inside a batch."""

from implementations.pytorch.data.packing.greedy import longest_pack_first, shortest_pack_first
from implementations.pytorch.data.packing.least_squares import least_squares_packs
from implementations.pytorch.data.packing.packs import Packs

__all__ = ["Packs", "least_squares_packs", "longest_pack_first", "shortest_pack_first"]
