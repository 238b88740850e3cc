"""Reads anybody's MLPerf logs and package trees: what is odd about them is told, and nothing in them is trusted."""
