"""Submissions to MLPerf: descriptions of systems, packages of runs, and checks beyond those of the official tools."""
