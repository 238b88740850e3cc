"""How far a share may lie from its expectation by chance."""

import math

SIGMAS = 6.0
"""Standard deviations; chance goes beyond them twice in a thousand million checks."""


def tolerance(share: float, count: int) -> float:
    """What a share of `count` independent draws may differ from its expectation `share`: 6 binomial deviations."""
    return SIGMAS * math.sqrt(share * (1 - share) / count) if count else math.inf
