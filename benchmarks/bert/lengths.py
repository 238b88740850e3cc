"""Histograms of sample lengths, and samples that represent one where only their lengths matter.

The published histogram of the pre-training samples of Wikipedia is included.
"""

import json
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.bert.sizes import MASKED_POSITIONS, MASKED_SHARE, SEQUENCE_LENGTH
from podium.core.errors import UsageError

# fmt: off
WIKIPEDIA: tuple[int, ...] = (
    0, 0, 0, 0, 1821, 1226, 1969, 1315, 1794, 1953, 3082, 3446, 4166, 5062, 9554, 16475, 19173, 17589, 17957, 19060,
    21555, 23524, 26954, 30661, 33470, 36614, 40134, 43256, 46094, 49350, 52153, 55428, 58109, 60624, 63263, 64527,
    65421, 66983, 68123, 68830, 70230, 70486, 72467, 72954, 73955, 74311, 74836, 74489, 74990, 75377, 74954, 75096,
    74784, 74698, 74337, 74638, 74370, 73537, 73597, 73153, 72358, 71580, 71082, 70085, 69733, 69445, 67818, 67177,
    66641, 65709, 64698, 63841, 63218, 62799, 61458, 60848, 60148, 59858, 58809, 58023, 56920, 55999, 55245, 55051,
    53979, 53689, 52819, 52162, 51752, 51172, 50469, 49907, 49201, 49060, 47948, 47724, 46990, 46544, 46011, 45269,
    44792, 44332, 43878, 43984, 42968, 42365, 42391, 42219, 41668, 41072, 40616, 40587, 39999, 40169, 39340, 38906,
    38438, 38142, 37757, 37818, 37535, 37217, 36757, 36589, 36151, 35953, 35531, 35496, 35089, 35053, 34567, 34789,
    34009, 33952, 33753, 33656, 33227, 32954, 32686, 32880, 32709, 31886, 32126, 31657, 31466, 31142, 31106, 30650,
    30316, 30494, 30328, 30157, 29611, 29754, 29445, 28921, 29271, 29078, 28934, 28764, 28445, 28319, 28141, 28282,
    27779, 27522, 27333, 27470, 27289, 27102, 27018, 27066, 26925, 26384, 26188, 26385, 26392, 26082, 26062, 25660,
    25682, 25547, 25425, 25072, 25079, 25346, 24659, 24702, 24862, 24479, 24288, 24127, 24268, 24097, 23798, 23878,
    23893, 23817, 23398, 23382, 23280, 22993, 23018, 23242, 22987, 22894, 22470, 22612, 22452, 21996, 21843, 22094,
    21916, 21756, 21955, 21444, 21436, 21484, 21528, 21597, 21301, 21197, 21281, 21066, 20933, 21023, 20888, 20575,
    20574, 20511, 20419, 20312, 20174, 20023, 20087, 19955, 19946, 19846, 19562, 19710, 19556, 19477, 19487, 19387,
    19225, 19069, 19360, 18655, 19034, 18763, 18800, 19012, 18893, 18714, 18645, 18577, 18317, 18458, 18374, 18152,
    17822, 18102, 17735, 17940, 17805, 17711, 17690, 17703, 17669, 17410, 17583, 17331, 17313, 16892, 16967, 16870,
    16926, 17233, 16845, 16861, 16576, 16685, 16455, 16687, 16747, 16524, 16473, 16349, 16273, 16255, 16228, 16219,
    16021, 16111, 15867, 15751, 16081, 15703, 15751, 15854, 15665, 15469, 15431, 15428, 15464, 15517, 15335, 15461,
    15237, 15292, 15305, 15351, 15078, 14810, 15119, 14780, 14664, 14869, 14722, 14890, 14672, 14439, 14685, 14706,
    14840, 14373, 14286, 14596, 14615, 14168, 14299, 13987, 14167, 14107, 14096, 14202, 13985, 14118, 14094, 14127,
    13896, 13864, 13597, 13572, 13717, 13669, 13782, 13617, 13284, 13333, 13425, 13457, 13256, 13404, 13318, 13425,
    13317, 13179, 13193, 13257, 13160, 12813, 13149, 13010, 12867, 12958, 12818, 12801, 12749, 12810, 12575, 12673,
    12514, 12735, 12523, 12677, 12298, 12469, 12341, 12445, 12477, 12326, 12110, 12087, 12305, 12156, 12032, 12190,
    12150, 11980, 12022, 11825, 11969, 11831, 11997, 11924, 11739, 11685, 11702, 11783, 11783, 11659, 11647, 11610,
    11526, 11577, 11538, 11536, 11497, 11480, 11374, 11234, 11433, 11466, 11475, 11147, 11376, 11217, 11002, 11245,
    11124, 11000, 11129, 10923, 10966, 11071, 11029, 11036, 10972, 11012, 10800, 10936, 10904, 10750, 10669, 10766,
    10780, 10675, 10905, 10511, 10598, 10583, 10658, 10471, 10667, 10601, 10430, 10440, 10510, 10148, 10468, 10346,
    10257, 10286, 10235, 10351, 10182, 10182, 10095, 10192, 9866, 10070, 10148, 9956, 10132, 10043, 9741, 10003,
    10056, 9920, 10021, 9838, 9854, 9740, 9782, 9799, 9798, 9788, 9840, 9747, 9797, 9893, 9593, 9535, 9658, 9554,
    9593, 9530, 9523, 9488, 9548, 9418, 9418, 9508, 9638, 9521, 9277, 9289, 9255, 9322, 9281, 9351, 9259, 9255,
    9225, 9098, 9268, 9227, 9224, 9106, 9239, 3815044,
)
# fmt: on
"""[512] samples of length 1 to 512, 16,279,552 in all, of mean length 255.83.

Published with Krell et al., Efficient sequence packing without cross-contamination, arXiv 2107.02027.
"""


