"""Results that were published in MLPerf Training, as figures: what others' systems took, and how many samples."""
