"""Which samples a run draws in which order: from the whole dataset or per-rank parts of it, in strata, in phases."""

from collections.abc import Sequence

import numpy as np

from benchmarks.errors import UsageError
from implementations.pytorch.data.phases import Phase, Phased, Subset, first_samples
from implementations.pytorch.data.sampling import Order, Sampler, StratifiedSampler, stratum_bounds
from implementations.pytorch.data.sharding import ShardedSampler, part_bounds


def drawing_order(
    lengths: np.ndarray,
    *,
    seed: int,
    ranks: int,
    local_batch: int,
    shards: str = "shared",
    phases: Sequence[Phase] = (),
) -> Order:
    """The order of samples of these lengths [N], without strata.

    `shards`: `shared`, where every sample may come anywhere, or `per_rank`, where the r-th run of `local_batch` samples
    of each global batch is of the r-th part of the dataset. Raises UsageError where a phase, or a rank in it, has no
    sample to draw.
    """
    if not phases:
        return _drawn(None, len(lengths), seed, ranks, local_batch, shards)
    orders = []
    for number, phase in enumerate(phases):
        fitting = np.flatnonzero(lengths <= phase.max_sequence_length)
        if not len(fitting):
            raise UsageError(
                f"phases.{number}: the data has no sample of at most {phase.max_sequence_length} tokens, its shortest "
                f"has {lengths.min()}; allow as many, or leave the phase out"
            )
        indices = None if len(fitting) == len(lengths) else fitting.astype(np.uint32 if len(lengths) < 2**32 else "i8")
        phase_seed = int(np.random.SeedSequence(seed, spawn_key=(number,)).generate_state(1, np.uint64)[0])
        orders.append(_drawn(indices, len(lengths), phase_seed, ranks, local_batch, shards))
    return Phased(orders, first_samples(phases, ranks * local_batch))


def _drawn(indices: np.ndarray | None, samples: int, seed: int, ranks: int, local_batch: int, shards: str) -> Order:
    """The order of the samples with these indices, ascending, among so many; None for all."""
    order: Order
    if shards == "per_rank":
        bounds = part_bounds(samples, ranks)
        if indices is not None:
            bounds = np.searchsorted(indices, bounds)
        if not (np.diff(bounds) > 0).all():
            raise UsageError(
                f"shards: found per_rank, but rank {int(np.diff(bounds).argmin())} of {ranks} has no sample to draw in "
                f"its part of {samples:,} samples; use fewer ranks, longer phases, or shards=shared"
            )
        order = ShardedSampler(bounds, batch=local_batch, seed=seed)
    else:
        order = Sampler(samples if indices is None else len(indices), seed)
    return order if indices is None else Subset(order, indices)


def stratified_order(
    lengths: np.ndarray, *, batch: int, seed: int, max_length: int, counts: Sequence[int] | None
) -> StratifiedSampler:
    """`StratifiedSampler`, with counts as a user may have given them.

    Raises UsageError where a stratum is to have slots and has no samples, or the other way round.
    """
    if counts is not None:
        bounds = stratum_bounds(max_length)
        sizes = np.bincount(np.searchsorted(bounds, lengths), minlength=len(counts))
        for stratum, (size, slots) in enumerate(zip(sizes.tolist(), counts, strict=True)):
            if bool(size) != bool(slots):
                raise UsageError(
                    f"strata_counts: found {list(counts)}, but the {size:,} samples of up to {bounds[stratum]} tokens "
                    f"in stratum {stratum + 1} and its {slots} slots do not go together; give slots to strata that "
                    "have samples, and to no other, or leave strata_counts out"
                )
    return StratifiedSampler(lengths, batch=batch, seed=seed, max_length=max_length, counts=counts)
