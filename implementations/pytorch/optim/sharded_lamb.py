"""LAMB sharded over ranks by whole tensors, so that trust ratios stay exact.

Each rank updates only the large tensors that it owns, keeps optimizer state for those only, and broadcasts the updated
weights. Tensors of fewer than `MIN_SHARDED_SIZE` elements (biases, LayerNorm) are updated on all ranks, which costs
less than a broadcast. The largest tensor bounds the speed-up: in BERT-large it is the word embedding, 9% of all
elements, so more than eleven ranks do not shorten the update.

This is optimizer state sharding as in ZeRO stage 1 (Rajbhandari et al., arXiv 1910.02054).
torch.distributed.optim.ZeroRedundancyOptimizer also shards by whole tensors, but it shards small ones too, it does not
forward the loss scaler's overflow flag, and it exposes its state only by gathering pickled objects on one rank.
"""

from typing import Any

import torch.distributed as dist
from torch import Tensor

from implementations.pytorch.optim.lamb import Lamb
from podium.planning.tensor_partition import MIN_SHARDED_SIZE, owners


class ShardedLamb(Lamb):
    """LAMB whose update is sharded over the ranks of the default process group; weights end identical on all ranks.

    Every rank must construct it with the same parameters in the same order and call `step` equally often, because
    `step` is a collective operation.
    """

    def __init__(self, params: Any, min_sharded_numel: int = MIN_SHARDED_SIZE, **settings: Any) -> None:
        """Shard parameters of at least `min_sharded_numel` elements. `settings` are the keyword arguments of `Lamb`."""
        super().__init__(params, **settings)
        self._rank = dist.get_rank()
        self._sharded = [p for group in self.param_groups for p in group["params"] if p.numel() >= min_sharded_numel]
        self._owners: dict[Tensor, int] = dict(
            zip(self._sharded, owners([p.numel() for p in self._sharded], dist.get_world_size()), strict=True)
        )

    def _is_updated_here(self, parameter: Tensor) -> bool:
        return parameter not in self._owners or self._owners[parameter] == self._rank

    def _exchange_parameters(self) -> None:
        # Every rank iterates in the same parameter order, so the broadcasts match up. All are started before the first
        # wait, so that broadcasts from different owners overlap.
        broadcasts = [dist.broadcast(p.detach(), owner, async_op=True) for p, owner in self._owners.items()]
        for work in broadcasts:
            assert work is not None
            work.wait()  # on a GPU the stream waits, not the host
