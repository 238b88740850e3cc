"""MLPerf's own checkers, asked with limits, and what they say as findings."""
