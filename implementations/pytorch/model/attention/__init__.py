"""Self-attention inside each sequence of a ragged batch: one façade, several backends behind it."""
