"""Self-attention within each sequence of a ragged batch: a dispatch function and several backends."""
