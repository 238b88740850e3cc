"""Sets of runs: prepare, launch, collect."""
