"""The published strategies: samples in order, or sorted and distributed in turn, over all parts or within a node.

All give every part the same number of samples.
"""

import numpy as np

from podium.planning.balancing.interface import Assignment, AssignmentSpec


def in_order(lengths: np.ndarray, spec: AssignmentSpec) -> Assignment:
    """Assign the p-th run of consecutive samples to part p.

    `padded` and `random`, as in the reference implementations: loads vary with the random order. `stratified`: samples
    are drawn by `StratifiedSampler`, so that all parts have the same counts of short and of long samples (Samsung,
    arXiv 2402.02447), and loads vary less.
    """
    return Assignment.from_rows(np.arange(len(lengths)).reshape(spec.parts, -1))


def exchanged(lengths: np.ndarray, spec: AssignmentSpec) -> Assignment:
    """Sort the whole global batch by length, longest first, and assign it in strides (default), or in a snake.

    Source: the padding exchange of Baidu, arXiv 2208.08124, where part t of W takes samples t, t + W, t + 2W …, and
    ranks gather the samples of all ranks. A global batch has the same samples as without.
    """
    return Assignment.from_rows(_assign_sorted(lengths[None], spec.parts, spec.scan or "stride"))


def presorted(lengths: np.ndarray, spec: AssignmentSpec) -> Assignment:
    """Sort within every node, longest first, and assign among its parts in a snake (default), or in strides.

    Source: local presorting of Samsung, arXiv 2402.02447, on top of stratified sampling, where samples are gathered
    within a node. Node k has the k-th run of consecutive samples. A global batch has the same samples as without.
    """
    nodes = spec.parts // spec.parts_per_node
    return Assignment.from_rows(_assign_sorted(lengths.reshape(nodes, -1), spec.parts_per_node, spec.scan or "snake"))


def snake(lengths: np.ndarray, parts: int) -> np.ndarray:
    """Positions [parts, G / parts]: sorted by length, assigned in rounds of alternating direction.

    The sums of two parts differ by at most the longest sample minus the shortest. Equal lengths keep their order.
    """
    return _assign_sorted(lengths[None], parts, "snake")


def _assign_sorted(lengths: np.ndarray, parts: int, scan: str) -> np.ndarray:
    """Assign the sorted lengths [nodes, samples] of each node to its parts.

    Returns positions [nodes · parts, samples / parts].
    """
    nodes, samples = lengths.shape
    rounds = argsort_descending(lengths).reshape(nodes, -1, parts)
    if scan == "snake":
        rounds[:, 1::2] = rounds[:, 1::2, ::-1]
    positions = rounds + np.arange(nodes)[:, None, None] * samples
    return np.ascontiguousarray(positions.transpose(0, 2, 1).reshape(nodes * parts, -1))


def argsort_descending(lengths: np.ndarray) -> np.ndarray:
    """Stable descending argsort [..., n] of integers along the last axis."""
    # NumPy sorts 16-bit integers by radix, in linear time; the difference to the maximum fits for all real lengths.
    below = int(lengths.max()) - lengths.astype(np.int64)
    order: np.ndarray = np.argsort(below.astype(np.uint16) if below.max() < 2**16 else below, axis=-1, kind="stable")
    return order
