"""MLPerf logs and result packages: writing, parsing of untrusted files, anomaly reports, scores, official checker."""
