"""Studies of questions that arXiv 2402.02447 (Samsung) leaves open: balancing strategies and the cost model."""
