"""Which samples of eval.txt are the evaluation set."""

import numpy as np
from numpy.typing import NDArray


def evaluation_pick(number_of_samples: int, count: int) -> NDArray[np.int64]:
    """Indices [count] of the samples to evaluate: int(i · ratio) for i in 0..count−1.

    The ratio number_of_samples / count is a double and rounds as one, so that an index may be one less than the
    fraction's floor. The indices are spread evenly and ascend; where count exceeds number_of_samples some occur more
    than once.
    Source: MLPerf Training reference, pick_eval_samples, the pick of 10,000 evaluation samples.
    """
    if number_of_samples < 1 or count < 1:
        raise ValueError(f"cannot pick {count} of {number_of_samples} samples; both must be 1 or more")
    return (np.arange(count) * (number_of_samples / count)).astype(np.int64)
