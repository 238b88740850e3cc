"""α–β model of collectives: seconds per hop (α) and per byte (β), inside a node and between nodes.

One ring passes through all GPUs of all nodes, with as many channels as links. Each link carries 2·(p − 1)/p of the
bytes that p GPUs all-reduce, and the slowest kind of link limits the rate. The latency is that of a tree between nodes
and of a chain inside one. Sources: Thakur, Rabenseifner and Gropp, IJHPCA 2005; NCCL's definition of bus bandwidth;
Sanders, Speck and Träff, Parallel Computing 2009, for trees at full bandwidth.
"""

from dataclasses import dataclass
from math import ceil, log2


@dataclass(frozen=True)
class Network:
    """Equal nodes and their links. Bandwidths are in bytes/s and in one direction, latencies in seconds per hop."""

    nodes: int
    gpus_per_node: int
    intra_node_bandwidth: float  # of one GPU
    inter_node_bandwidth: float  # of a whole node
    intra_node_latency: float
    inter_node_latency: float

    def all_reduce(self, size: float) -> float:
        """Return the seconds until every GPU has the sum of `size` bytes."""
        return 2 * self.reduce_scatter(size)

    def reduce_scatter(self, size: float) -> float:
        """Return the seconds until every GPU has its share of the sum of `size` bytes. An all-gather takes as long."""
        ranks = self.nodes * self.gpus_per_node
        return self.broadcast((ranks - 1) / ranks * size)

    def broadcast(self, size: float) -> float:
        """Return the seconds until every GPU has `size` bytes of one of them, sent in pipelined chunks."""
        if self.nodes * self.gpus_per_node == 1:
            return 0.0
        intra = [self.intra_node_bandwidth] * (self.gpus_per_node > 1)
        inter = [self.inter_node_bandwidth] * (self.nodes > 1)
        latency = (self.gpus_per_node - 1) * self.intra_node_latency + ceil(log2(self.nodes)) * self.inter_node_latency
        return latency + size / min(intra + inter)
