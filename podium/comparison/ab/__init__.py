"""A/B comparison of two systems or two commits: which one is faster, and how significant the difference is."""
