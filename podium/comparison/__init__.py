"""Comparison of MLPerf results and local results: scores, throughput, scaling, cost and significance."""
