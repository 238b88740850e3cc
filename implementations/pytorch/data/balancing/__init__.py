"""Who takes which samples of a global batch: pure numpy functions in one table. No torch, no clock, no process.

Every rank knows the length of every sample, so each computes the same assignment by itself.
"""

from implementations.pytorch.data.balancing.assignment import Assignment, Deal
from implementations.pytorch.data.balancing.bounds import least_max_over_mean
from implementations.pytorch.data.balancing.dealing import snake
from implementations.pytorch.data.balancing.strategies import STRATEGIES, Strategy, assign

__all__ = ["STRATEGIES", "Assignment", "Deal", "Strategy", "assign", "least_max_over_mean", "snake"]
