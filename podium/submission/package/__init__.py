"""Building a submission package from runs."""
