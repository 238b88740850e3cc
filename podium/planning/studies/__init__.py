"""Studies of what arXiv 2402.02447 (Samsung) leaves open, on the balancing strategies and the cost model."""
