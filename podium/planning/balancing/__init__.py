"""Which rank takes which samples of a global batch: pure numpy functions in one table."""
