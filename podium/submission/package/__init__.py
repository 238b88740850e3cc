"""Build a submission package from runs."""
