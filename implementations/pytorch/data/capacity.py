"""One shape for all micro-batches of a run: its size, and what becomes of a sequence that does not fit.

Of any shape that is the same for thousands of steps some steps are too large, unless most of it is wasted on all
others. So the size is chosen by how often that may be. What does not fit goes to another micro-batch that has room, and
where none has to the next step. No sequence is cut off or left out, and every rank finds the same from the length
index.
"""

from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from implementations.pytorch.data.balancing import Assignment


@dataclass(frozen=True)
class Capacity:
    """Slots of a micro-batch. One token slot stays free: sequences that are not there begin in it."""

    tokens: int
    masked: int
    sequences: int

    @property
    def limits(self) -> np.ndarray:
        """[3] most tokens, masked tokens and sequences."""
        return np.array([self.tokens - 1, self.masked, self.sequences])


@dataclass(frozen=True)
class Fitted:
    """An assignment within a capacity, of all samples but those that are left for the next step."""

    assignment: Assignment
    left: np.ndarray
    """Positions that no micro-batch has room for, in ascending order."""
    moved: int
    """Sequences that another micro-batch has taken."""


def capacity_for(loads: np.ndarray, overflow: float, token_step: int) -> Capacity:
    """A capacity that some micro-batch of a step exceeds with a probability of about `overflow`, in (0, 1), at most.

    `loads` [steps, 3]: tokens, masked tokens and sequences of the fullest micro-batch of each of some steps. Each is
    taken as normally distributed. Tokens and masked tokens go together, so they exceed it together; where numbers of
    sequences vary too, either has half of the probability. Token slots are rounded up to `token_step`, masked slots to
    an eighth of it.
    """
    causes = 2 if loads[:, 2].std() > 0 else 1
    deviations = NormalDist().inv_cdf(1 - overflow / causes)
    tokens, masked, sequences = np.ceil(loads.mean(axis=0) + deviations * loads.std(axis=0)).astype(int).tolist()
    masked_step = max(1, token_step // 8)
    return Capacity(-(-(tokens + 1) // token_step) * token_step, -(-masked // masked_step) * masked_step, sequences + 1)


def fit_in(assignment: Assignment, sizes: np.ndarray, late: int, capacity: Capacity) -> Fitted:
    """Keep every part within the capacity.

    `sizes` [3, samples] are tokens, masked tokens and 1 of each sample, none beyond the limits itself. The last `late`
    samples are in no part yet: those that the step before has left. A part that exceeds the capacity gives up its
    shortest sequence that makes it fit, or else its longest, and so on. Those and the late ones, the late ones first
    and then the longest, go to the part that has most room for tokens among those that have room at all.
    """
    limits = capacity.limits
    parts = [assignment.part(p).tolist() for p in range(assignment.parts)]
    loads = np.stack([assignment.loads(size[: len(assignment.order)]) for size in sizes])
    given_up: list[int] = []
    for p in np.flatnonzero((loads > limits[:, None]).any(axis=0)).tolist():
        while (excess := loads[:, p] - limits).max() > 0:
            enough = [position for position in parts[p] if (sizes[:, position] >= excess).all()]
            tokens = sizes[0]
            gone = min(enough, key=lambda x: (tokens[x], x)) if enough else max(parts[p], key=lambda x: (tokens[x], x))
            parts[p].remove(gone)
            given_up.append(gone)
            loads[:, p] -= sizes[:, gone]
    first_late = sizes.shape[1] - late
    homeless = [*range(first_late, first_late + late), *sorted(given_up, key=lambda x: (-sizes[0][x], x))]
    left: list[int] = []
    for position in homeless:
        fits = (loads + sizes[:, position, None] <= limits[:, None]).all(axis=0)
        if not fits.any():
            left.append(position)
            continue
        p = int(np.where(fits, limits[0] - loads[0], -1).argmax())
        parts[p].append(position)
        loads[:, p] += sizes[:, position]
    if not homeless:
        return Fitted(assignment, np.empty(0, dtype=np.int64), 0)
    fitted = Assignment.joined([np.array(part, dtype=np.int64) for part in parts])
    return Fitted(fitted, np.array(sorted(left), dtype=np.int64), len(homeless) - len(left))
