"""From the runs of one or several systems to a folder that can be uploaded to MLPerf."""
