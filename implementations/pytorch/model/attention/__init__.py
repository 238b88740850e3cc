"""Self-attention inside each sequence of a ragged batch: one façade, several backends behind it."""

from implementations.pytorch.model.attention.facade import BACKENDS, attend, require

__all__ = ["BACKENDS", "attend", "require"]
