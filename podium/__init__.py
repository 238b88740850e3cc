"""The harness: configuration, launching, logging, submission and comparison of runs."""
