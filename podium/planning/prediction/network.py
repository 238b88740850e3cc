"""The α–β model of collectives: seconds a hop (α) and seconds a byte (β), inside a node and between nodes.

One ring goes through all GPUs of all nodes, in as many channels as there are links, so that every link carries 2·(p
− 1)/p of what p GPUs all-reduce and the slowest kind of link limits the rate; the first byte needs as many hops as a
tree has levels between nodes and a chain has inside one. Sources: Thakur, Rabenseifner and Gropp, IJHPCA 2005; NCCL's
definition of bus bandwidth; Sanders, Speck and Träff, Parallel Computing 2009, for trees at full bandwidth.
"""

from dataclasses import dataclass
from math import ceil, log2


@dataclass(frozen=True)
class Network:
    """Nodes of equal size. Rates in bytes/s; `between` is a whole node's, `inside` one GPU's, both in one direction."""

    nodes: int
    gpus_per_node: int
    inside: float
    between: float
    hop_inside: float  # seconds
    hop_between: float

    def all_reduce(self, size: float) -> float:
        """Seconds until every GPU has the sum of `size` bytes."""
        return 2 * self.reduce_scatter(size)

    def reduce_scatter(self, size: float) -> float:
        """Seconds until every GPU has its share of the sum of `size` bytes; all-gathering the shares takes as long."""
        ranks = self.nodes * self.gpus_per_node
        return self.broadcast((ranks - 1) / ranks * size)

    def broadcast(self, size: float) -> float:
        """Seconds until every GPU has `size` bytes that one of them had, in pieces that follow one another closely."""
        if self.nodes * self.gpus_per_node == 1:
            return 0.0
        slowest = min([self.inside] * (self.gpus_per_node > 1) + [self.between] * (self.nodes > 1))
        hops = (self.gpus_per_node - 1) * self.hop_inside + ceil(log2(self.nodes)) * self.hop_between
        return hops + size / slowest
