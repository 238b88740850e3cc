"""MLPerf Training's BERT benchmark: rules, model sizes, and text to samples. Imports no framework, names no system."""