def read_histogram(path: Path, option: str = "--lengths") -> NDArray[np.float64]:
    """Samples of length 0, 1, … from a JSON list that begins with length 1.

    Raises UsageError, which names the option, for a file that is missing or holds anything else.
    """
    allowed = f"allowed is a JSON list of up to {SEQUENCE_LENGTH} counts, of samples of 1, 2, … tokens, the first two 0"
    try:
        counts = np.array([0, *map(_number, json.loads(path.read_text(encoding="utf-8")))], dtype=np.float64)
    except OSError as error:
        raise UsageError(f"{option}: {path} cannot be read ({error.strerror}); {allowed}") from None
    except (ValueError, TypeError, RecursionError):
        raise UsageError(f"{option}: {path} holds something else; {allowed}") from None
    if len(counts) > SEQUENCE_LENGTH + 1 or counts[:3].any() or not 0 < counts.sum() < np.inf or (counts < 0).any():
        raise UsageError(f"{option}: {path} holds something else; {allowed}")
    return counts


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError
    return float(value)


def wikipedia_histogram() -> NDArray[np.int64]:
    """[513] Wikipedia's samples of length 0 to 512."""
    return np.array([0, *WIKIPEDIA], dtype=np.int64)


def quantiles(histogram: np.ndarray, count: int) -> NDArray[np.int64]:
    """`count` lengths at evenly spaced quantiles of a histogram of lengths 0, 1, …, shortest first."""
    places = (np.arange(count) + 0.5) / count
    return np.searchsorted(histogram.cumsum() / histogram.sum(), places).astype(np.int64)


def usual_masked_counts(lengths: np.ndarray) -> NDArray[np.int64]:
    """How many tokens of samples of these lengths are masked, as MLPerf's reference masks them."""
    return np.clip(np.round(MASKED_SHARE * lengths.astype(np.float64)), 1, MASKED_POSITIONS).astype(np.int64)
