"""The order of samples where every rank holds a part of the dataset and draws its local batches from it alone.

Parts are consecutive runs of the store, equal but for one sample, so that a rank whose disk has the shards of its own
part never needs another's. A rank's order is a permutation of its part, in epochs of its own; it is as stateless as
`Sampler`, and every rank can compute every other's.
"""

from functools import lru_cache

import numpy as np

from implementations.pytorch.data.sampling import permute, round_keys, round_keys_of


def part_bounds(samples: int, ranks: int) -> np.ndarray:
    """Rank r's part of so many samples goes from bounds[r] to the next, int64 [ranks + 1]."""
    bounds: np.ndarray = np.arange(ranks + 1, dtype=np.int64) * samples // ranks
    return bounds


class ShardedSampler:
    """Sample number i belongs to global batch i // (W · B), and there to the local batch of rank (i // B) % W.

    A rank draws its sample number k (B in every global batch) from its own part under a seed of its own.
    """

    def __init__(self, bounds: np.ndarray, *, batch: int, seed: int) -> None:
        """`bounds` [W + 1] of the parts; `batch` is B, the samples of a local batch. Raises ValueError for no part, an
        empty one, or no batch."""
        self.sizes = np.diff(bounds).astype(np.uint64)
        if batch < 1 or not len(self.sizes) or not (np.diff(bounds) > 0).all():
            raise ValueError("per-rank parts need at least one sample each, and batches of at least one")
        self.bounds, self.batch, self.seed = bounds.astype(np.int64), batch, seed

    def samples(self, first: int, count: int) -> np.ndarray:
        """Indices [count] int64, in 0 … bounds[-1] - 1, of the run's samples number first … first + count - 1."""
        ranks = len(self.sizes)
        local_batches, slots = np.divmod(np.arange(first, first + count), self.batch)
        batches, rank_of = np.divmod(local_batches, ranks)
        numbers = (batches * self.batch + slots).astype(np.uint64)
        epochs, positions = np.divmod(numbers, self.sizes[rank_of])
        drawn, which = np.unique(np.stack([rank_of, epochs.astype(np.int64)]), axis=1, return_inverse=True)
        keys = np.stack([_keys(self.seed, epoch, rank, ranks) for rank, epoch in drawn.T.tolist()])
        places = permute(positions, self.sizes[drawn[0]], int(self.sizes.max()), keys, which.reshape(-1))
        indices: np.ndarray = self.bounds[rank_of] + places
        return indices


@lru_cache(maxsize=4096)
def _keys(seed: int, epoch: int, rank: int, ranks: int) -> np.ndarray:
    """A rank's keys [rounds] of an epoch. One rank alone has the order of `Sampler`."""
    return round_keys(seed, epoch) if ranks == 1 else round_keys_of(np.random.SeedSequence([seed, epoch, 1 + rank]))
