"""MLPerf's checkers, run within limits of time and memory, and their output as findings."""
