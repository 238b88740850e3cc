"""Optimizers (LAMB and AdamW), their learning-rate schedule, and gradient clipping."""
