"""LAMB sharded over ranks by whole tensors, so that trust ratios stay exact.

A rank updates only the large tensors that it owns, keeps moving averages for those alone, and sends them to the
others. Tensors of fewer than `LEAST_SHARED` elements (biases, LayerNorm) are updated on all ranks, which costs less
than sending them. The largest tensor is a lower bound: in BERT-large it is the word embedding, 9% of all elements, so
more than eleven ranks do not make the update shorter.

torch.distributed.optim.ZeroRedundancyOptimizer also shards by whole tensors, but small ones too; it does not pass on
the loss scaler's overflow flag; and its state is available only by gathering pickled objects on one rank.
"""

from typing import Any

import torch.distributed as dist
from torch import Tensor

from implementations.pytorch.optim.lamb import Lamb
from podium.planning.tensor_partition import LEAST_SHARED, owners


class ShardedLamb(Lamb):
    """LAMB of which each rank of the default process group updates a part. Weights are alike on all ranks after it.

    All ranks must make it with the same parameters in the same order, and step together.
    """

    def __init__(self, params: Any, least_shared: int = LEAST_SHARED, **settings: Any) -> None:
        """Parameters of at least `least_shared` elements are shared out. `settings` are those of Lamb."""
        super().__init__(params, **settings)
        self._rank = dist.get_rank()
        self._shared = [p for group in self.param_groups for p in group["params"] if p.numel() >= least_shared]
        self._owners: dict[Tensor, int] = dict(
            zip(self._shared, owners([p.numel() for p in self._shared], dist.get_world_size()), strict=True)
        )

    def _updates(self, parameter: Tensor) -> bool:
        return parameter not in self._owners or self._owners[parameter] == self._rank

    def _exchange(self) -> None:
        sent = [dist.broadcast(p.detach(), owner, async_op=True) for p, owner in self._owners.items()]
        for work in sent:
            assert work is not None
            work.wait()  # on a GPU the stream waits, not the host
