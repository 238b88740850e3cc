"""MLPerf logs and package trees: written, read without trusting them, scored; anomalies are reported."""
