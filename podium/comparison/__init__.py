"""Compares results of MLPerf's rounds and one's own: what the logs say, told in numbers that can be held together."""
