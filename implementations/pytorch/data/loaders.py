"""Who reads steps ahead, by name."""

from implementations.pytorch.data.dali import DaliPrefetcher
from implementations.pytorch.data.prefetching import Prefetcher

LOADERS: dict[str, type[Prefetcher] | type[DaliPrefetcher]] = {"own": Prefetcher, "dali": DaliPrefetcher}
