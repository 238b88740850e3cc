"""The published strategies: samples in order, or sorted and distributed in turn, over all parts or in a node.

All give every part equally many samples.
"""

import numpy as np

from podium.planning.balancing.interface import Assignment, Deal


def in_order(lengths: np.ndarray, deal: Deal) -> Assignment:
    """Part p takes the p-th run of consecutive samples.

    `padded` and `random`: as reference implementations do it; the load is as random as the order. `stratified`: with
    samples drawn by `StratifiedSampler`, so that all parts have the same counts of short and of long samples (Samsung,
    arXiv 2402.02447): batches vary less than random ones, and samples of different strata are in the ratio of whole
    numbers.
    """
    return Assignment.even(np.arange(len(lengths)).reshape(deal.parts, -1))


def exchanged(lengths: np.ndarray, deal: Deal) -> Assignment:
    """Sort the whole global batch by length, longest first, and deal it out in strides, or in a snake by `deal.scan`.

    Source: the padding exchange of Baidu, arXiv 2208.08124, where part t of W takes samples t, t + W, t + 2W …, and
    ranks gather the samples of all ranks. A global batch has the same samples as without.
    """
    return Assignment.even(_dealt(lengths[None], deal.parts, deal.scan or "stride"))


def presorted(lengths: np.ndarray, deal: Deal) -> Assignment:
    """Sort within every node, longest first, and deal out among its parts in a snake, or in strides by `deal.scan`.

    Source: local presorting of Samsung, arXiv 2402.02447, on top of stratified sampling, where samples are gathered
    within a node. Node k has the k-th run of consecutive samples. A global batch has the same samples as without.
    """
    nodes = deal.parts // deal.parts_per_node
    return Assignment.even(_dealt(lengths.reshape(nodes, -1), deal.parts_per_node, deal.scan or "snake"))


def snake(lengths: np.ndarray, parts: int) -> np.ndarray:
    """Positions [parts, G / parts]: sorted by length, dealt out in rounds that go there and back again.

    Two parts differ by at most the longest sample minus the shortest. Equal lengths keep their order.
    """
    return _dealt(lengths[None], parts, "snake")


def _dealt(lengths: np.ndarray, parts: int, scan: str) -> np.ndarray:
    """Positions [nodes · parts, samples / parts] of lengths [nodes, samples], each node dealt out to its `parts`."""
    nodes, samples = lengths.shape
    rounds = longest_first(lengths).reshape(nodes, -1, parts)
    if scan == "snake":
        rounds[:, 1::2] = rounds[:, 1::2, ::-1]
    positions = rounds + np.arange(nodes)[:, None, None] * samples
    return np.ascontiguousarray(positions.transpose(0, 2, 1).reshape(nodes * parts, -1))


def longest_first(lengths: np.ndarray) -> np.ndarray:
    """A stable order [..., n] of whole numbers along the last axis, descending: of a narrow range in linear time."""
    below = int(lengths.max()) - lengths.astype(np.int64)
    order: np.ndarray = np.argsort(below.astype(np.uint16) if below.max() < 2**16 else below, axis=-1, kind="stable")
    return order
